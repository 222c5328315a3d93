"""The sparsity constraint: how many entries of each weight stay, and in which pattern; and what is left in the end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.errors import counted
from pwoa.models.hidden import multiply_adds
from pwoa.recipe import SparsityRecipe
from pwoa.sparsity.allocation import ONE_EACH, affordable, allocate, needs_costs, sizes
from pwoa.sparsity.patterns import find_pattern
from pwoa.sparsity.selection import DEFAULT, describe_left_out, prunable, select

HANDFUL = 5
"""An output that is computed from fewer weights than these, on average, hardly computes anything."""


@dataclass(frozen=True)
class Constraint:
    """The set S that pruned weights lie in: of each weight tensor `kept` entries stay, chosen by the pattern."""

    weights: Mapping[str, nn.Parameter]
    kept: Mapping[str, int]
    pattern: str = "unstructured"
    least: Mapping[str, int] = field(default_factory=dict)
    """How many entries some tensors keep at least, whatever shares the others out anew."""

    def __post_init__(self) -> None:
        find_pattern(self.pattern)

    @classmethod
    def of(cls, model: nn.Module, recipe: SparsityRecipe, x: Tensor | None = None) -> Constraint:
        """Return the constraint on a model's prunable weights by the recipe's rate, allocation, budget and pattern.

        x: an image or more, which an allocation that counts multiply-adds needs.
        """
        chosen = select(model, recipe)
        costs = multiply_adds(model, x, chosen.weights) if needs_costs(recipe) and x is not None else ONE_EACH
        kept = allocate(chosen.weights, recipe, chosen.least, costs)
        return cls(chosen.weights, kept, recipe.pattern, affordable(chosen.least, sum(kept.values())))

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

    def on_the_way(self, start_rate: float, share: float) -> Constraint:
        """Return the constraint after this share of the way from a lower rate, the same in every layer, to this one.

        What is still too many falls with the cube of the way that is left (Zhu & Gupta 2017). Of no weight stay fewer
        than in the end.
        """
        left = max(1 - share, 0.0) ** 3
        extra = {name: left * (weight.numel() / start_rate - self.kept[name]) for name, weight in self.weights.items()}
        return self.with_kept({name: kept + max(math.floor(extra[name]), 0) for name, kept in self.kept.items()})


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


def count(model: nn.Module, recipe: SparsityRecipe = DEFAULT) -> list[Count]:
    """Count the sparsity in the weights themselves: an entry for each prunable layer, then `total`."""
    weights = prunable(model, recipe)
    return _with_total(
        Count(name, weight.numel(), int(torch.count_nonzero(weight))) for name, weight in weights.items()
    )


def count_multiply_adds(model: nn.Module, x: Tensor) -> list[Count]:
    """Count the multiply-adds for an image like those of `x`: an entry for each layer's weight, then `total`.

    Weights that are not pruned are among them, and other parameters of two or more dimensions, as positions, once each.
    """
    weights = {name: parameter for name, parameter in model.named_parameters() if parameter.dim() > 1}
    return _with_total(
        Count(name, each * weights[name].numel(), each * int(torch.count_nonzero(weights[name])))
        for name, each in multiply_adds(model, x, weights).items()
    )


def count_all(model: nn.Module) -> Count:
    """Count all parameters of a model, those that are never pruned too, and how many of them are not zero."""
    parameters = list(model.parameters())
    kept = sum(int(torch.count_nonzero(parameter)) for parameter in parameters)
    return Count("all parameters", sum(parameter.numel() for parameter in parameters), kept)


def describe_size(model: nn.Module, recipe: SparsityRecipe, x: Tensor | None = None) -> dict[str, Any]:
    """Return what is left of a pruned model: the rates, what they count, each layer, and what is left out and why.

    x: an image or more, to count the multiply-adds of the whole network with; without it they are not told.
    """
    rows, everything = count(model, recipe), count_all(model)
    layers: list[dict[str, Any]] = [{**dataclasses.asdict(row), "rate": row.rate} for row in rows]
    compute = {}
    if x is not None:
        *each, whole = count_multiply_adds(model, x)
        compute = {"macs": whole.kept, "macs_dense": whole.total, "macs_rate": whole.rate}
        by_name = {row.layer: row for row in each}
        for layer in layers[:-1]:
            layer |= {"macs": by_name[layer["layer"]].kept, "macs_dense": by_name[layer["layer"]].total}
    return {
        **compute,
        "rate": rows[-1].rate,
        "overall_rate": everything.rate,
        "parameters": everything.total,
        "nonzero": everything.kept,
        "sparsity": layers,
        "left_out": select(model, recipe).left_out,
    }


def _with_total(counts: Iterable[Count]) -> list[Count]:
    rows = list(counts)
    return [*rows, Count("total", sum(row.total for row in rows), sum(row.kept for row in rows))]


def plan_notes(model: nn.Module, recipe: SparsityRecipe, kept: Mapping[str, int] | None) -> list[str]:
    """Return a line each for what is left out, which layers keep more than their share, and which keep too little.

    kept: how many entries of each weight are going to stay; None if that is not known before.
    """
    chosen, notes = select(model, recipe), []
    if chosen.left_out:
        notes.append(f"note: not pruned: {describe_left_out(chosen.left_out)}")
        if recipe.budget == "macs":
            notes.append(f"note: {recipe.rate_text} of the layers that are pruned; of the whole network it is less")
    if kept is None:
        return notes
    numbers = sizes(chosen.weights)
    share = sum(kept.values()) / sum(numbers.values())
    denser = [name for name in chosen.least if kept[name] > share * numbers[name] + 1]
    if denser:
        more = f" and {len(denser) - 1} more" if len(denser) > 1 else ""
        notes.append(f"note: {denser[0]}{more} kept denser, as outputs have few inputs there; others keep less")
    if warning := warn_of_thin_layers(model, recipe, kept):
        notes.append(f"warning: {warning}")
    return notes


def warn_of_thin_layers(model: nn.Module, recipe: SparsityRecipe, kept: Mapping[str, int]) -> str:
    """Return a warning that names the layers that keep less than a handful of weights an output; nothing if none does.

    Layers that have no more to begin with are not meant.
    """
    chosen = select(model, recipe)
    thin = {
        name: kept[name] / outputs
        for name, outputs in chosen.outputs.items()
        if kept[name] < HANDFUL * outputs and kept[name] < chosen.weights[name].numel()
    }
    if not thin:
        return ""
    least = min(thin, key=lambda name: thin[name])
    subject = "1 layer keeps" if len(thin) == 1 else f"{counted(len(thin), 'layer')} keep"
    return (
        f"{subject} fewer than {HANDFUL} weights an output ({least} keeps {thin[least]:.2g}): robustness may collapse; "
        "lower the rate, or try another sparsity.allocation"
    )
