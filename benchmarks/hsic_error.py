"""Measure what HSIC of bfloat16 activations loses: values and gradients against float64, in each layer of a ResNet-18.

    python -m benchmarks.hsic_error --checkpoint resnet18.pt --data-folder CIFAR10 --out rows.json

All start from the same activations, rounded to bfloat16. A row has the layer, the dtype of the products, and relative
errors of HSIC(X, Z) and HSIC(Y, Z) (`value_x`, `value_y`) and of their gradients (`gradient_x`, `gradient_y`). A
gradient in bfloat16 is rounded to 2⁻⁹ at best, which is 0.0022 in this norm.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor

import pwoa
from benchmarks.rows import Row, cifar10_parser, keep_rows, one_line
from pwoa.devices import choose_device, device_name
from pwoa.models.hidden import hidden_points, recording
from pwoa.objectives.hsic import bottleneck


def measured(x: Tensor, y: Tensor, z: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Return HSIC(X, Z), HSIC(Y, Z) and their gradients, in float64."""
    z = z.to(dtype).requires_grad_()
    values = bottleneck(x.to(dtype) if dtype == torch.float64 else x, y, [z])
    gradients = [torch.autograd.grad(value.sum(), z, retain_graph=True)[0] for value in values]
    return [value.detach().double() for value in (*values, *gradients)]


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each layer and dtype."""
    device = choose_device(given.device)
    data = pwoa.load_data("cifar10", data_folder=given.data_folder).to(device)
    model = pwoa.load_model(given.checkpoint, data, architecture="resnet18").to(device)
    x, y = data.test.batch(torch.arange(given.images, device=device))
    points = hidden_points(model, x[:2])
    with torch.no_grad(), recording(model, points) as hidden:
        model(x)
    for point in points:
        z = hidden[point].bfloat16()
        z = z.contiguous(memory_format=torch.channels_last) if z.dim() == 4 else z
        exact = measured(x, y, z, torch.float64)
        for dtype in (torch.float32, torch.bfloat16):
            errors = [(a - b).norm() / b.norm() for a, b in zip(measured(x, y, z, dtype), exact, strict=True)]
            names = ("value_x", "value_y", "gradient_x", "gradient_y")
            figures = {name: float(f"{error.item():.2g}") for name, error in zip(names, errors, strict=True)}
            shared = {"layer": point, "values": z[0].numel(), "dtype": str(dtype).removeprefix("torch.")}
            yield {**shared, **figures, "images": given.images, "device": device_name(device)}


@one_line()
def main() -> None:
    """Measure every layer."""
    parser = cifar10_parser(__doc__)
    parser.add_argument("--checkpoint", required=True, help="a ResNet-18 for CIFAR-10")
    parser.add_argument("--images", type=int, default=256)
    given = parser.parse_args()
    keep_rows(rows(given), given.out)


if __name__ == "__main__":
    main()
