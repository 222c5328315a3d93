"""Every allocation meets the budget exactly, and shares it out as published."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pwoa
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.recipe.sections import Recipe, SparsityRecipe
from pwoa.sparsity.allocation import ALLOCATIONS, allocate, budget, erk, lamp, shared_out, uniform
from pwoa.sparsity.selection import prunable

Make = Callable[..., Recipe]
rates = st.floats(1, 20) | st.integers(10, 200).map(lambda tenths: tenths / 10)


def layers(*sizes: int) -> dict[str, Tensor]:
    return {f"layer{number}": torch.ones(size) for number, size in enumerate(sizes)}


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8), rates)
@example([11, 88], 1.1)  # in floats 11/1.1 is 10 and 88/1.1 is 80, but 99/1.1 is below 90
def test_uniform_meets_the_total_exactly_and_each_layer_within_one(sizes: list[int], rate: float) -> None:
    assume(min(sizes) >= rate)
    exact = Fraction(str(rate))
    kept = uniform(layers(*sizes), rate)
    assert list(kept) == list(layers(*sizes))
    assert sum(kept.values()) == math.floor(sum(sizes) / exact)
    for number, size in zip(kept.values(), sizes, strict=True):
        assert abs(number - size / exact) < 1
        assert 0 < number <= size


def test_uniform_by_hand() -> None:
    assert list(uniform(layers(10, 10, 8), 4).values()) == [3, 2, 2]
    assert list(uniform(layers(7, 6), 4).values()) == [2, 1]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=6),
    rates,
    st.integers(0, 2**31),
    st.sampled_from(sorted(ALLOCATIONS)),
)
def test_every_allocation_meets_the_total_and_leaves_no_layer_empty_or_overfull(
    shapes: list[tuple[int, int, int]], rate: float, seed: int, name: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = {str(i): torch.randn(a, b, k, k, generator=generator) for i, (a, b, k) in enumerate(shapes)}
    least = min(weight.numel() for weight in weights.values()) if name == "uniform" else math.inf
    assume(rate <= least and sum(weight.numel() for weight in weights.values()) / rate >= len(weights) + 1)
    kept = allocate(weights, SparsityRecipe(rate=rate, allocation=name))
    assert list(kept) == list(weights)
    assert sum(kept.values()) == budget(weights, rate)
    assert all(1 <= kept[name] <= weight.numel() for name, weight in weights.items())


def test_erk_is_in_proportion_to_the_sum_of_the_dimensions_until_a_layer_is_full() -> None:
    weights = {"first": torch.ones(4, 1, 3, 3), "wide": torch.ones(40, 40, 3, 3), "head": torch.ones(10, 40)}
    kept = erk(weights, 14836 / 147.5)  # a budget of 147
    assert kept == {"first": 11, "wide": 86, "head": 50}
    kept = erk(weights, 14836 / 1000.5)  # in proportion the first would have 75 of its 36
    assert kept == {"first": 36, "wide": 610, "head": 354}


def test_lamp_by_hand() -> None:
    """Squares 16, 9, 4, 1 have the scores 1, 9/25, 4/29, 1/30; squares 25, 25, 1 have 1, 1/2, 1/51."""
    weights = {"a": torch.tensor([[-1.0, 2.0], [3.0, -4.0]]), "b": torch.tensor([5.0, 1.0, -5.0])}
    assert [lamp(weights, 7 / total) for total in (2.1, 3.1, 4.1, 5.1, 6.1, 7)] == [
        {"a": 1, "b": 1},
        {"a": 1, "b": 2},
        {"a": 2, "b": 2},
        {"a": 3, "b": 2},
        {"a": 4, "b": 2},
        {"a": 4, "b": 3},
    ]


def test_lamp_does_not_depend_on_the_scale_of_a_layer() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(20, 30, generator=generator) for name in "abc"}
    assert lamp(weights, 8) == lamp({**weights, "b": 1e-4 * weights["b"]}, 8)


def test_lamp_shares_a_budget_above_what_is_not_zero_out_evenly() -> None:
    weights = {name: torch.zeros(1000) for name in "abcd"}
    for weight in weights.values():
        weight[:100] = torch.randn(100)
    assert set(lamp(weights, 4).values()) == {250}


def test_lamp_keeps_a_weight_of_a_layer_of_zeros() -> None:
    assert lamp({"a": torch.zeros(50), "b": torch.randn(50)}, 10)["a"] == 1


@pytest.mark.parametrize("name", sorted(ALLOCATIONS))
def test_rate_one_keeps_everything(name: str) -> None:
    assert ALLOCATIONS[name](layers(3, 50), 1) == {"layer0": 3, "layer1": 50}


@pytest.mark.parametrize("name", sorted(ALLOCATIONS))
@pytest.mark.parametrize("rate", [0.99, 0.0, -4.0])
def test_a_rate_below_one_is_refused(name: str, rate: float) -> None:
    with pytest.raises(InputError, match=f"rate {rate:g} is below 1"):
        ALLOCATIONS[name](layers(100), rate)


@pytest.mark.parametrize("name", sorted(ALLOCATIONS))
def test_a_budget_smaller_than_the_number_of_layers_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"^rate 100: 1 weight cannot be shared out among 2 layers; lower the rate"):
        ALLOCATIONS[name](layers(100, 20), 100)


@pytest.mark.parametrize("name", sorted(ALLOCATIONS))
@pytest.mark.parametrize(
    ("sizes", "least", "rate"),
    [
        ({"a": (4, 900), "b": (200, 1), "c": (200, 64)}, {"a": 3, "b": 39, "c": 46}, 16),  # it costs more than there is
        ({"a": (9, 4), "b": (30, 900), "c": (5000, 64)}, {"b": 3, "c": 46}, 300),  # it costs all there is
    ],
)
def test_the_rate_of_an_error_is_that_of_the_recipe_also_beside_what_others_keep_at_least(
    name: str, sizes: dict[str, tuple[int, int]], least: dict[str, int], rate: float
) -> None:
    weights = {layer: torch.ones(size) for layer, (size, _) in sizes.items()}
    costs = {layer: price for layer, (_, price) in sizes.items()}
    nothing = (
        f"rate {rate}: beside what others keep at least, 0 multiply-adds cannot be shared out among 1 layer; lower"
    )
    empty = f"rate {rate} leaves layer a empty: it has 9 weights, and others keep a least number; take a lower rate, or"
    with pytest.raises(InputError, match=f"^({nothing}|{empty}) "):
        allocate(weights, SparsityRecipe(rate=rate, allocation=name, budget="macs"), least, costs)


def test_a_layer_left_empty_is_refused_by_name() -> None:
    with pytest.raises(
        InputError,
        match="leaves layer layer1 empty: it has 6 weights, so at most rate 6, or another allocation",
    ):
        allocate(layers(16000, 6), SparsityRecipe(rate=16))
    with pytest.raises(
        InputError,
        match=r"^rate 300 leaves layer layer2 empty: it has 6 weights, and others keep a least number; take a lower ",
    ):
        allocate(layers(5000, 200, 6), SparsityRecipe(rate=300), {"layer1": 12})


@given(
    layers=st.lists(st.tuples(st.integers(1, 500), st.floats(0.001, 1.0)), min_size=1, max_size=8),
    share=st.floats(0.0, 1.0),
)
def test_shares_are_whole_numbers_that_sum_up_to_the_total(layers: list[tuple[int, float]], share: float) -> None:
    limits = {str(number): size for number, (size, _) in enumerate(layers)}
    wanted = {str(number): size * part for number, (size, part) in enumerate(layers)}
    total = len(layers) + math.floor(share * (sum(limits.values()) - len(layers)))
    kept = shared_out(wanted, limits, total)
    assert sum(kept.values()) == total
    assert all(1 <= kept[name] <= limits[name] for name in kept)


def test_shares_are_in_proportion_until_a_layer_is_full() -> None:
    assert shared_out({"a": 30.0, "b": 10.0}, {"a": 100, "b": 100}, 8) == {"a": 6, "b": 2}
    assert shared_out({"a": 30.0, "b": 10.0}, {"a": 100, "b": 100}, 9) == {"a": 7, "b": 2}
    assert shared_out({"a": 30.0, "b": 10.0}, {"a": 40, "b": 100}, 60) == {"a": 40, "b": 20}
    assert shared_out({"a": 1000.0, "b": 0.001}, {"a": 2000, "b": 5}, 100) == {"a": 99, "b": 1}


@pytest.mark.parametrize("name", ["erk", "lamp"])
@pytest.mark.parametrize("method", ["pwoa", "hydra", "apd", "magnitude"])
def test_a_run_ends_with_what_its_allocation_says_of_the_teacher(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, method: str, name: str
) -> None:
    recipe = quick(method=method, sparsity__rate=5.0, sparsity__allocation=name, search__epochs=1, finetune__epochs=1)
    expected = allocate(prunable(tiny_teacher), recipe.sparsity)
    assert expected != allocate(prunable(tiny_teacher), SparsityRecipe(rate=5.0))
    result = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run")
    assert {row["layer"]: row["kept"] for row in result.summary["sparsity"][:-1]} == expected


class TestMultiplyAdds:
    """A budget of multiply-adds, of which the weights of some layers cost more."""

    @settings(deadline=None, max_examples=100)
    @given(
        st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 300)), min_size=1, max_size=6),
        rates,
        st.integers(0, 2**31),
        st.sampled_from(sorted(ALLOCATIONS)),
        st.integers(0, 12),
    )
    @example([(1, 2, 1), (2, 4, 4)], 2.25, 0, "erk", 1)  # 3 are left for weights of 4: the first layer is not full
    def test_it_is_never_exceeded_and_missed_by_less_than_any_weight_that_could_be_kept(
        self, shapes: list[tuple[int, int, int]], rate: float, seed: int, name: str, at_least: int
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        weights = {str(i): torch.randn(a, b, generator=generator) for i, (a, b, _) in enumerate(shapes)}
        costs = {str(i): price for i, (_, _, price) in enumerate(shapes)}
        least = min(weight.numel() for weight in weights.values()) if name == "uniform" else math.inf
        full = sum(weight.numel() * costs[layer] for layer, weight in weights.items())
        tight = 2.5 * rate if at_least else rate  # of which the others have half at least
        assume(tight <= least and full / tight >= sum(costs.values()) + 1)
        wanted = {"0": min(at_least, weights["0"].numel())} if at_least else None
        kept = allocate(weights, SparsityRecipe(rate=rate, allocation=name, budget="macs"), wanted, costs)
        spent = sum(number * costs[layer] for layer, number in kept.items())
        with_room = [costs[layer] for layer, weight in weights.items() if kept[layer] < weight.numel()]
        assert spent <= full / Fraction(str(rate))
        assert math.floor(full / Fraction(str(rate))) - spent < min(with_room, default=1)
        assert all(1 <= kept[layer] <= weight.numel() for layer, weight in weights.items())

    def test_the_uniform_rate_is_the_same_in_both(self) -> None:
        weights, costs = layers(4000, 400), {"layer0": 1, "layer1": 64}
        by_weights = allocate(weights, SparsityRecipe(rate=8))
        assert allocate(weights, SparsityRecipe(rate=8, budget="macs"), costs=costs) == by_weights

    def test_lamp_of_multiply_adds_keeps_less_of_what_is_dear(self) -> None:
        generator = torch.Generator().manual_seed(0)
        weights = {name: torch.randn(50, 50, generator=generator) for name in ("dear", "cheap")}
        kept = {
            name: allocate(weights, SparsityRecipe(rate=8, allocation=name, budget="macs"), costs={"dear": 16})
            for name in ("lamp", "lamp-macs")
        }
        assert abs(kept["lamp"]["dear"] - kept["lamp"]["cheap"]) < 40
        assert kept["lamp-macs"]["dear"] < 0.9 * kept["lamp"]["dear"]
        assert kept["lamp-macs"]["cheap"] > 3 * kept["lamp"]["cheap"]

    def test_magnitude_ranks_all_weights_together(self) -> None:
        weights = {"small": torch.tensor([1.0, 2.0, 3.0]), "large": torch.tensor([10.0, 20.0, 30.0, 5.0])}
        assert allocate(weights, SparsityRecipe(rate=2.3, allocation="magnitude")) == {"small": 1, "large": 2}

    @pytest.mark.parametrize("name", sorted(ALLOCATIONS))
    def test_a_run_reports_and_meets_it(
        self, tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, name: str
    ) -> None:
        short = {"search__epochs": 1, "finetune__epochs": 1, "sparsity__allocation": name}
        recipe = quick(sparsity__budget="macs", **short)
        summary = pwoa.prune(tiny_teacher, tiny_data, rate=3, recipe=recipe, folder=tmp_path / "run").summary
        kept = {row["layer"]: row["kept"] for row in summary["sparsity"]}
        spent = 36 * kept["conv.weight"] + kept["hidden.weight"] + kept["out.weight"]
        dense = 36 * 36 + 144 * 16 + 16 * 3
        assert (summary["macs"], summary["macs_dense"]) == (spent, dense)
        assert spent == dense // 3  # exactly, as a weight of the linear layers costs one
        assert summary["macs_rate"] == dense / spent

    def test_harp_refuses_it_in_one_line(
        self, tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        recipe = quick(method="harp", sparsity__budget="macs")
        with pytest.raises(InputError, match=r"harp learns its shares of a budget of weights; set sparsity\.budget"):
            pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run")
