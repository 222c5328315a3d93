"""The paper's claim on MNIST: the embedded LeNet, 4× smaller, by cross-entropy and by PwoA.

    python benchmarks/mnist_rate4.py --folder MNIST_FOLDER > results/mnist-rate4.json

Runs the preset `mnist` (the paper's parameters) on the full data set; prints one row a model and seed.
"""

from __future__ import annotations

import argparse
import json
import sys

import pwoa
from pwoa.evaluation import Scores
from pwoa.progress import ConsoleProgress, Progress

CE = {
    "objective.distillation": 0.0,
    "objective.hsic_x": 0.0,
    "objective.hsic_y": 0.0,
    "objective.classification": 1.0,
}
COLUMNS = ("natural", "fgsm", "pgd10", "pgd20", "cw")


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
    teacher: Scores | None = None
    for seed in options.seeds:
        for name, settings in (("ce", CE), ("pwoa", {})):
            result = pwoa.prune(
                recipe=recipe,
                settings={**settings, "training.seed": seed},
                folder=f"{options.runs}/{name}-{seed}",
                teacher_scores=teacher,
                progress=progress,
            )
            found = result.summary
            if teacher is None:
                teacher = Scores(found["teacher"], found["images"], 0.0)
                rows.append({"model": "teacher", "seed": None, **_scores(found, "teacher"), "rate": 1.0, "seconds": 0.0})
            row = {"model": name, "seed": seed, **_scores(found, "pruned"), "rate": found["rate"]}
            rows.append({**row, "seconds": round(found["training_seconds"], 1)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    for row in rows:
        row["device"] = found["device"]
    print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")


def _scores(found: dict[str, dict[str, float]], model: str) -> dict[str, float]:
    return {column: round(found[model][column], 2) for column in COLUMNS}


if __name__ == "__main__":
    main()
