"""Prune public robust MNIST checkpoints through the Python interface, most with networks of the user's own.

    python benchmarks/public_checkpoints.py --models MODELS > results/public-checkpoints.json

Prints a row a checkpoint; one that was trained naturally must be refused, and its row says why.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from mnist_networks import kwsmall, lenet5

import pwoa
from pwoa.errors import one_line
from pwoa.models.architectures.registry import build
from pwoa.storage import rows_text

CHECKPOINTS = {
    "mnist_smallcnn_TRADES_official_linf0.3.pt": partial(build, "smallcnn", 10, 1),
    "mnist_lenet5_advertorch_pgd_linf0.3.pt": lenet5,
    "mnist_kwsmall_fastadv_pgd_linf0.3.pt": kwsmall,
    "mnist_lenet5_advertorch_CLEAN.pt": lenet5,
}


@one_line()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True, help="the folder with the checkpoints")
    parser.add_argument("--data", default="mnist-mini")
    parser.add_argument("--mnist", help="the official MNIST files, for natural accuracy on the whole test set")
    parser.add_argument("--runs", type=Path, default=Path("runs/public"))
    parser.add_argument("--rate", type=float, default=4.0)
    options = parser.parse_args()
    data = pwoa.load_data(options.data)
    whole = pwoa.load_data("mnist", folder=options.mnist) if options.mnist else None
    settings = {"training.batch": 64, "search.learning_rate": 0.001, "finetune.learning_rate": 0.001}
    rows = []
    for file, network in CHECKPOINTS.items():
        teacher = pwoa.load_model(network(), options.models / file, data)
        row: dict[str, object] = {"checkpoint": file, "data": options.data}
        if whole:
            scores = pwoa.evaluate(teacher, whole, attacks="natural", checks=False)
            row["natural_full_test"] = scores["natural"]
        try:
            folder = options.runs / Path(file).stem
            result = pwoa.prune(teacher, data, rate=options.rate, settings=settings, folder=folder)
        except pwoa.InputError as error:
            rows.append({**row, "refused": str(error)})
            continue
        found = result.summary
        for model in ("teacher", "pruned"):
            row |= {f"{model}_{attack}": round(value, 2) for attack, value in found[model].items()}
        row |= {"rate": found["rate"], "images": found["images"], "seconds": round(found["training_seconds"], 1)}
        rows.append({**row, "device": found["device"]})
    print(rows_text(rows), end="")


if __name__ == "__main__":
    main()
