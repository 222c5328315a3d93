"""A network as a short list of fused operators.

Convolutions and linear layers take in the batch normalisation after them, the sum they are part of, and the ReLU. Each
operator writes one value; value 0 is the image.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor
from torch.nn import functional as F

Pair = tuple[int, int]
Shape = tuple[int, ...]
"""(channels, height, width), or (numbers,) of a flat value."""


@dataclass
class Operator:
    """y = relu(f(input) + residual), where f is of the kind and the others are parts of it that are not always there.

    kind: `convolution`, `linear`, `affine` (scale and shift of each channel), `maximum`, `average`, `mean` (of whole
    planes) or `flatten`. pooled: a convolution ends with the largest of each two by two places.
    """

    kind: str
    input: int
    output: int
    residual: int | None = None
    relu: bool = False
    weight: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    pooled: bool = False

    @property
    def pace(self) -> Pair:
        """Return how many rows and columns of its input it goes on for the next place of its output."""
        return (2 * self.stride[0], 2 * self.stride[1]) if self.pooled else self.stride

    @property
    def reach(self) -> Pair:
        """Return how many rows and columns there are from the first to the last that it reads for a place."""
        reach = [d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True)]
        more = self.stride if self.pooled else (0, 0)
        return reach[0] + more[0], reach[1] + more[1]

    @property
    def inputs(self) -> tuple[int, ...]:
        """Return the values that it reads."""
        return (self.input,) if self.residual is None else (self.input, self.residual)


@dataclass
class Graph:
    """Operators in the order in which they run, the shape of each value, and which value is the logits."""

    operators: list[Operator] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    output: int = 0

    def run(self, x: Tensor) -> Tensor:
        """Compute the logits with torch: what the operators mean, in a few lines."""
        values = {0: x}
        for op in self.operators:
            y = _MEANINGS[op.kind](values[op.input], op)
            if op.residual is not None:
                y = y + values[op.residual]
            values[op.output] = F.relu(y) if op.relu else y
        return values[self.output]

    def multiply_adds(self) -> int:
        """Count the multiply-adds of an image by weights that are not zero."""
        total = 0
        for op in self.operators:
            if op.weight is not None:
                places = math.prod(self.shapes[op.output][1:]) if op.kind == "convolution" else 1
                places *= 4 if op.pooled else 1
                total += int(op.weight.count_nonzero()) * places
        return total


def _affine(x: Tensor, op: Operator) -> Tensor:
    shape = (1, -1) + (1,) * (x.dim() - 2)
    return x * cast(Tensor, op.scale).view(shape) + cast(Tensor, op.shift).view(shape)


def _convolution(x: Tensor, op: Operator) -> Tensor:
    y = F.conv2d(x, cast(Tensor, op.weight), op.shift, op.stride, op.padding, op.dilation, op.groups)
    return F.max_pool2d(y, 2) if op.pooled else y


_MEANINGS: dict[str, Callable[[Tensor, Operator], Tensor]] = {
    "convolution": _convolution,
    "linear": lambda x, op: F.linear(x, cast(Tensor, op.weight), op.shift),
    "affine": _affine,
    "maximum": lambda x, op: F.max_pool2d(x, op.kernel, op.stride, op.padding),
    "average": lambda x, op: F.avg_pool2d(x, op.kernel, op.stride, op.padding),
    "mean": lambda x, op: x.mean((2, 3), keepdim=True),
    "flatten": lambda x, op: x.flatten(1),
}
