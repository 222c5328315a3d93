"""Allocations: how many weights each layer keeps, meeting a budget of weights or of multiply-adds.

A budget of weights is met exactly. One of multiply-adds is never exceeded, and missed by less than the cheapest weight
costs that could still be kept: not at all where a weight costs one, as in the last layer of most networks.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pwoa.errors import InputError, counted
from pwoa.recipe.sections import SparsityRecipe


def sizes(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of weights of each layer."""
    return {name: weight.numel() for name, weight in weights.items()}


Rate = float | Fraction
"""Unpruned size over pruned size; a fraction where the pruned size is given."""
Costs = Mapping[str, int]
"""What a weight of each layer costs: the multiply-adds that it takes part in for an image, or 1 if it is not there."""
ONE_EACH: Costs = {}
LEARNED = "learned"
"""The allocation that no function of the weights gives: a method learns it in a stage of its own."""


class Allocation(Protocol):
    """Says how many weights each layer keeps at a rate.

    units: what the budget counts of a weight of each layer. costs: its multiply-adds.
    """

    def __call__(
        self, weights: Mapping[str, Tensor], rate: Rate, units: Costs = ONE_EACH, costs: Costs = ONE_EACH
    ) -> dict[str, int]: ...


def needs_costs(recipe: SparsityRecipe) -> bool:
    """Tell whether an allocation asks what weights cost."""
    return recipe.budget == "macs" or recipe.allocation == "lamp-macs"


def cost(numbers: Mapping[str, int], costs: Costs) -> int:
    """Return what so many weights of each layer cost together."""
    return sum(number * costs.get(name, 1) for name, number in numbers.items())


def allocate(
    weights: Mapping[str, Tensor],
    recipe: SparsityRecipe,
    least: Mapping[str, int] | None = None,
    costs: Costs = ONE_EACH,
) -> dict[str, int]:
    """Return how many of its weights each layer keeps by the recipe's rate, allocation and budget.

    Layers that would keep fewer than the `least` that is given for them keep that, and the others share what is left.
    """
    if recipe.allocation == LEARNED:
        raise InputError(f"sparsity.allocation = {LEARNED} is for pwoa and advprune; allowed: {', '.join(ALLOCATIONS)}")
    share, numbers = ALLOCATIONS[recipe.allocation], sizes(weights)
    units = costs if recipe.budget == "macs" else ONE_EACH
    total = budget(weights, recipe.rate, units)
    least = affordable(least or {}, total, units)
    fixed = {name: number for name, number in least.items() if numbers[name] < recipe.rate}
    while True:
        free = {name: weight for name, weight in weights.items() if name not in fixed}
        if not free:  # all of them are such layers
            return shared_out(numbers, numbers, total, units=units)
        left = total - cost(fixed, units)
        beside = "beside what others keep at least, " if fixed else ""
        _check_enough(left, dict.fromkeys(free, 1), units, f"rate {recipe.rate:g}: {beside}")
        rate = Fraction(cost(sizes(free), units), left) if fixed else recipe.rate
        kept = share(free, rate, units, costs)
        short = {name: number for name, number in least.items() if kept.get(name, number) < number}
        if not short:
            _check_none_empty(kept, numbers, recipe.rate, alone=not fixed)
            together = {name: {**fixed, **kept}[name] for name in weights}
            _spend_rest(together, numbers, total, units)  # of which the others had no use
            return together
        fixed |= short


