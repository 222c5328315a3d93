"""The terms that compare: self-distillation L_D (the paper's Problem `prune-kd`) and cross-entropy L_CE on logits, and
the distance of hidden layers from the teacher's, which the paper does not have."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy with the labels."""
    return F.cross_entropy(logits, labels)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return τ² E_X[KL(h^τ(X), T^τ(X))]: the mean over images of the divergence summed over classes.

    At τ = 30 this is close to ‖centred difference of logits‖² / (2 · classes), in either direction of KL.
    """
    ours = F.log_softmax(student / temperature, dim=1)
    theirs = F.log_softmax(teacher / temperature, dim=1)
    return F.kl_div(theirs, ours, reduction="batchmean", log_target=True) * temperature**2


FLOOR = 0.05
"""So much of the layer's mean square is added to that of each channel: some channels of a teacher are nearly dead."""


def mean_squares(layers: Sequence[Tensor], by_channel: bool = True) -> list[Tensor]:
    """Return what differences in hidden layers are relative to: the mean square of each channel, or of the layer."""
    squares = [_over_channels(layer.float().square()) for layer in layers]
    means = [square.mean() for square in squares]
    pairs = zip(squares, means, strict=True)
    return [square + FLOOR * mean if by_channel else mean.expand_as(square).clone() for square, mean in pairs]


def matching(student: Sequence[Tensor], teacher: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Return Σ_l mean((z_l − t_l)² / s_l) of hidden layers, relative to `mean_squares` of the teacher's."""
    distances: list[Tensor] = [
        _Distance.apply(*layer)  # type: ignore[no-untyped-call]
        for layer in zip(student, teacher, scales, strict=True)
    ]
    return sum(distances[1:], start=distances[0])


class _Distance(torch.autograd.Function):
    """mean((z − t)² / s) in float32, its gradient one product: layers are large, and what is written down costs."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, t: Tensor, scale: Tensor) -> Tensor:
        mixed = torch.promote_types(z.dtype, t.dtype) == torch.float32  # as of bfloat16 and float16: no copies
        difference = z - t if mixed else z.float() - t.float()
        ctx.save_for_backward(difference, scale)
        ctx.dtype = z.dtype
        return (_over_channels(difference.square()) / scale).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        difference, scale = ctx.saved_tensors
        of_channel = gradient / len(scale) / scale / (difference.numel() // len(scale))
        shape = [-1, *(1,) * (difference.dim() - 2)] if difference.dim() == 4 else [-1]
        of_layer = torch.empty_like(difference, dtype=ctx.dtype)
        return torch.mul(difference, (2 * of_channel).view(shape), out=of_layer), None, None


def _over_channels(values: Tensor) -> Tensor:
    """Return the mean for each channel: of images [n, channels, height, width], else of [..., channels]."""
    channel = 1 if values.dim() == 4 else values.dim() - 1
    return values.mean([axis for axis in range(values.dim()) if axis != channel])
