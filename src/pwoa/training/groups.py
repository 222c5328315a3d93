"""Batch normalisation over groups of images, so that its statistics do not depend on how a batch is cut up.

HSIC is estimated over groups of 128 images, the published batch; here batch normalisation is too. Then a batch of
1,024 images, the same batch in four parts on a small card, and the same batch over eight processes have the same
statistics. Running statistics take the mean over the groups of a batch.

Averaged weights need statistics of their own: the noise that averaging takes out of the weights is missing in what they
compute, so that the averaged statistics of the weights on the way are too large, layer upon layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_KINDS: dict[type[nn.Module], type[nn.Module]] = {}


@dataclass
class Plan:
    """How a batch is cut up: the size of a group, and which of how many parts of the batch is at hand.

    images: how many images of the batch are in that part (0: as many as a layer is given). A layer that is given more,
    as when a method passes each image with its adversarial one, has as many groups, and each of them is larger.
    """

    group: int
    part: int = 0
    parts: int = 1
    images: int = 0

    def groups(self, given: int) -> int:
        """Return how many groups the images that a layer is given are cut into."""
        images = self.images or given
        size = min(self.group, images)
        if images % size or given % (images // size):
            raise ValueError(f"{given} images cannot be cut into groups of {size}")
        return images // size

    def momentum(self, momentum: float) -> float:
        """Return what the running statistics take of this part's mean, for all parts to weigh the same in the end.

        After parts 0 … k − 1 with weights aᵢ = (m/k) / (1 − (k − 1 − i) m/k) the old value has kept 1 − m, and
        each part has m/k.
        """
        share = momentum / self.parts
        return share / (1 - (self.parts - 1 - self.part) * share)

    @contextmanager
    def undivided(self, images: int = 0) -> Iterator[None]:
        """While inside, what comes is a whole batch of so many images."""
        kept, (self.part, self.parts, self.images) = (self.part, self.parts, self.images), (0, 1, images)
        try:
            yield
        finally:
            self.part, self.parts, self.images = kept


@contextmanager
def grouped(model: nn.Module, plan: Plan) -> Iterator[None]:
    """While inside, the batch normalisation layers of a model go by the plan in training mode."""
    layers = layers_by_groups(model)
    for layer in layers:
        layer.__class__ = _KINDS[type(layer)]
        object.__setattr__(layer, "plan", plan)
    try:
        yield
    finally:
        plain = {kind: original for original, kind in _KINDS.items()}
        for layer in layers:
            layer.__class__ = plain[type(layer)]
            del layer.__dict__["plan"]


def layers_by_groups(model: nn.Module) -> list[nn.Module]:
    """Return the batch normalisation layers that `grouped` changes, also while it does."""
    kinds = (*_KINDS, *_KINDS.values())
    return [module for module in model.modules() if type(module) in kinds and module.momentum is not None]


def layers_with_statistics(model: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    """Return the batch normalisation layers that keep running statistics."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    return [each for each in model.modules() if isinstance(each, kinds) and each.num_batches_tracked is not None]


@contextmanager
def statistics_anew(model: nn.Module) -> Iterator[Callable[[], None]]:
    """While inside, a model takes new running statistics: the means over the passes in training mode.

    What it gives is to be called after each pass. The passes themselves leave their own statistics (of the last use of
    a layer that is used twice), so that each does the same and one that is recorded can be replayed.
    """
    layers = layers_with_statistics(model)
    kept = [(layer.momentum, layer.get_buffer("num_batches_tracked").clone()) for layer in layers]
    values = [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var) if buffer is not None]
    sums = [torch.zeros_like(value, dtype=torch.float64) for value in values]
    passes = 0

    def note() -> None:
        nonlocal passes
        passes += 1
        torch._foreach_add_(sums, values)

    for layer in layers:
        layer.momentum = 1.0
    try:
        yield note
    finally:
        for value, total in zip(values, sums, strict=True):
            value.copy_(total / passes if passes else value)
        for layer, (momentum, tracked) in zip(layers, kept, strict=True):
            layer.momentum = momentum
            layer.get_buffer("num_batches_tracked").copy_(tracked)


class _Grouped:
    """What a batch normalisation layer becomes for a while; its parameters and buffers stay where they are."""

    def forward(self, x: Tensor) -> Tensor:
        layer: nn.BatchNorm2d = self  # type: ignore[assignment]
        plan: Plan = layer.__dict__["plan"]
        if not layer.training:
            mean, variance = layer.running_mean, layer.running_var
            return F.batch_norm(x, mean, variance, layer.weight, layer.bias, mean is None, 0.0, layer.eps)
        count = plan.groups(len(x))
        groups = x.view(count, len(x) // count, *x.shape[1:])
        groups = groups if x.dtype == torch.float64 else groups.float()
        over = [1, *range(3, groups.dim())]
        variance, mean = torch.var_mean(groups, over, correction=0, keepdim=True)
        self._note(mean.detach(), variance.detach(), groups.shape[1] * groups[0, 0, 0].numel(), plan)
        scale = torch.rsqrt(variance + layer.eps)
        shape = [1, 1, -1, *(1,) * (groups.dim() - 3)]
        if layer.weight is not None:
            scale = scale * layer.weight.view(shape)
        shift = -mean * scale
        if layer.bias is not None:
            shift = shift + layer.bias.view(shape)
        return torch.addcmul(shift, groups, scale).to(x.dtype).flatten(0, 1)

    @torch.no_grad()
    def _note(self, mean: Tensor, variance: Tensor, values: int, plan: Plan) -> None:
        layer: nn.BatchNorm2d = self  # type: ignore[assignment]
        if layer.running_mean is None or layer.running_var is None:
            return
        if plan.part == 0 and layer.num_batches_tracked is not None:
            layer.num_batches_tracked += 1
        assert layer.momentum is not None  # `grouped` leaves those out
        momentum = plan.momentum(layer.momentum)
        layer.running_mean.lerp_(mean.mean(0).flatten(), momentum)
        layer.running_var.lerp_(variance.mean(0).flatten() * (values / max(values - 1, 1)), momentum)


class _Grouped1d(_Grouped, nn.BatchNorm1d):
    pass


class _Grouped2d(_Grouped, nn.BatchNorm2d):
    pass


_KINDS.update({nn.BatchNorm1d: _Grouped1d, nn.BatchNorm2d: _Grouped2d})
