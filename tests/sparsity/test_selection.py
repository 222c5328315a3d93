"""Which parameters are weights, which are left out and why, and which layers keep more than their share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pwoa.errors import InputError
from pwoa.models.architectures.registry import ARCHITECTURES, build
from pwoa.models.hidden import LAYER_TYPES
from pwoa.recipe.sections import SparsityRecipe
from pwoa.sparsity.allocation import ALLOCATIONS, affordable, allocate, budget, shared_out
from pwoa.sparsity.constraint import plan_notes
from pwoa.sparsity.selection import FEW, describe_left_out, prunable, select


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_of_registered_architectures_the_convolutions_and_linear_layers_are_pruned_and_nothing_else(name: str) -> None:
    with torch.device("meta"):
        model = build(name, 10, ARCHITECTURES[name].channels)
    chosen = select(model)
    layers = [f"{layer}.weight" for layer, module in model.named_modules() if isinstance(module, LAYER_TYPES)]
    assert list(chosen.weights) == layers
    assert not chosen.left_out
    assert not chosen.least


class LayerNorm2d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 5))


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.own_norm = nn.LayerNorm((3, 4)), LayerNorm2d()
        self.relative_position_bias_table = nn.Parameter(torch.ones(9, 2))
        self.position_embeddings = nn.Embedding(7, 4)
        self.words = nn.Embedding(7, 4)
        self.token_embedding = nn.Embedding(7, 4)
        self.register_tokens = nn.Parameter(torch.ones(1, 4, 5))
        self.attention_biases = nn.Parameter(torch.ones(2, 9))
        self.gamma = nn.Parameter(torch.ones(4, 1, 1))
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.up = nn.ConvTranspose2d(4, 6, 2)
        self.recurrent = nn.GRU(4, 5)
        self.bilinear = nn.Bilinear(2, 3, 4)
        self.column = nn.Linear(1, 5)
        self.matrices = nn.ParameterList([torch.ones(3, 4)])


def test_a_reason_is_given_for_everything_that_is_left_out() -> None:
    chosen = select(Everything())
    assert chosen.left_out == {
        "relative_position_bias_table": "positions",
        "register_tokens": "token",
        "attention_biases": "bias",
        "gamma": "a vector",
        "norm.weight": "normalisation",
        "norm.bias": "normalisation",
        "own_norm.weight": "normalisation",
        "position_embeddings.weight": "positions",
        "attention.bias_k": "a vector",
        "attention.bias_v": "a vector",
    }
    assert set(chosen.weights) == {
        *("words.weight", "token_embedding.weight", "attention.in_proj_weight", "attention.out_proj.weight"),
        *("up.weight", "recurrent.weight_ih_l0", "recurrent.weight_hh_l0", "bilinear.weight", "column.weight"),
        "matrices.0",
    }
    assert chosen.outputs["up.weight"] == 6
    assert "words.weight" not in chosen.outputs


def test_of_many_names_only_the_first_are_shown() -> None:
    assert describe_left_out(dict.fromkeys("abcde", "a vector")) == (
        "a (a vector), b (a vector), c (a vector) and 2 more"
    )


def test_a_shared_weight_is_excluded_by_any_of_its_names() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(5, 4), "head": nn.Linear(4, 5), "other": nn.Linear(4, 4)})
    model["head"].weight = model["table"].weight
    assert list(prunable(model)) == ["table.weight", "other.weight"]
    for name in ("table.weight", "head.weight"):
        assert list(prunable(model, SparsityRecipe(exclude=(name,)))) == ["other.weight"]


def test_excluding_everything_is_refused() -> None:
    with pytest.raises(InputError, match=r"^Linear has no weights to prune: weight \(excluded\)$"):
        prunable(nn.Linear(2, 3), SparsityRecipe(exclude=("*",)))


def test_two_parameters_over_the_same_memory_are_refused() -> None:
    first, second = nn.Linear(4, 5), nn.Linear(5, 4)
    second.weight = nn.Parameter(first.weight.detach().t())
    with pytest.raises(InputError, match=r"^1\.weight and 0\.weight are two parameters over the same memory"):
        prunable(nn.Sequential(first, second))


class TestFewInputs:
    """Grouped convolutions, whose every output has few inputs, keep more; the budget is met by the others."""

    mobile = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 64, 1), nn.Linear(64, 20))

    @pytest.mark.parametrize("allocation", ALLOCATIONS)
    @pytest.mark.parametrize("rate", [1.0, 1.3, 4.0, 8.0])
    def test_a_depthwise_layer_stays_dense_and_the_total_is_exact(self, allocation: str, rate: float) -> None:
        chosen, recipe = select(self.mobile), SparsityRecipe(rate=rate, allocation=allocation)
        assert chosen.least == {"1.weight": 72}
        kept = allocate(chosen.weights, recipe, chosen.least)
        assert list(kept) == list(chosen.weights)
        assert kept["1.weight"] == 72
        assert sum(kept.values()) == budget(chosen.weights, rate)

    def test_so_do_the_filters_of_a_first_layer_but_only_beside_grouped_ones(self) -> None:
        first, pointwise = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)
        assert select(nn.Sequential(first, pointwise, nn.Conv2d(8, 8, 3))).least == {}
        depthwise = nn.Conv2d(8, 8, 3, groups=8)
        assert select(nn.Sequential(first, pointwise, depthwise)).least == {"0.weight": 72, "2.weight": 72}

    def test_groups_of_many_inputs_keep_at_least_a_few_an_output(self) -> None:
        model = nn.Sequential(nn.Conv2d(32, 32, 7, groups=16), nn.Linear(300, 300))
        chosen = select(model)
        assert chosen.least == {"0.weight": 32 * FEW}
        assert allocate(chosen.weights, SparsityRecipe(rate=4), chosen.least)["0.weight"] == 32 * 98 // 4
        assert allocate(chosen.weights, SparsityRecipe(rate=40), chosen.least)["0.weight"] == 32 * FEW

    def test_at_most_half_of_the_budget_goes_to_them(self) -> None:
        chosen = select(self.mobile)
        total = budget(chosen.weights, 20)
        kept = allocate(chosen.weights, SparsityRecipe(rate=20), chosen.least)
        assert total == 107
        assert affordable(chosen.least, total) == {"1.weight": 53}
        assert kept["1.weight"] == 53
        assert sum(kept.values()) == total

    def test_a_network_of_such_layers_alone_is_pruned_as_any_other(self) -> None:
        chosen = select(nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 16, 3, groups=8)))
        kept = allocate(chosen.weights, SparsityRecipe(rate=4), chosen.least)
        assert sum(kept.values()) == 216 // 4
        assert kept == {"0.weight": 18, "1.weight": 36}

    @settings(deadline=None, max_examples=100)
    @given(
        st.lists(st.tuples(st.integers(4, 40), st.integers(4, 40), st.booleans()), min_size=1, max_size=6),
        st.floats(1, 12),
        st.sampled_from(sorted(ALLOCATIONS)),
    )
    def test_the_total_is_met_whatever_the_layers(
        self, shapes: list[tuple[int, int, bool]], rate: float, name: str
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        weights = {str(i): torch.randn(a, b, generator=generator) for i, (a, b, _) in enumerate(shapes)}
        least = {str(i): min(a * b, FEW * a) for i, (a, b, few) in enumerate(shapes) if few}
        kept = allocate(weights, SparsityRecipe(rate=rate, allocation=name), least)
        total = budget(weights, rate)
        assert sum(kept.values()) == total
        assert all(1 <= kept[name] <= weight.numel() for name, weight in weights.items())
        if len(least) < len(weights):
            assert all(kept[name] >= number for name, number in affordable(least, total).items())

    def test_shares_have_a_least(self) -> None:
        assert shared_out({"a": 30.0, "b": 10.0}, {"a": 100, "b": 100}, 40, {"b": 15}) == {"a": 25, "b": 15}

    def test_a_budget_that_does_not_pay_for_the_least_is_refused(self) -> None:
        wanted, limits = {"a": 3.0, "b": 3.0, "c": 3.0}, dict.fromkeys("abc", 10)
        assert shared_out(wanted, limits, 6, {"a": 4}) == {"a": 4, "b": 1, "c": 1}
        with pytest.raises(InputError, match="5 weights cannot be shared out among 3 layers; lower the rate"):
            shared_out(wanted, limits, 5, {"a": 4})
        with pytest.raises(InputError, match="13 multiply-adds cannot be shared out among 3 layers; lower the rate"):
            shared_out(wanted, limits, 13, {"a": 4}, {"a": 3})

    def test_a_run_says_so_and_warns_of_layers_with_less_than_a_handful(self) -> None:
        chosen, recipe = select(self.mobile), SparsityRecipe(rate=4)
        denser, thin = plan_notes(self.mobile, recipe, allocate(chosen.weights, recipe, chosen.least))
        assert denser == "note: 1.weight kept denser, as outputs have few inputs there; others keep less"
        assert thin.startswith("warning: 1 layer keeps fewer than 5 weights an output (2.weight keeps 1.8): robustness")
        dense = {name: weight.numel() for name, weight in chosen.weights.items()}
        assert plan_notes(self.mobile, SparsityRecipe(rate=1), dense) == []