def affordable(least: Mapping[str, int], total: int, units: Costs = ONE_EACH) -> dict[str, int]:
    """Return what layers keep at least, scaled down where it is more than half of the total in all."""
    wanted = cost(least, units)
    if 2 * wanted <= total:
        return dict(least)
    return {name: max(1, number * total // (2 * wanted)) for name, number in least.items()}


def budget(weights: Mapping[str, Tensor], rate: Rate, units: Costs = ONE_EACH) -> int:
    """Return how many weights, or multiply-adds, a rate leaves in all: ⌊n / rate⌋."""
    if rate < 1:
        raise InputError(f"rate {float(rate):g} is below 1; rate 4 keeps a quarter of the weights")
    total = math.floor(cost(sizes(weights), units) / _exact(rate))
    _check_enough(total, dict.fromkeys(weights, 1), units, f"rate {float(rate):g}: ")
    return total


def _check_enough(total: int, lowest: Mapping[str, int], units: Costs, where: str = "") -> None:
    """Refuse a budget that does not pay for what layers keep at least."""
    if total < cost(lowest, units):
        left = counted(max(total, 0), "multiply-add" if units else "weight")
        raise InputError(f"{where}{left} cannot be shared out among {counted(len(lowest), 'layer')}; lower the rate")


def _check_none_empty(kept: Mapping[str, int], numbers: Mapping[str, int], rate: float, alone: bool) -> None:
    """Refuse an allocation that leaves a layer without a weight, as the same rate for all does to a small one."""
    if empty := [name for name, number in kept.items() if not number]:
        size = numbers[empty[0]]
        less = f"so at most rate {size}" if alone else "and others keep a least number; take a lower rate"
        raise InputError(
            f"rate {rate:g} leaves layer {empty[0]} empty: it has {counted(size, 'weight')}, {less}, or another "
            "allocation, or name it in sparsity.exclude"
        )


def uniform(
    weights: Mapping[str, Tensor], rate: Rate, units: Costs = ONE_EACH, costs: Costs = ONE_EACH
) -> dict[str, int]:
    """Keep the same rate in every layer, as in the paper: α_l = n_l / rate, which of a small layer may be nothing.

    What rounding down leaves over of the budget goes to the layers with the largest remainders.
    """
    total, numbers = budget(weights, rate, units), sizes(weights)
    shares = {name: number / _exact(rate) for name, number in numbers.items()}
    kept = {name: math.floor(share) for name, share in shares.items()}
    by_remainder = sorted(kept, key=lambda name: kept[name] - shares[name])
    _add_one_each(kept, by_remainder, total, units)
    _spend_rest(kept, numbers, total, units)
    return kept


def erk(weights: Mapping[str, Tensor], rate: Rate, units: Costs = ONE_EACH, costs: Costs = ONE_EACH) -> dict[str, int]:
    """Share in proportion to the sum of a layer's dimensions (Erdős–Rényi kernel, Evci et al. 2020), at most all."""
    wanted = {name: float(sum(weight.shape)) for name, weight in weights.items()}
    return shared_out(wanted, sizes(weights), budget(weights, rate, units), units=units)


@torch.no_grad()
def lamp(weights: Mapping[str, Tensor], rate: Rate, units: Costs = ONE_EACH, costs: Costs = ONE_EACH) -> dict[str, int]:
    """Keep, of all weights, those with the largest LAMP scores (layer-adaptive magnitudes, Lee et al. 2021).

    The score of a weight is its square over the sum of the squares of its layer that are not smaller, its own among
    them: the largest weight of every layer has the score 1, and stays.
    """
    return _ranked({name: _lamp_scores(weight) for name, weight in weights.items()}, weights, rate, units)


@torch.no_grad()
def lamp_macs(
    weights: Mapping[str, Tensor], rate: Rate, units: Costs = ONE_EACH, costs: Costs = ONE_EACH
) -> dict[str, int]:
    """Keep the weights with the largest LAMP scores per multiply-add that they cost; of every layer one at least."""
    scores = {name: _lamp_scores(weight) / costs.get(name, 1) for name, weight in weights.items()}
    for own in scores.values():
        own[0] = math.inf
    return _ranked(scores, weights, rate, units)


@torch.no_grad()
def magnitude(
    weights: Mapping[str, Tensor], rate: Rate, units: Costs = ONE_EACH, costs: Costs = ONE_EACH
) -> dict[str, int]:
    """Keep, of all weights, the largest; of every layer at least one."""
    scores = {name: _magnitudes(weight) for name, weight in weights.items()}
    for own in scores.values():
        own[0] = math.inf
    return _ranked(scores, weights, rate, units)


def _ranked(scores: Mapping[str, Tensor], weights: Mapping[str, Tensor], rate: Rate, units: Costs) -> dict[str, int]:
    """Count what each layer keeps of the weights with the largest scores, as many as the budget pays for."""
    total, every = budget(weights, rate, units), torch.cat([*scores.values()])
    if units:
        prices = torch.cat([torch.full((len(own),), units.get(name, 1)) for name, own in scores.items()])
        order = every.argsort(descending=True, stable=True)
        chosen = order[: int(torch.searchsorted(prices[order].cumsum(0), total, right=True))]
    else:
        chosen = every.topk(total, sorted=False).indices
    ends = torch.tensor([len(own) for own in scores.values()]).cumsum(0)
    layers = torch.bucketize(chosen, ends, right=True)
    kept = dict(zip(weights, layers.bincount(minlength=len(scores)).tolist(), strict=True))
    _spend_rest(kept, sizes(weights), total, units)  # what the next weight in rank was too dear for
    return kept


def _lamp_scores(weight: Tensor) -> Tensor:
    """Return the scores of a layer, the largest first, in double precision: sums are over millions.

    Weights that are 0 are behind all others, and those of all layers in turn, for a budget that needs them.
    """
    squares = _magnitudes(weight).square()
    place = torch.arange(len(squares)) / len(squares)
    scores = torch.where(squares > 0, squares / squares.cumsum(0), -place)
    scores[0] = 1.0  # also of a layer of zeros
    return scores


def _magnitudes(weight: Tensor) -> Tensor:
    """Return the magnitudes of a layer's weights, the largest first."""
    magnitudes = weight.detach().abs().flatten()
    if magnitudes.is_cuda:
        return magnitudes.sort(descending=True).values.cpu().double()  # sums elsewhere may end otherwise each time
    return torch.from_numpy(np.sort(magnitudes.double().numpy())).flip(0)  # several times as fast as torch's


def shared_out(
    wanted: Mapping[str, float],
    limits: Mapping[str, int],
    total: int,
    least: Mapping[str, int] | None = None,
    units: Costs = ONE_EACH,
) -> dict[str, int]:
    """Share out `total` as whole numbers in proportion to what is wanted, each from 1, or `least`, to its limit."""
    lowest = {name: (least or {}).get(name, 1) for name in wanted}
    _check_enough(total, lowest, units)

    def shares(factor: float) -> dict[str, int]:
        return {
            name: min(max(math.floor(factor * value), lowest[name]), limits[name]) for name, value in wanted.items()
        }

    low, high = 0.0, max(limits[name] / value for name, value in wanted.items())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(shares(middle), units) <= total else (low, middle)
    kept = shares(low)
    with_room = [name for name in kept if kept[name] < limits[name]]
    with_room.sort(key=lambda name: kept[name] - low * wanted[name])
    _add_one_each(kept, with_room, total, units)
    _spend_rest(kept, limits, total, units)
    return kept


def _add_one_each(kept: dict[str, int], names: list[str], total: int, units: Costs) -> None:
    """Let layers keep one more weight each, in this order, as long as the total pays for it."""
    left = total - cost(kept, units)
    for name in names:
        if units.get(name, 1) <= left:
            kept[name] += 1
            left -= units.get(name, 1)


def _spend_rest(kept: dict[str, int], limits: Mapping[str, int], total: int, units: Costs) -> None:
    """Let layers keep as many more as the rest of a total pays for, those of dear weights first: so these are few."""
    left = total - cost(kept, units)
    for name in sorted(kept, key=lambda name: -units.get(name, 1)):
        more = min(limits[name] - kept[name], left // units.get(name, 1))
        kept[name] += more
        left -= more * units.get(name, 1)


def _exact(rate: Rate) -> Fraction:
    """In floats 11/1.1 + 88/1.1 > 99/1.1."""
    return Fraction(str(rate))


ALLOCATIONS: dict[str, Allocation] = {
    "uniform": uniform,
    "erk": erk,
    "lamp": lamp,
    "lamp-macs": lamp_macs,
    "magnitude": magnitude,
}
