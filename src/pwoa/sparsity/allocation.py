"""Allocations: how many weights each layer keeps, always meeting the total exactly."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import torch
from torch import Tensor

from pwoa.errors import InputError, counted
from pwoa.recipe.sections import SparsityRecipe


def sizes(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of weights of each layer."""
    return {name: weight.numel() for name, weight in weights.items()}


Rate = float | Fraction
"""Unpruned size over pruned size; a fraction where the pruned size is given."""


def allocate(
    weights: Mapping[str, Tensor], recipe: SparsityRecipe, least: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return how many of its weights each layer keeps by the recipe's rate and allocation.

    Layers that would keep fewer than the `least` that is given for them keep that, and the others share what is left.
    """
    share, numbers, total = ALLOCATIONS[recipe.allocation], sizes(weights), budget(weights, recipe.rate)
    least = affordable(least or {}, total)
    fixed = {name: number for name, number in least.items() if numbers[name] < recipe.rate}
    while True:
        free = {name: weight for name, weight in weights.items() if name not in fixed}
        if not free:  # all of them are such layers
            return shared_out(numbers, numbers, total)
        left = total - sum(fixed.values())
        kept = share(free, Fraction(sum(sizes(free).values()), left) if fixed else recipe.rate)
        short = {name: number for name, number in least.items() if kept.get(name, number) < number}
        if not short:
            return {name: {**fixed, **kept}[name] for name in weights}
        fixed |= short


def affordable(least: Mapping[str, int], total: int) -> dict[str, int]:
    """Return what layers keep at least, scaled down where it is more than half of the total in all."""
    wanted = sum(least.values())
    if 2 * wanted <= total:
        return dict(least)
    return {name: max(1, number * total // (2 * wanted)) for name, number in least.items()}


def budget(weights: Mapping[str, Tensor], rate: Rate) -> int:
    """Return how many weights a rate leaves in all: ⌊n / rate⌋."""
    if rate < 1:
        raise InputError(f"rate {float(rate):g} is below 1; rate 4 keeps a quarter of the weights")
    total = math.floor(sum(sizes(weights).values()) / _exact(rate))
    if total < len(weights):
        left = counted(total, "weight")
        raise InputError(f"{left} cannot be shared out among {counted(len(weights), 'layer')}; lower the rate")
    return total


def uniform(weights: Mapping[str, Tensor], rate: Rate) -> dict[str, int]:
    """Keep the same rate in every layer, as in the paper: α_l = n_l / rate.

    What rounding down leaves over of the budget goes to the layers with the largest remainders.
    """
    total, numbers = budget(weights, rate), sizes(weights)
    shares = {name: number / _exact(rate) for name, number in numbers.items()}
    kept = {name: math.floor(share) for name, share in shares.items()}
    left_over = total - sum(kept.values())
    by_remainder = sorted(kept, key=lambda name: kept[name] - shares[name])
    for name in by_remainder[:left_over]:
        kept[name] += 1
    for name, number in kept.items():
        if number == 0:
            raise InputError(
                f"rate {float(rate):g} leaves layer {name} empty: it has {numbers[name]} weights, so at most rate "
                f"{numbers[name]}, or another allocation, or name it in sparsity.exclude"
            )
    return kept


def erk(weights: Mapping[str, Tensor], rate: Rate) -> dict[str, int]:
    """Share in proportion to the sum of a layer's dimensions (Erdős–Rényi kernel, Evci et al. 2020), at most all."""
    wanted = {name: float(sum(weight.shape)) for name, weight in weights.items()}
    return shared_out(wanted, sizes(weights), budget(weights, rate))


@torch.no_grad()
def lamp(weights: Mapping[str, Tensor], rate: Rate) -> dict[str, int]:
    """Keep, of all weights, those with the largest LAMP scores (layer-adaptive magnitudes, Lee et al. 2021).

    The score of a weight is its square over the sum of the squares of its layer that are not smaller, its own among
    them: the largest weight of every layer has the score 1, and stays.
    """
    scores = [_lamp_scores(weight) for weight in weights.values()]
    chosen = torch.cat(scores).topk(budget(weights, rate), sorted=False).indices
    ends = torch.tensor([len(own) for own in scores]).cumsum(0)
    layers = torch.bucketize(chosen, ends, right=True)
    return dict(zip(weights, layers.bincount(minlength=len(scores)).tolist(), strict=True))


def _lamp_scores(weight: Tensor) -> Tensor:
    """Return the scores of a layer, the largest first, in double precision: sums are over millions.

    Weights that are 0 are behind all others, and those of all layers in turn, for a budget that needs them.
    """
    magnitudes = weight.abs().flatten().sort(descending=True).values
    squares = magnitudes.cpu().double().square()  # sums on other devices may end otherwise each time
    place = torch.arange(len(squares)) / len(squares)
    scores = torch.where(squares > 0, squares / squares.cumsum(0), -place)
    scores[0] = 1.0  # also of a layer of zeros
    return scores


def shared_out(
    wanted: Mapping[str, float], limits: Mapping[str, int], total: int, least: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Share out `total` as whole numbers in proportion to what is wanted, each from 1, or `least`, to its limit."""
    lowest = {name: (least or {}).get(name, 1) for name in wanted}

    def shares(factor: float) -> dict[str, int]:
        return {
            name: min(max(math.floor(factor * value), lowest[name]), limits[name]) for name, value in wanted.items()
        }

    low, high = 0.0, max(limits[name] / value for name, value in wanted.items())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(shares(middle).values()) <= total else (low, middle)
    kept = shares(low)
    with_room = [name for name in kept if kept[name] < limits[name]]
    with_room.sort(key=lambda name: kept[name] - low * wanted[name])
    for name in with_room[: total - sum(kept.values())]:
        kept[name] += 1
    return kept


def _exact(rate: Rate) -> Fraction:
    """In floats 11/1.1 + 88/1.1 > 99/1.1."""
    return Fraction(str(rate))


ALLOCATIONS: dict[str, Callable[[Mapping[str, Tensor], Rate], dict[str, int]]] = {
    "uniform": uniform,
    "erk": erk,
    "lamp": lamp,
}
