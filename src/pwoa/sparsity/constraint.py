"""Which weights can be pruned, and how many of them are left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.models.hidden import LAYER_TYPES


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of every convolution and linear layer by name, each once even if layers share it."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for name, module in model.named_modules():
        if isinstance(module, LAYER_TYPES):
            weight = module.weight
            if not isinstance(weight, nn.Parameter):
                raise InputError(f"the weight of layer {name} is computed (a parametrization?), so it cannot be pruned")
            found.setdefault(id(weight), (f"{name}.weight" if name else "weight", weight))
    if not found:
        raise InputError(f"{type(model).__name__} has no convolution or linear layer to prune")
    return dict(found.values())


@dataclass(frozen=True)
class Count:
    """Weights of one layer (or of all): how many there are and how many are not zero."""

    layer: str
    total: int
    kept: int

    @property
    def rate(self) -> float:
        """Unpruned size over pruned size."""
        return self.total / self.kept if self.kept else float("inf")


def count(model: nn.Module) -> list[Count]:
    """The sparsity as counted in the weights themselves: one entry a prunable layer, then `total`."""
    rows = [Count(name, weight.numel(), int(torch.count_nonzero(weight))) for name, weight in prunable(model).items()]
    return [*rows, Count("total", sum(row.total for row in rows), sum(row.kept for row in rows))]


def sizes(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of weights of each layer."""
    return {name: weight.numel() for name, weight in weights.items()}
