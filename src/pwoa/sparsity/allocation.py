"""Allocations: how many weights each layer keeps, always meeting the total exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from pwoa.errors import InputError


def budget(sizes: Mapping[str, int], rate: float) -> int:
    """How many weights a rate leaves in all: ⌊n / rate⌋."""
    if rate < 1:
        raise InputError(f"rate {rate:g} is below 1; rate 4 keeps a quarter of the weights")
    return math.floor(sum(sizes.values()) / _exact(rate))


def uniform(sizes: Mapping[str, int], rate: float) -> dict[str, int]:
    """The same rate in every layer, as in the paper: α_l = n_l / rate.

    The total is ⌊n / rate⌋; what rounding down leaves over goes to the layers with the largest remainders.
    """
    total = budget(sizes, rate)
    shares = {name: size / _exact(rate) for name, size in sizes.items()}
    kept = {name: math.floor(share) for name, share in shares.items()}
    left_over = total - sum(kept.values())
    by_remainder = sorted(sizes, key=lambda name: kept[name] - shares[name])
    for name in by_remainder[:left_over]:
        kept[name] += 1
    for name, number in kept.items():
        if number == 0:
            raise InputError(
                f"rate {rate:g} leaves layer {name} empty: it has {sizes[name]} weights, so at most rate {sizes[name]}"
            )
    return kept


def _exact(rate: float) -> Fraction:
    """In floats 11/1.1 + 88/1.1 > 99/1.1."""
    return Fraction(str(rate))


ALLOCATIONS: dict[str, Callable[[Mapping[str, int], float], dict[str, int]]] = {"uniform": uniform}
