"""Measure the paper's claim on MNIST: the embedded LeNet, 4× smaller, by cross-entropy and by PwoA.

    python -m benchmarks.mnist_rate4 --data-folder MNIST --out results/mnist-rate4.json

Runs the preset `mnist`, which has the paper's parameters, on the full data set; a row for each model and seed.
AutoAttack is on the first 1,000 test images.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pwoa
from benchmarks.rows import Row, keep_rows, one_line, option_parser, rounded
from pwoa.demo import NAIVE
from pwoa.evaluation.folder import OF_TEACHER
from pwoa.progress import ConsoleProgress, Progress

COLUMNS = ("natural", "fgsm", "pgd10", "pgd20", "cw", "autoattack")
MEASURED = {
    "evaluation.attacks": COLUMNS,
    "evaluation.long": 1000,
    "evaluation.strong": 0,
    "evaluation.checks": False,
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield for each seed the rows of the teacher, of naive pruning and of PwoA."""
    progress = ConsoleProgress() if sys.stdout.isatty() else Progress()
    recipe = pwoa.load_recipe(options.recipe).with_settings(MEASURED).with_settings(options.settings)
    if options.data_folder:
        recipe = recipe.with_settings({"data.folder": options.data_folder})
    for seed in options.seeds:
        measured: Path | None = None
        for name, settings in (("ce", NAIVE), ("pwoa", {})):
            result = pwoa.prune(
                recipe=recipe,
                settings={**settings, "training.seed": seed},
                folder=f"{options.runs}/{name}-{seed}",
                teacher_evaluation=measured,
                progress=progress,
            )
            summary = result.summary
            images = {"n": summary["images"], "n_autoattack": summary["fewer"].get("autoattack", summary["images"])}
            about = {**images, "device": summary["device"]}
            if measured is None:
                measured = result.folder / OF_TEACHER
                yield _row("teacher", seed, summary["teacher"], rate=1.0, seconds=0.0, **about)
            seconds = round(summary["training_seconds"], 1)
            yield _row(name, seed, summary["pruned"], rate=summary["rate"], seconds=seconds, **about)


def _row(model: str, seed: int, accuracies: Mapping[str, float], **rest: object) -> Row:
    return {"model": model, "seed": seed, **rounded({column: accuracies[column] for column in COLUMNS}), **rest}


@one_line()
def main() -> None:
    """Prune with every seed."""
    parser = option_parser(__doc__)
    parser.add_argument("--data-folder", help="the official MNIST files (default: as `pwoa data get mnist` finds them)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", default="runs/mnist-rate4")
    parser.add_argument("--recipe", default="mnist")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="SECTION.KEY=VALUE")
    options = parser.parse_args()
    keep_rows(rows(options), options.out)


if __name__ == "__main__":
    main()
