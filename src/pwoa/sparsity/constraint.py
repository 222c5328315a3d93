"""The sparsity constraint: which weights can be pruned, how many of each stay, and in which pattern."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.models.hidden import LAYER_TYPES
from pwoa.recipe import SparsityRecipe
from pwoa.sparsity.allocation import allocate
from pwoa.sparsity.patterns import find_pattern


@dataclass(frozen=True)
class Constraint:
    """The set S that pruned weights lie in: of each weight tensor `kept` entries stay, chosen by the pattern."""

    weights: Mapping[str, nn.Parameter]
    kept: Mapping[str, int]
    pattern: str = "unstructured"

    def __post_init__(self) -> None:
        find_pattern(self.pattern)

    @classmethod
    def of(cls, model: nn.Module, recipe: SparsityRecipe) -> Constraint:
        """Return the constraint on a model's prunable weights by the recipe's rate, allocation and pattern."""
        weights = prunable(model)
        return cls(weights, allocate(weights, recipe), recipe.pattern)

    def mask(self, name: str, values: Tensor | None = None) -> Tensor:
        """Return the mask of the entries that stay, by the weight's own magnitudes or by other values (scores)."""
        values = self.weights[name] if values is None else values
        return find_pattern(self.pattern)(values, self.kept[name])

    def project(self, name: str, values: Tensor) -> Tensor:
        """Return Π_S(values), the nearest values that meet the constraint."""
        return values * self.mask(name, values)

    def with_kept(self, kept: Mapping[str, int]) -> Constraint:
        """Return the constraint with other numbers of entries."""
        return dataclasses.replace(self, kept=dict(kept))


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of every convolution and linear layer by name, each once even if layers share it."""
    weights: dict[int, tuple[str, nn.Parameter]] = {}
    for name, module in model.named_modules():
        if isinstance(module, LAYER_TYPES):
            weight = module.weight
            if not isinstance(weight, nn.Parameter):
                raise InputError(f"the weight of layer {name} is computed (a parametrization?), so it cannot be pruned")
            weights.setdefault(id(weight), (f"{name}.weight" if name else "weight", weight))
    if not weights:
        raise InputError(f"{type(model).__name__} has no convolution or linear layer to prune")
    return dict(weights.values())


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
    """Count the sparsity in the weights themselves: an entry for each prunable layer, then `total`."""
    rows = [Count(name, weight.numel(), int(torch.count_nonzero(weight))) for name, weight in prunable(model).items()]
    return [*rows, Count("total", sum(row.total for row in rows), sum(row.kept for row in rows))]
