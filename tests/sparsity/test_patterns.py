from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pwoa.sparsity.constraint import Constraint
from pwoa.sparsity.patterns import PATTERNS


def project(weight: Tensor, kept: int) -> Tensor:
    """The nearest weight with `kept` entries."""
    return Constraint({"w": nn.Parameter(weight)}, {"w": kept}).project("w", weight)


few = settings(deadline=None, max_examples=40)
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda shape: math.prod(shape) <= 8)


@st.composite
def weights(draw: st.DrawFn) -> Tensor:
    """Small tensors of any shape, rich in ties and zeros."""
    shape = draw(shapes)
    numbers = st.integers(-3, 3).map(float) | st.floats(-2, 2, width=32, allow_subnormal=False)
    values = draw(st.lists(numbers, min_size=math.prod(shape), max_size=math.prod(shape)))
    return torch.tensor(values, dtype=torch.float64).view(shape)


def nearest_distance(weight: Tensor, kept: int) -> float:
    """The smallest squared distance from `weight` to any tensor with `kept` entries, over all supports."""
    entries: list[float] = weight.flatten().tolist()
    return min(
        sum(entries[i] ** 2 for i in range(len(entries)) if i not in support)
        for support in itertools.combinations(range(len(entries)), kept)
    )


@few
@given(weights(), st.data())
def test_the_projection_is_the_nearest_point(weight: Tensor, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, weight.numel()))
    projected = project(weight, kept)
    assert projected.shape == weight.shape
    assert int(torch.count_nonzero(projected)) <= kept
    assert float((projected - weight).square().sum()) == pytest.approx(nearest_distance(weight, kept), abs=1e-12)


@few
@given(weights(), st.data())
def test_the_mask_keeps_exactly_so_many(weight: Tensor, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, weight.numel()))
    mask = PATTERNS["unstructured"](weight, kept)
    assert mask.dtype == torch.bool
    assert mask.shape == weight.shape
    assert int(mask.sum()) == kept


@few
@given(weights(), st.data())
def test_projecting_twice_changes_nothing(weight: Tensor, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, weight.numel()))
    once = project(weight, kept)
    assert torch.equal(project(once, kept), once)


@pytest.mark.parametrize("value", [0.5, -0.5])
def test_equal_weights_lose_just_as_many(value: float) -> None:
    projected = project(torch.full((5, 4, 3, 3), value), 45)
    assert int(torch.count_nonzero(projected)) == 45
    assert projected.unique().tolist() == sorted([0.0, value])


def test_ties_at_the_border_are_cut_to_the_number() -> None:
    projected = project(torch.tensor([3.0, -1, 1, 1, -1, 2]), 4)
    assert int(torch.count_nonzero(projected)) == 4
    assert projected[[0, 5]].tolist() == [3, 2]


def test_zeros_go_first_and_are_kept_only_when_nothing_else_is_left() -> None:
    weight = torch.tensor([[0.0, 2, 0], [1e-6, 0, -3]])
    assert torch.equal(project(weight, 3), weight)
    mask = PATTERNS["unstructured"](weight, 5)
    assert int(mask.sum()) == 5
    assert bool(mask[weight != 0].all())


def test_a_transposed_or_channels_last_weight_is_projected_alike() -> None:
    weight = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    expected = project(weight, 50)
    assert torch.equal(project(weight.to(memory_format=torch.channels_last), 50), expected)
    assert torch.equal(project(weight.transpose(0, 1), 50).transpose(0, 1), expected)
