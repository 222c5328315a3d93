from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pwoa.errors import InputError
from pwoa.sparsity import ALLOCATIONS

uniform = ALLOCATIONS["uniform"]
rates = st.floats(1, 20) | st.integers(10, 200).map(lambda tenths: tenths / 10)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8), rates)
@example([11, 88], 1.1)  # in floats 11/1.1 is 10 and 88/1.1 is 80, but 99/1.1 is below 90
def test_uniform_meets_the_total_exactly_and_each_layer_within_one(numbers: list[int], rate: float) -> None:
    sizes = {f"layer{i}": number for i, number in enumerate(numbers)}
    assume(min(numbers) >= rate)
    exact = Fraction(str(rate))
    kept = uniform(sizes, rate)
    assert list(kept) == list(sizes)
    assert sum(kept.values()) == math.floor(sum(numbers) / exact)
    for name, size in sizes.items():
        assert abs(kept[name] - size / exact) < 1
        assert 0 < kept[name] <= size


def test_uniform_by_hand() -> None:
    assert uniform({"a": 10, "b": 10, "c": 8}, 4) == {"a": 3, "b": 2, "c": 2}
    assert uniform({"a": 7, "b": 6}, 4) == {"a": 2, "b": 1}


def test_rate_one_keeps_everything() -> None:
    assert uniform({"a": 3, "b": 50}, 1) == {"a": 3, "b": 50}


@pytest.mark.parametrize("rate", [0.99, 0.0, -4.0])
def test_a_rate_below_one_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match=f"rate {rate:g} is below 1"):
        uniform({"a": 100}, rate)


def test_a_layer_left_empty_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match=r"rate 16 leaves layer head\.weight empty: it has 6 weights, so at most rate 6"
    ):
        uniform({"conv.weight": 16000, "head.weight": 6}, 16)
