"""The paper's claim on MNIST: the embedded LeNet, 4× smaller, by cross-entropy and by PwoA.

    python benchmarks/mnist_rate4.py --folder MNIST_FOLDER > results/mnist-rate4.json

Runs the preset `mnist` (the paper's parameters) on the full data set; prints one row a model and seed.
"""

from __future__ import annotations

import argparse
import json
import sys

import pwoa
from pwoa.demo import NAIVE
from pwoa.errors import one_line
from pwoa.progress import ConsoleProgress, Progress
from pwoa.storage import rows_text

COLUMNS = ("natural", "fgsm", "pgd10", "pgd20", "cw")


@one_line()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="the official MNIST files (default: as `pwoa data get mnist` finds them)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", default="runs/mnist-rate4")
    parser.add_argument("--recipe", default="mnist")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    options = parser.parse_args()

    progress = ConsoleProgress() if sys.stdout.isatty() else Progress()
    recipe = pwoa.load_recipe(options.recipe).with_settings(options.settings)
    if options.folder:
        recipe = recipe.with_settings({"data.folder": options.folder})
    rows = []
    for seed in options.seeds:
        teacher: dict[str, float] | None = None
        for name, settings in (("ce", NAIVE), ("pwoa", {})):
            result = pwoa.prune(
                recipe=recipe,
                settings={**settings, "training.seed": seed},
                folder=f"{options.runs}/{name}-{seed}",
                teacher_scores=teacher,
                progress=progress,
            )
            found = result.summary
            if teacher is None:
                teacher = found["teacher"]
                rows.append(_row("teacher", seed, found["teacher"], rate=1.0, seconds=0.0, device=found["device"]))
            seconds = round(found["training_seconds"], 1)
            rows.append(_row(name, seed, found["pruned"], rate=found["rate"], seconds=seconds, device=found["device"]))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(rows_text(rows), end="")


def _row(model: str, seed: int, scores: dict[str, float], **rest: object) -> dict[str, object]:
    return {"model": model, "seed": seed, **{column: round(scores[column], 2) for column in COLUMNS}, **rest}


if __name__ == "__main__":
    main()
