"""Prune public robust MNIST checkpoints through the Python interface, most of them with networks of the user.

    python -m benchmarks.public_checkpoints --models MODELS --out results/public-checkpoints.json

A row for each checkpoint. One that was trained naturally must be refused, and its row says why.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from torch import nn

import pwoa
from benchmarks.mnist_networks import kwsmall, lenet5
from benchmarks.rows import Row, keep_rows, one_line, option_parser, rounded

CHECKPOINTS: dict[str, str | Callable[[], nn.Module]] = {
    "mnist_smallcnn_TRADES_official_linf0.3.pt": "smallcnn",
    "mnist_lenet5_advertorch_pgd_linf0.3.pt": lenet5,
    "mnist_kwsmall_fastadv_pgd_linf0.3.pt": kwsmall,
    "mnist_lenet5_advertorch_CLEAN.pt": lenet5,
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each checkpoint."""
    data = pwoa.load_data(options.data)
    whole = pwoa.load_data("mnist", data_folder=options.mnist) if options.mnist else None
    settings = {"training.batch": 64, "search.learning_rate": 0.001, "finetune.learning_rate": 0.001}
    for file, network in CHECKPOINTS.items():
        architecture = network if isinstance(network, str) else network()
        teacher = pwoa.load_model(options.models / file, data, architecture=architecture)
        row: Row = {"checkpoint": file, "data": options.data}
        if whole:
            scores = pwoa.evaluate(teacher, whole, attacks="natural", checks=False)
            row["natural_full_test"] = scores["natural"]
        try:
            folder = options.runs / Path(file).stem
            result = pwoa.prune(teacher, data, rate=options.rate, settings=settings, folder=folder)
        except pwoa.InputError as error:
            yield {**row, "refused": str(error)}
            continue
        summary = result.summary
        for name, model in (("teacher", teacher), ("pruned", result.model)):
            place = options.runs / f"{folder.name}-{name}-autoattack"
            scores = pwoa.evaluate(model, data, attacks="autoattack", images=options.autoattack, folder=place)
            row |= rounded({**summary[name], "autoattack": scores["autoattack"]}, f"{name}_")
        row |= {"rate": summary["rate"], "images": summary["images"], "seconds": round(summary["training_seconds"], 1)}
        yield {**row, "n_autoattack": options.autoattack, "device": summary["device"]}


@one_line()
def main() -> None:
    """Prune every checkpoint."""
    parser = option_parser(__doc__)
    parser.add_argument("--models", type=Path, required=True, help="the folder with the checkpoints")
    parser.add_argument("--data", default="mnist-mini")
    parser.add_argument("--mnist", help="the official MNIST files, for natural accuracy on the whole test set")
    parser.add_argument("--runs", type=Path, default=Path("runs/public"))
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--autoattack", type=int, default=1000, metavar="N", help="on how many images it is run")
    options = parser.parse_args()
    keep_rows(rows(options), options.out)


if __name__ == "__main__":
    main()
