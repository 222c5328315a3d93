from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pwoa.errors import InputError
from pwoa.evaluation.scores import Z, paired, wilson

COUNTS = st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@st.composite
def discordant(draw: st.DrawFn) -> tuple[int, int, int]:
    n = draw(st.integers(1, 20_000))
    only_a = draw(st.integers(0, n))
    return only_a, draw(st.integers(0, n - only_a)), n


def test_z_leaves_two_and_a_half_percent_above() -> None:
    assert 0.5 * math.erfc(Z / math.sqrt(2)) == pytest.approx(0.025, rel=1e-12)


@pytest.mark.parametrize("n", [1, 7, 1000, 10_000])
def test_with_none_right_it_goes_from_zero_to_the_closed_form(n: int) -> None:
    low, high = wilson(0, n)
    assert low == 0
    assert high == pytest.approx(100 * Z**2 / (n + Z**2))


@pytest.mark.parametrize("n", [1, 7, 1000, 10_000])
def test_with_all_right_it_goes_from_the_closed_form_to_a_hundred(n: int) -> None:
    low, high = wilson(n, n)
    assert low == pytest.approx(100 * n / (n + Z**2))
    assert high == 100


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(81, 263, 25.53, 36.62), (15, 148, 6.24, 16.05), (1, 29, 0.61, 17.18)],
)
def test_published_values(right: int, n: int, low: float, high: float) -> None:
    """Table I of Newcombe 1998, "Two-sided confidence intervals for the single proportion", method 3."""
    assert wilson(right, n) == pytest.approx((low, high), abs=0.005)


@given(COUNTS)
def test_its_ends_are_where_the_score_test_just_rejects(counts: tuple[int, int]) -> None:
    right, n = counts
    for end in wilson(right, n):
        share = end / 100
        if 0 < share < 1:
            assert (right / n - share) ** 2 == pytest.approx(Z**2 * share * (1 - share) / n, rel=1e-6)


@given(COUNTS)
def test_it_contains_the_accuracy_and_mirrors_that_of_the_wrong_ones(counts: tuple[int, int]) -> None:
    right, n = counts
    low, high = wilson(right, n)
    assert 0 <= low <= 100 * right / n <= high <= 100
    assert low < high
    assert wilson(n - right, n) == pytest.approx((100 - high, 100 - low))


@given(COUNTS)
def test_with_four_times_the_images_it_is_about_half_as_wide(counts: tuple[int, int]) -> None:
    right, n = counts
    few, many = (high - low for low, high in (wilson(right, n), wilson(4 * right, 4 * n)))
    assert many < few
    if min(right, n - right) > 100:
        assert many == pytest.approx(few / 2, rel=0.01)


@pytest.mark.parametrize("n", [1, 100, 10_000])
def test_two_models_that_never_differ_have_the_closed_form_around_zero(n: int) -> None:
    low, high = paired(0, 0, n)
    assert high == pytest.approx(100 * Z * math.sqrt(2) / (n + 2)) or high == 100
    assert low == -high


def test_with_many_images_it_is_walds_interval() -> None:
    only_a, only_b, n = 40_000, 60_000, 1_000_000
    half = Z * math.sqrt(only_a + only_b - (only_b - only_a) ** 2 / n) / n
    assert paired(only_a, only_b, n) == pytest.approx((100 * (0.02 - half), 100 * (0.02 + half)), rel=1e-4)


@given(discordant())
def test_it_contains_the_difference_and_changes_sign_with_the_models(counts: tuple[int, int, int]) -> None:
    only_a, only_b, n = counts
    low, high = paired(only_a, only_b, n)
    assert -100 <= low <= 100 * (only_b - only_a) / n <= high <= 100
    assert paired(only_b, only_a, n) == pytest.approx((-high, -low))


def test_its_interval_holds_the_true_difference_in_95_percent_of_all_draws() -> None:
    """Summed over every outcome of 40 images of which A alone gets 10 %, and B alone 20 %, right."""
    n, a, b = 40, 0.1, 0.2
    covered = sum(
        math.comb(n, x) * math.comb(n - x, y) * a**x * b**y * (1 - a - b) ** (n - x - y)
        for x in range(n + 1)
        for y in range(n + 1 - x)
        if paired(x, y, n)[0] <= 100 * (b - a) <= paired(x, y, n)[1]
    )
    assert 0.94 < covered < 0.97


@pytest.mark.parametrize(("right", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_counts_that_cannot_be_are_refused(right: int, n: int) -> None:
    with pytest.raises(InputError, match=f"no interval for {right} of {n} images"):
        wilson(right, n)
    with pytest.raises(InputError, match=f"no interval for {right} of {n} images"):
        paired(right, 0, n)
