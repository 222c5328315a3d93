"""Measure the presets `robust` against `paper`: one row for each preset, budget, rate and seed.

    python -m benchmarks.robust --teacher trades.pt --data-folder CIFAR10 --out results/robust.json
    python -m benchmarks.robust --teacher trades.pt --budget macs --rates 4 8 16 --set sparsity.allocation=lamp-macs

Natural accuracy, PGD-20 and CW are of all test images (`--images`), AutoAttack of the first 1,000 (`--autoattack`).
`wall_seconds` are from the start of the run to its last attack but AutoAttack, compilation included; null where it was
begun before. Rows that the file has already are skipped, no run begins after `--minutes`, and a killed run goes on in
its folder under `--runs`. With `--autoattack 0` it is left out, and the same command without that adds it to the rows
whose runs are still there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pwoa
from benchmarks.rows import Row, load_rows, markdown, one_line, option_parser, rounded
from pwoa.attacks.registry import attack_label
from pwoa.evaluation.folder import OF_TEACHER
from pwoa.evaluation.scores import Scores
from pwoa.progress import ConsoleProgress, Progress
from pwoa.runs.folder import Result, Run
from pwoa.storage.folder import save_rows
from pwoa.sweep.rows import TEACHER, epochs_of, mean_and_deviation

ATTACKS, AUTOATTACK = ("natural", "pgd20", "cw"), 1000
ROBUST = "cifar10-robust"
SHOWN = 2
"""So many settings that were given by hand stand in a line."""
_SAME = (
    *("dataset", "architecture", "teacher", "preset", "augment", "batch", "allocation", "budget", "rate", "seed"),
    *("epochs", "settings"),
)
"""What two rows of the same measurement have in common."""


@one_line()
def main(words: Sequence[str] | None = None, progress: Progress | None = None) -> None:
    """Prune by every preset, rate and seed that has no row yet."""
    options = _options(words)
    before = load_rows(options.out)
    incomplete = [row for row in before if options.autoattack and row["autoattack"] is None]
    complete = [row for row in before if row not in incomplete]
    for row in rows(options, complete, progress or ConsoleProgress()):
        for old in [old for old in incomplete if _key(old) == _key(row)]:
            if row["wall_seconds"] is None:
                row["wall_seconds"] = old["wall_seconds"]
            incomplete.remove(old)
        print(json.dumps(row), flush=True)
        complete.append(row)
        save_rows(options.out, [*complete, *incomplete])


def rows(options: argparse.Namespace, present: Sequence[Row], progress: Progress) -> Iterator[Row]:
    """Yield a row for each run that was not present at first, as far as the time goes."""
    began, known = time.monotonic(), [_key(row) for row in present]
    for seed in options.seeds:
        measured: Path | None = None  # of the teacher, by attacks of this seed
        for preset in options.presets:
            for rate in options.rates:
                recipe = _recipe(options, preset, rate, seed)
                about = _about(recipe, preset, options)
                if about in known:
                    continue
                folder = options.runs / _run_name(recipe, about)
                if time.monotonic() - began > 60 * options.minutes:
                    progress.say(f"{options.minutes:g} minutes are over; stopped before {folder.name}")
                    return
                there, start = Run(folder).started, time.monotonic()
                result = pwoa.prune(recipe=recipe, folder=folder, teacher_evaluation=measured, progress=progress)
                wall = None if there else round(time.monotonic() - start, 1)
                measured = measured or result.folder / OF_TEACHER
                yield _row(about, result, wall, options, progress)


def _key(row: Row) -> Row:
    return {key: row.get(key) for key in _SAME}


def _run_name(recipe: pwoa.Recipe, about: Row) -> str:
    sparsity = recipe.sparsity
    name = f"{about['preset']}-{sparsity.budget}-{sparsity.allocation}-x{sparsity.rate:g}-seed{about['seed']}"
    others = other_settings(about)
    return f"{name}-{zlib.crc32(' '.join(others).encode()):08x}" if others else name


def other_settings(row: Row) -> list[str]:
    """Return the settings of a row that no column of its own says."""
    return [setting for setting in row.get("settings", ()) if not setting.startswith("sparsity.allocation=")]


def _settings_text(row: Row) -> str:
    """Write the other settings of a row; of many only how many they are."""
    others = other_settings(row)
    return ", ".join(others) if len(others) <= SHOWN else f"with {len(others)} settings"


def _recipe(options: argparse.Namespace, preset: str, rate: float, seed: int) -> pwoa.Recipe:
    given = {"sparsity.rate": rate, "sparsity.budget": options.budget, "training.seed": seed}
    given |= {"evaluation.attacks": ATTACKS, "evaluation.images": options.images}
    given |= {"evaluation.strong": 0, "evaluation.checks": False}  # AutoAttack comes after it
    base = pwoa.load_recipe(preset)
    if options.teacher:
        given |= {"teacher.checkpoint": options.teacher, "teacher.architecture": base.teacher.architecture}
    given |= {"data.folder": options.data_folder} if options.data_folder else {}
    return base.with_settings(given).with_settings(options.settings)


def _about(recipe: pwoa.Recipe, preset: str, options: argparse.Namespace) -> Row:
    """Return what tells a row from the others."""
    return {
        "dataset": recipe.data.name,
        "architecture": recipe.teacher.architecture,
        "teacher": Path(recipe.teacher.checkpoint).stem,
        "preset": preset,
        "augment": recipe.data.augment,
        "batch": recipe.training.batch,
        "allocation": recipe.sparsity.allocation,
        "budget": recipe.sparsity.budget,
        "rate": recipe.sparsity.rate,
        "seed": recipe.training.seed,
        "epochs": epochs_of(recipe),
        "settings": options.settings,
    }


def _row(about: Row, result: Result, wall: float | None, options: argparse.Namespace, progress: Progress) -> Row:
    summary = result.summary
    scores = strongest(result, options.autoattack, progress) if options.autoattack else None
    return {
        **about,
        "weights_rate": round(summary["rate"], 3),
        "macs_rate": round(summary["macs_rate"], 3),
        "example_free": summary["example_free"],
        **rounded({name: summary["pruned"][name] for name in ATTACKS}),
        **{f"teacher_{name}": value for name, value in rounded(summary["teacher"]).items() if name in ATTACKS},
        "autoattack": round(scores["autoattack"], 2) if scores else None,
        "n": summary["images"],
        "n_autoattack": scores.images if scores else 0,
        "training_seconds": round(summary["training_seconds"], 1),
        "wall_seconds": wall,
        "device": summary["device"],
    }


def strongest(result: Result, images: int, progress: Progress) -> Scores:
    """Measure a run under AutoAttack, in a folder of its own within it."""
    return pwoa.evaluate(
        str(result.folder),
        attacks="autoattack",
        images=images,
        checks=False,
        settings={"evaluation.strong": 0},
        folder=result.folder / "autoattack",
        progress=progress,
    )


def robust_table(path: Path) -> str:
    """Return a table for each network: by preset, budget and rate, mean ± standard deviation over the seeds."""
    return _tables([row for row in load_rows(path) if is_current(row)], path)


def before_table(path: Path) -> str:
    """Return the same of rows from before the presets had the augmentation and the batches that they have now."""
    return _tables([row for row in load_rows(path) if not is_current(row)], path)


def is_current(row: Row) -> bool:
    """Tell whether a row has the augmentation and the batches of its preset as it is now."""
    return (row["augment"], row["batch"]) == _images_of(row["preset"])


@cache
def _images_of(preset: str) -> tuple[str, int]:
    recipe = pwoa.load_recipe(preset)
    return recipe.data.augment, recipe.training.batch


def _tables(rows: Sequence[Row], path: Path) -> str:
    networks: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        networks.setdefault((row["dataset"], row["architecture"], row["teacher"]), []).append(row)
    dense = {
        (row["dataset"], row["architecture"], Path(row["teacher"]).stem): row["autoattack"]
        for row in load_rows(path.with_name("competition.json"))
        if row["method"] == TEACHER and row.get("n_autoattack") == AUTOATTACK
    }
    return "\n\n".join(_table_of_network(rows, dense.get(network)) for network, rows in networks.items())


AIMS = {
    "weights": {4.0: 47.2, 8.0: 46.5, 16.0: 45.0, 64.0: 35.0, 100.0: 29.0},
    "macs": {4.0: 46.8, 8.0: 45.0, 16.0: 41.0},
}
"""What was aimed at under CW, by budget and rate, on the ResNet-18 whose teacher has 47.54."""


def as_it_is(row: Row) -> bool:
    """Tell whether a row is of the preset for CIFAR-10 with its own allocation, or that for multiply-adds."""
    own = row["preset"] == ROBUST and row["allocation"] in ("lamp", "lamp-macs")
    return own and is_current(row) and not other_settings(row)


def aims_table(path: Path) -> str:
    """Return what the preset for CIFAR-10 was to keep under CW, and what it keeps."""
    measured = [row for row in load_rows(path) if as_it_is(row) and row["architecture"] == "resnet18"]
    lines = []
    for budget, aims in AIMS.items():
        for rate, aim in aims.items():
            own = [row for row in measured if (row["budget"], row["rate"]) == (budget, rate)]
            for epochs in dict.fromkeys(row["epochs"] for row in own):
                found = [row["cw"] for row in own if row["epochs"] == epochs]
                difference = f"{statistics.mean(found) - aim:+.2f}".replace("-", "−")
                strong = mean_and_deviation([row["autoattack"] for row in own if row["epochs"] == epochs])
                values = [mean_and_deviation(found), difference, str(len(found)), strong]
                lines.append([budget, f"{rate:g}", epochs, f"{aim:.1f}", *values])
    return markdown(["budget", "rate", "epochs", "aim", "CW", "difference", "seeds", attack_label("autoattack")], lines)


def _table_of_network(measured: Sequence[Row], strongest: float | None) -> str:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(measured, key=lambda row: (row["preset"], row["budget"] == "macs", row["rate"])):
        own = (row["augment"], row["batch"], _settings_text(row))
        key = (row["preset"], row["budget"], row["rate"], row["allocation"], row["epochs"], *own)
        groups.setdefault(key, []).append(row)
    columns = (*ATTACKS, "autoattack")
    head = ["preset", "allocation", "epochs", "weights", "multiply-adds", *map(attack_label, columns), "seeds"]
    first = measured[0]
    of_teacher = [f"{first[f'teacher_{name}']:.2f}" for name in ATTACKS] + [f"{strongest:.2f}" if strongest else ""]
    lines = [["teacher", "", "", "1", "1", *of_teacher, ""]]
    for (preset, budget, _, allocation, epochs, *_, settings), of_group in groups.items():
        name = f"`{preset}`" + (f", {settings}" if settings else "")
        rates = [f"{of_group[0][key]:.4g}×" for key in ("weights_rate", "macs_rate")]
        rates[budget == "macs"] = f"**{rates[budget == 'macs']}**"
        values = [[row[name] for row in of_group if row[name] is not None] for name in columns]
        cells = [mean_and_deviation(of_column) if of_column else "" for of_column in values]
        lines.append([name, allocation, epochs, *rates, *cells, str(len({row["seed"] for row in of_group}))])
    attacked = max(len([row for row in own if row["autoattack"] is not None]) for own in groups.values())
    return (
        f"{first['architecture']} on {first['dataset']}, {first['n']:,} test images (AutoAttack: "
        f"{max(row['n_autoattack'] for row in measured):,}, of {'one seed' if attacked < 2 else 'all seeds'}), "
        f"{', '.join(dict.fromkeys(row['device'] for row in measured))}; accuracy in percent, and "
        "how many times fewer weights and multiply-adds there are, in bold the budget that was set:\n\n"
        + markdown(head, lines)
    )


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.set_defaults(out=Path("runs/robust/rows.json"))
    parser.add_argument("--presets", nargs="+", default=[ROBUST], help="as cifar10-robust cifar10")
    parser.add_argument("--teacher", help="the robust teacher (default: the preset's)")
    parser.add_argument("--rates", type=float, nargs="+", default=[4.0, 8.0, 16.0, 64.0, 100.0])
    parser.add_argument("--budget", choices=["weights", "macs"], default="weights", help="what the rate counts")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=0, help="of all attacks but AutoAttack; 0 is all")
    parser.add_argument("--autoattack", type=int, default=AUTOATTACK, help="images of AutoAttack; 0 leaves it out")
    parser.add_argument("--data-folder", help="the data set's official files")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=60.0, help="no run begins after this time")
    parser.add_argument("--runs", type=Path, default=Path("runs/robust"))
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
