"""Confidence intervals: how far an accuracy on so many images may be from that on all images of its kind."""

from __future__ import annotations

import math
from statistics import NormalDist

from pwoa.errors import InputError

Z = NormalDist().inv_cdf(0.975)
"""An interval of 95 % leaves 2.5 % out on either side."""


def wilson(right: int, n: int) -> tuple[float, float]:
    """The 95 % score interval of Wilson (1927), in percent, of an accuracy of `right` out of `n` images.

    With p = right/n it is (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n); also of use at 0 and 100 %.
    """
    _check(right, n)
    share, weight = right / n, Z * Z / n
    centre = share + weight / 2
    half = math.sqrt(weight * (share * (1 - share) + weight / 4))
    low = 0.0 if right == 0 else 100 * (centre - half) / (1 + weight)
    high = 100.0 if right == n else 100 * (centre + half) / (1 + weight)
    return low, high


def paired(only_a: int, only_b: int, n: int) -> tuple[float, float]:
    """The 95 % interval, in points, of accuracy B − accuracy A, both on the same `n` images.

    only_a, only_b: how many images only A, and only B, gets right. It is the adjusted Wald interval of Bonett &
    Price (2012): one image is added to either count and two to n, then, with p = only/n, the interval is
    p_B − p_A ± z √((p_A + p_B − (p_B − p_A)²)/n). So it has a width also where the two never differ.
    """
    _check(only_a + only_b, n)
    total = n + 2
    share_a, share_b = (only_a + 1) / total, (only_b + 1) / total
    centre = share_b - share_a
    half = Z * math.sqrt((share_a + share_b - centre * centre) / total)
    return max(-100.0, 100 * (centre - half)), min(100.0, 100 * (centre + half))


def _check(counted: int, n: int) -> None:
    if n < 1 or not 0 <= counted <= n:
        raise InputError(f"no interval for {counted} of {n} images; give a count from 0 to n, and n of 1 or more")
