"""Projections against slow solutions that share no code with them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pwoa.attacks.ball import Ball, distance, fill, onto_hyperplane, project, random_start, steepest
from pwoa.threat import Threat

few = settings(deadline=None, max_examples=40)
both = pytest.mark.parametrize("norm", ["linf", "l2"])


def pixels(n: int, d: int, seed: int) -> Tensor:
    """Images with many pixels at 0 and at 1."""
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(n, d, generator=generator) - 0.5).clamp(0, 1)


def bisect(value_at: list[float], room: list[float], weight: list[float], amount: float) -> float:
    """t with Σ weight·min(t·speed, room) = amount, one row in plain Python."""
    low, high = 0.0, 1e9
    for _ in range(200):
        t = (low + high) / 2
        total = sum(w * min(t * s, r) for s, r, w in zip(value_at, room, weight, strict=True))
        low, high = (low, t) if total > amount else (t, high)
    return low


@few
@given(seed=st.integers(0, 10_000), d=st.integers(1, 40), share=st.floats(0.001, 0.95))
def test_fill_solves_its_equation(seed: int, d: int, share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    speed, room, weight = (torch.rand(3, d, generator=generator, dtype=torch.float64) + 0.01 for _ in range(3))
    amount = share * (weight * room).sum(1)
    found = fill(speed, room, weight, amount)
    for row in range(3):
        exact = bisect(speed[row].tolist(), room[row].tolist(), weight[row].tolist(), float(amount[row]))
        assert float(found[row]) == pytest.approx(exact, rel=1e-9)


def test_fill_says_when_there_is_not_enough_room() -> None:
    one = torch.ones(1, 4)
    assert float(fill(one, one, None, torch.tensor([4.1]))) > 1e20
    assert float(fill(one, one, None, torch.tensor([3.0]))) == pytest.approx(0.75)
    assert float(fill(one, one, None, torch.tensor([3.0]), limit=0.5)) == 0.5
    assert float(fill(0 * one, one, None, torch.tensor([3.0]))) > 1e20


def slow_hyperplane(at: list[float], normal: list[float], gap: float, norm: str) -> list[float]:
    """The dual by bisection: the nearest z in the box with gap + normal·(z − at) = 0, one image in plain Python.

    l∞: the smallest t for which the corner of the box [at − t, at + t] ∩ [0, 1] that closes the gap most does so.
    l2: z = clamp(at − μ·normal), with the μ that closes the gap.
    """

    def z(t: float) -> list[float]:
        sign = 1 if gap > 0 else -1
        speed = [(w > 0) - (w < 0) if norm == "linf" else w for w in normal]
        return [min(max(a - t * sign * s, 0), 1) for a, s in zip(at, speed, strict=True)]

    def left(t: float) -> float:
        total = gap + sum(w * (b - a) for w, a, b in zip(normal, at, z(t), strict=True))
        return total if gap > 0 else -total

    low, high = 0.0, 1e7
    for _ in range(300):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) > 0 else (low, middle)
    return z(high)


@both
@few
@given(seed=st.integers(0, 10_000), d=st.integers(1, 30), scale=st.floats(1e-4, 1e3), gap=st.floats(-3, 3))
def test_the_projection_onto_a_hyperplane_is_the_slow_one(
    norm: str, seed: int, d: int, scale: float, gap: float
) -> None:
    at = pixels(2, d, seed).double()
    normal = scale * torch.randn(2, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gaps = torch.tensor([gap, -gap / 3], dtype=torch.float64) * scale
    found = onto_hyperplane(at, normal, gaps, norm)
    for row in range(2):
        exact = slow_hyperplane(at[row].tolist(), (normal[row] / scale).tolist(), float(gaps[row] / scale), norm)
        assert found[row].tolist() == pytest.approx(exact, abs=1e-6)


@both
@few
@given(seed=st.integers(0, 10_000))
def test_no_point_of_the_hyperplane_is_nearer(norm: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    at, other = pixels(50, 6, seed).double(), pixels(50, 6, seed + 1).double()
    normal = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    gap = (normal * (at - other)).sum(1)  # so that `other` is on it
    found = onto_hyperplane(at, normal, gap, norm)
    assert (gap + (normal * (found - at)).sum(1)).abs().max() < 1e-9
    assert bool((distance(found, at, norm) <= distance(other, at, norm) + 1e-9).all())


@both
def test_without_a_gradient_nothing_moves(norm: str) -> None:
    at = pixels(2, 5, 0)
    assert torch.equal(onto_hyperplane(at, torch.zeros(2, 5), torch.tensor([1.0, 0.0]), norm), at)


@both
@few
@given(seed=st.integers(0, 10_000), radius=st.floats(0, 1), reach=st.floats(0.01, 5))
def test_the_projection_into_the_ball_is_the_nearest_point(norm: str, seed: int, radius: float, reach: float) -> None:
    threat = Threat(norm, radius)
    x = pixels(40, 7, seed).view(40, 1, 1, 7)
    far = x + reach * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    found = project(far, x, threat)
    assert bool(Ball.around(x, threat).contains(found).all())
    assert torch.allclose(project(found, x, threat), found, atol=1e-6)
    for start in range(5):  # obtuse angle: no allowed point lies on the far side of the nearest one
        other = random_start(x, threat, torch.Generator().manual_seed(start))
        assert float(((far - found) * (other - found)).flatten(1).sum(1).max()) < 1e-4 * max(1, reach)


@both
def test_random_starts_are_allowed_fill_the_ball_and_follow_the_seed(norm: str) -> None:
    threat, x = Threat(norm, 0.2), torch.full((4000, 1, 1, 2), 0.5)
    start = random_start(x, threat, torch.Generator().manual_seed(0))
    far = distance(start, x, norm)
    assert float(far.max()) <= 0.2 + 1e-6
    assert float((far < 0.1).float().mean()) == pytest.approx(0.25, abs=0.03)  # a quarter of the area
    assert torch.equal(start, random_start(x, threat, torch.Generator().manual_seed(0)))


@both
def test_the_steepest_step_has_length_one_and_is_zero_for_no_gradient(norm: str) -> None:
    gradient = torch.randn(4, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    gradient[1] *= 1e-25
    gradient[2] *= 1e25
    gradient[3] = 0
    step = steepest(gradient, norm)
    assert distance(step, torch.zeros_like(step), norm).tolist() == pytest.approx([1, 1, 1, 0])
    assert bool((step[:3].sign() == gradient[:3].sign()).all())


def test_what_is_not_allowed_is_noticed() -> None:
    x = torch.full((5, 1, 1, 2), 0.05)
    tried = x.clone()
    tried[1, ..., 0] = 0.4
    tried[2, ..., 0] = -0.01
    tried[3, ..., 0] = torch.nan
    tried[4, ..., 0] = 0.15
    for norm in ("linf", "l2"):
        assert Ball.around(x, Threat(norm, 0.1)).contains(tried).tolist() == [True, False, False, False, True]
