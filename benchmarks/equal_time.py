"""Measure methods with adversarial examples at rate 16 in about the time that the preset `cifar10-robust` takes.

    python -m benchmarks.equal_time --teacher trades.pt --data-folder CIFAR10 --out results/equal-time.json
    python -m benchmarks.equal_time --teacher trades.pt --methods harp --set data.augment=reflect-flip

Each method has its own preset, four or five epochs, batches of 512, learning rates of weights that are three times the
preset's, and adversarial examples only. Natural accuracy, PGD-20 and CW are of all test images, AutoAttack of the first
1,000 (`--autoattack`; 0 leaves it out). Methods that the file has already with the same settings are skipped, but rows
without AutoAttack, or from before settings were kept, are replaced; none begins after `--minutes`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import pwoa
from benchmarks.robust import ATTACKS, AUTOATTACK, ROBUST, is_current, other_settings, strongest
from benchmarks.rows import Row, load_rows, markdown, one_line, option_parser, rounded
from pwoa.attacks.registry import attack_label
from pwoa.paper.rows import steady_seconds
from pwoa.progress import ConsoleProgress, Progress
from pwoa.storage.folder import save_rows
from pwoa.sweep.rows import epochs_of, mean_and_deviation

RATE = 16.0
EPOCHS = {"advprune": (2, 3), "apd": (2, 3), "hydra": (2, 2), "harp": (2, 3), "magnitude": (0, 5)}
"""Of the search and of fine-tuning, so that all take about as long as the preset: 20 to 22 seconds on an H200."""
_ON_SCORES = ("hydra", "harp")
"""The methods whose search trains scores, at a learning rate of their own."""
_INTERVAL = 0.25
"""Of an epoch, after which AdvPrune updates its constraint; its preset has three epochs, and the search here two."""
_SHARED = {
    "data.validation": 1024,
    "sparsity.rate": RATE,
    "training.mix": 1.0,
    "training.batch": 512,
    "evaluation.attacks": ATTACKS,
    "evaluation.strong": 0,
    "evaluation.checks": False,
}


@one_line()
def main(words: Sequence[str] | None = None, progress: Progress | None = None) -> None:
    """Prune by every method that has no row yet."""
    options = _options(words)
    saved = load_rows(options.out)
    for row in rows(options, progress or ConsoleProgress()):
        print(json.dumps(row), flush=True)
        saved = [*(old for old in saved if not is_same(old, row)), row]
        save_rows(options.out, saved)


def rows(options: argparse.Namespace, progress: Progress) -> Iterator[Row]:
    """Yield a row for each method, as far as the time goes."""
    began = time.monotonic()
    complete = [
        row
        for row in load_rows(options.out)
        if "settings" in row and (row["autoattack"] is not None or not options.autoattack)
    ]
    for method in options.methods:
        recipe = recipe_of(method, options)
        about = {"method": method, "seed": options.seed, "settings": options.settings}
        if any(is_same(row, about | {"teacher": Path(recipe.teacher.checkpoint).stem}) for row in complete):
            continue
        if time.monotonic() - began > 60 * options.minutes:
            progress.say(f"{options.minutes:g} minutes are over; stopped before {method}")
            return
        yield _row(recipe, options, progress)


def is_same(row: Row, other: Row) -> bool:
    """Tell whether two rows are of the same measurement; a row from before settings were kept had none."""
    keys = ("method", "seed", "teacher")
    return all(row[key] == other[key] for key in keys) and row.get("settings", []) == other["settings"]


def recipe_of(method: str, options: argparse.Namespace) -> pwoa.Recipe:
    """Return the recipe of a method: its preset with few epochs, and learning rates to match."""
    preset = pwoa.load_recipe(f"cifar10-{method}")
    search, finetune = EPOCHS[method]
    given: dict[str, Any] = {**_SHARED, "training.seed": options.seed, "evaluation.images": options.images}
    given |= {"finetune.epochs": finetune, "finetune.learning_rate": 3 * preset.finetune.learning_rate}
    given |= {"search.epochs": search} if search else {}
    if search and method not in _ON_SCORES:
        given["search.learning_rate"] = 3 * preset.search.learning_rate
    if method == "advprune":  # ρ goes from its start to its limit in the updates there are
        growth = (preset.search.rho_limit / preset.search.rho) ** (1 / (search / _INTERVAL - 1))
        given |= {"search.interval": _INTERVAL, "search.rho_growth": growth}
    given |= {"teacher.checkpoint": options.teacher} if options.teacher else {}
    given |= {"data.folder": options.data_folder} if options.data_folder else {}
    return preset.with_settings(given).with_settings(options.settings)


def _row(recipe: pwoa.Recipe, options: argparse.Namespace, progress: Progress) -> Row:
    settings = [f"{zlib.crc32(' '.join(options.settings).encode()):08x}"] if options.settings else []
    folder = options.runs / "-".join([recipe.method, recipe.data.augment, f"seed{options.seed}", *settings])
    result = pwoa.prune(recipe=recipe, folder=folder, progress=progress)
    scores = strongest(result, options.autoattack, progress) if options.autoattack else None
    summary = result.summary
    return {
        "dataset": recipe.data.name,
        "architecture": recipe.teacher.architecture,
        "teacher": Path(recipe.teacher.checkpoint).stem,
        "method": recipe.method,
        "augment": recipe.data.augment,
        "mix": recipe.training.mix,
        "rate": round(summary["rate"], 3),
        "macs_rate": round(summary["macs_rate"], 3),
        "seed": options.seed,
        "epochs": epochs_of(recipe),
        "batch": recipe.training.batch,
        "settings": options.settings,
        **rounded({name: summary["pruned"][name] for name in ATTACKS}),
        "autoattack": round(scores["autoattack"], 2) if scores else None,
        "n": summary["images"],
        "n_autoattack": options.autoattack,
        "training_seconds": round(summary["training_seconds"], 1),
        "steady_seconds": round(steady_seconds(result.metrics), 1),
        "device": summary["device"],
    }


def equal_time_table(path: Path) -> str:
    """Return methods with adversarial examples that trained about as long as the preset robust, which is the last."""
    lines = []
    for row in sorted(load_rows(path), key=lambda row: row["autoattack"] or 0.0):
        times = (row["training_seconds"], without_compiling(row))
        lines.append([_name(row), f"{row['mix']:g}", row["epochs"], *(f"{time:.1f} s" for time in times)])
        lines[-1] += [f"{row['macs_rate']:.3g}×", *map(_percent, (row[column] for column in (*ATTACKS, "autoattack")))]
    for allocation, own in _own(path).items():
        name = f"`{ROBUST}`, {allocation}"
        means = (mean_and_deviation([row[column] for row in own]) for column in (*ATTACKS, "autoattack"))
        time = f"{_mean_time(own):.1f} s"
        lines.append([name, "0", own[0]["epochs"], time, "", f"{own[0]['macs_rate']:.3g}×", *means])
    head = ["method", "mix ratio", "epochs", "training", "without compiling", "multiply-adds"]
    return markdown([*head, *map(attack_label, (*ATTACKS, "autoattack"))], lines)


def draw_equal_time(path: Path, picture: Path) -> None:
    """Draw the accuracy under AutoAttack against the seconds of training, without those of compiling.

    Bars are the standard error of so many images.
    """
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    points = [(_name(row), without_compiling(row), row, "#dd8452") for row in load_rows(path)]
    points = [point for point in points if point[2]["autoattack"] is not None]
    for allocation, own in _own(path).items():
        attacked = [row for row in own if row["autoattack"] is not None]
        points += [(f"{ROBUST}, {allocation}", _mean_time(own), row, "#4c72b0") for row in attacked[:1]]
    for name, seconds, row, colour in points:
        value, images = row["autoattack"], row["n_autoattack"]
        error = (value * (100 - value) / images) ** 0.5
        axes.errorbar(seconds, value, yerr=error, fmt="o", color=colour, capsize=3)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.annotate(name, (seconds, value), xytext=(6, 5), textcoords="offset points", fontsize=8, bbox=box)
    axes.set_xlim(0, 1.45 * max(seconds for _, seconds, *_ in points))
    axes.set_xlabel("seconds of training")
    axes.set_ylabel(f"accuracy under {attack_label('autoattack')}, %")
    axes.set_title("orange: on adversarial examples only; blue: on natural examples only", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=144)


def _name(row: Row) -> str:
    """Return the method, and the settings that were changed by hand."""
    return ", ".join([row["method"], *row.get("settings", ())])


def _mean_time(own: Sequence[Row]) -> float:
    return statistics.mean(float(row["training_seconds"]) for row in own)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def without_compiling(row: Row) -> float:
    """Return the seconds of training with first epochs, in which programs are compiled, as long as the later ones.

    Older rows have those of the later epochs alone, of both stages.
    """
    later = row.get("later_epochs", [])
    return float(row["steady_seconds"] if "steady_seconds" in row else sum(later) + statistics.mean(later))


def _own(path: Path) -> dict[str, list[Row]]:
    """Return the rows of the preset at rate 16 by allocation, from the file beside the one that is given."""
    own: dict[str, list[Row]] = {}
    for row in load_rows(path.with_name("robust.json")):
        of_preset = (row["preset"], row["rate"], row["budget"]) == (ROBUST, RATE, "weights")
        if of_preset and is_current(row) and not other_settings(row):
            own.setdefault(row["allocation"], []).append(row)
    return own


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.set_defaults(out=Path("runs/equal-time/rows.json"))
    parser.add_argument("--methods", nargs="+", default=list(EPOCHS), choices=list(EPOCHS), metavar="METHOD")
    parser.add_argument("--teacher", help="the robust teacher (default: the presets')")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=0, help="of all attacks but AutoAttack; 0 is all")
    parser.add_argument("--autoattack", type=int, default=AUTOATTACK, help="images of AutoAttack; 0 leaves it out")
    parser.add_argument("--data-folder", help="the data set's official files")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=60.0, help="no run begins after this time")
    parser.add_argument("--runs", type=Path, default=Path("runs/equal-time"))
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
