"""Train robust teachers from scratch: a preset, or variants of it, one row each.

    python -m benchmarks.teachers --recipe teacher-cifar10 --data-folder CIFAR10 --out results/teachers.json
    python -m benchmarks.teachers --recipe teacher-cifar10 --data-folder CIFAR10 --out tries.json --minutes 10 \
        --set pretrain.epochs=7 --variants "cold:pretrain.warmup=0" "warm:pretrain.warmup=2"

A variant is a name, and after a colon the settings it changes, with commas between. Rows are saved after each
training. Names that are in the file already are skipped, and no training begins after `--minutes`. `seconds` are from
loading the data to the last attack on the test images. A training that was killed goes on in its folder under `--runs`;
its seconds are then those of the part that was left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pwoa
from benchmarks.rows import Row, keep_rows, load_rows, one_line, option_parser, rounded
from pwoa.models.checkpoints.folder import WEIGHTS
from pwoa.progress import ConsoleProgress, Progress
from pwoa.runs.folder import Run

ATTACKS = ("natural", "pgd20", "cw")


@one_line()
def main(words: Sequence[str] | None = None, progress: Progress | None = None) -> None:
    """Train every variant that has no row yet."""
    options = _options(words)
    keep_rows(rows(options, progress or ConsoleProgress()), options.out)


def rows(options: argparse.Namespace, progress: Progress) -> Iterator[Row]:
    """Yield a row for each variant that the file does not have, as far as the time goes."""
    began = time.monotonic()
    present = {row["name"] for row in load_rows(options.out)}
    for variant in options.variants or [options.recipe]:
        name, _, changes = variant.partition(":")
        if name in present:
            continue
        if time.monotonic() - began > 60 * options.minutes:
            progress.say(f"{options.minutes:g} minutes are over; stopped before {name}")
            return
        yield train(name, [*options.settings, *filter(None, changes.split(","))], options, progress)


def train(name: str, settings: list[str], options: argparse.Namespace, progress: Progress) -> Row:
    """Train one teacher and return its row."""
    given = [*settings, *([f"data.folder={json.dumps(options.data_folder)}"] if options.data_folder else [])]
    recipe = pwoa.load_recipe(options.recipe).with_settings({"evaluation.attacks": ATTACKS}).with_settings(given)
    start, folder = time.monotonic(), options.runs / name.replace(" ", "-")
    summary = pwoa.pretrain(recipe=recipe, folder=folder, progress=progress).summary
    last = Run(folder).metrics()[-1]
    with (folder / WEIGHTS).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "name": name,
        "recipe": options.recipe,
        **{key: summary[key] for key in ("dataset", "architecture", "method", "epochs")},
        **rounded(summary["accuracy"]),
        "seconds": round(time.monotonic() - start, 1),
        "images": summary["images"],
        "selected_epoch": summary["selected_epoch"],
        "last_training_accuracy": round(last["train"]["accuracy"], 2),
        "settings": settings,
        "seed": summary["seed"],
        "device": summary["device"],
        "sha256": sha256,
    }


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.set_defaults(out=Path("runs/teachers/rows.json"))
    parser.add_argument("--recipe", default="teacher-cifar10", help="the preset that all start from")
    parser.add_argument("--data-folder", help="the data set's official files")
    parser.add_argument("--variants", nargs="+", metavar="NAME:KEY=VALUE,…", help="default: the preset as it is")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=60.0, help="no training begins after this time")
    parser.add_argument("--runs", type=Path, default=Path("runs/teachers"))
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
