"""Sizes of exported models: the embedded LeNet and a ResNet-18, pruned by magnitude, as every kind but C.

`python -m benchmarks.export_sizes --mnist FOLDER --resnet FILE --data-folder FOLDER --out results/export.json`
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, keep_rows, one_line, option_parser
from pwoa.data.load import load_data
from pwoa.deploy.export import write
from pwoa.deploy.original import Original
from pwoa.models.load import load_model
from pwoa.recipe import SparsityRecipe
from pwoa.sparsity import Constraint, Masks

KINDS: tuple[tuple[str, str | None], ...] = (
    ("packed", "float32"),
    ("packed", "float16"),
    ("packed", "int8"),
    ("onnx", None),
    ("int8", None),
)


def measure(network: str, source: str, data: Any, rates: Sequence[float], images: int) -> Iterator[Row]:
    """Give a row for each kind of artefact of a network at each rate; rate 1 is the network as it is."""
    for rate in rates:
        model = load_model(source, data)
        if rate > 1:
            Masks(Constraint.of(model, SparsityRecipe(rate=rate))).choose()
        original = Original.of(model, data, images=images)
        for kind, values in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                made = write(original, kind, Path(folder), values)
            assert made.check is not None
            yield {
                "network": network,
                "rate": original.about["rate"],
                "kind": kind,
                "values": values,
                "bytes": made.bytes,
                "dense_bytes": made.dense_bytes,
                **vars(made.check),
            }


def main() -> None:
    """Measure as the command line says."""
    parser = option_parser(__doc__)
    parser.add_argument("--mnist", required=True, help="the official MNIST files")
    parser.add_argument("--data-folder", required=True, help="the official CIFAR-10 files")
    parser.add_argument("--resnet", required=True, help="a checkpoint of a ResNet-18 for CIFAR-10")
    parser.add_argument("--images", type=int, default=2000, help="CIFAR-10 test images to compare on")
    options = parser.parse_args()
    with one_line():
        mnist = load_data("mnist", data_folder=options.mnist)
        keep_rows(measure("LeNet, embedded", "embedded", mnist, (1, 10, 16), 10_000), options.out)
        cifar = load_data("cifar10", data_folder=options.data_folder)
        keep_rows(measure("ResNet-18, TRADES", options.resnet, cifar, (1, 10), options.images), options.out)


if __name__ == "__main__":
    main()
