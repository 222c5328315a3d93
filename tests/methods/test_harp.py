"""HARP: scores and layers' shares, and the budget they are scaled to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import pwoa
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.methods.harp import Harp, ShareScoring, largest, largest_by_rank
from pwoa.recipe.sections import Recipe, SparsityRecipe
from pwoa.sparsity.allocation import allocate
from pwoa.sparsity.selection import prunable
from pwoa.training.stage import Batch, Material

Make = Callable[..., Recipe]
Way = Callable[[Tensor, Tensor], Tensor]


def scoring_of(model: nn.Module, data: Data, recipe: Recipe) -> tuple[ShareScoring, Batch]:
    material = Material.of(data, recipe, torch.device("cpu"))
    scoring = Harp(model, model, material, recipe).stages[0]
    assert isinstance(scoring, ShareScoring)
    index = material.train[:20]
    return scoring, Batch(*material.images.batch(index), index)


@pytest.mark.parametrize("way", [largest, largest_by_rank])
class TestLargest:
    @pytest.mark.parametrize(("count", "kept"), [(1, [-3.0]), (3, [-3.0, 1.0, 2.0]), (6, [])])
    def test_the_largest_scores_are_kept_whatever_their_sign(self, way: Way, count: int, kept: list[float]) -> None:
        scores = torch.tensor([[0.5, -3.0, 1.0], [2.0, -0.1, 0.2]])
        mask = way(scores, torch.tensor(float(count)))
        assert scores[mask].tolist() == (kept or scores.flatten().tolist())

    def test_equal_scores_do_not_add_to_the_count(self, way: Way) -> None:
        assert int(way(torch.ones(7), torch.tensor(3.0)).sum()) == 3


def test_layers_start_at_the_square_root_of_the_budget(tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    scoring, _ = scoring_of(tiny_teacher, tiny_data, quick(sparsity__rate=16.0))
    sizes = torch.tensor([float(weight.numel()) for weight in prunable(tiny_teacher).values()])
    assert torch.allclose(scoring.wanted(), sizes / 4, rtol=0.01)
    assert float(scoring.penalty()) == pytest.approx(3.0, abs=0.1)  # four times the budget


def test_the_gradients_of_the_shares_go_straight_through_the_mask(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    """Autograd agrees, on the model that computes with w ∘ (M + a − a'), a' being a without a gradient."""
    dense = {name: weight.detach().clone() for name, weight in prunable(tiny_teacher).items()}
    recipe = quick(method="harp", sparsity__rate=4.0, harp__gamma=0.3, search__epochs=20)
    scoring, batch = scoring_of(tiny_teacher, tiny_data, recipe)
    scoring.before_epoch(1)
    assert scoring.gamma.item() == pytest.approx(0.6)
    tiny_teacher.eval()
    with scoring.running():
        scoring.loss(batch).total.backward()
        scoring.after_backward()
    found = scoring.rates.grad

    budget, total = scoring._budget, sum(weight.numel() for weight in dense.values())
    least = 0.1 * budget / total
    rates = scoring.rates.detach().clone().requires_grad_()
    shares = least + (1 - least) * torch.sigmoid(rates)
    masks = scoring.masks()
    weights: dict[str, Tensor] = {
        name: dense[name] * (masks[name] + share - share.detach())
        for name, share in zip(dense, shares.unbind(), strict=True)
    }
    kept_each = (share * weight.numel() for share, weight in zip(shares.unbind(), dense.values(), strict=True))
    kept = sum(kept_each, start=torch.tensor(0.0))
    loss = nn.functional.cross_entropy(functional_call(tiny_teacher, weights, batch.x), batch.y)
    (loss + 0.6 * (kept / budget - 1).clamp_min(0)).backward()
    assert found is not None
    assert rates.grad is not None
    assert torch.allclose(found, rates.grad, rtol=1e-3, atol=1e-6)
    assert float(rates.grad.abs().min()) > 0


def test_within_the_budget_there_is_no_penalty_and_no_pull(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    scoring, batch = scoring_of(tiny_teacher, tiny_data, quick(method="harp", sparsity__rate=4.0, harp__gamma=1e6))
    scoring.before_epoch(0)
    gradients = []
    for rates in (3.0, -3.0):
        with torch.no_grad():
            scoring.rates.fill_(rates)
        with scoring.running():
            loss = scoring.loss(batch)
            loss.total.backward()
            scoring.after_backward()
        assert scoring.rates.grad is not None
        gradients.append(scoring.rates.grad.abs().max())
        assert (float(loss.parts["budget"]) > 0) == (rates > 0)
    assert gradients[0] > 1000
    assert gradients[1] < 100


def test_the_weight_of_the_penalty_grows_until_the_budget_is_met(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    recipe = quick(method="harp", harp__gamma=0.1, search__epochs=20)
    scoring, _ = scoring_of(tiny_teacher, tiny_data, recipe)
    seen = []
    for epoch, penalty in enumerate([2.0, 0.5, 0.00001, 0.7]):
        scoring.before_epoch(epoch)
        seen.append(scoring.gamma.item())
        scoring.after_epoch(epoch, {"budget": penalty})
    assert seen == pytest.approx([0.1, 0.2, 0.3, 0.3])
    other, _ = scoring_of(tiny_teacher, tiny_data, recipe)
    other.load_state_dict(scoring.state_dict())
    other.before_epoch(4)
    assert other.gamma == scoring.gamma


def test_a_short_search_ends_with_the_same_weight(tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    ends = []
    for epochs in (4, 20):
        scoring, _ = scoring_of(tiny_teacher, tiny_data, quick(search__epochs=epochs))
        scoring.before_epoch(epochs - 1)
        ends.append(scoring.gamma.item())
    assert ends == pytest.approx([0.2, 0.2])


def test_layers_end_with_rates_of_their_own(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    recipe = quick(method="harp", search__learning_rate=1.0, harp__gamma=0.15)
    result = pwoa.prune(tiny_teacher, tiny_data, rate=5, recipe=recipe, folder=tmp_path / "run")
    weights = prunable(result.model)
    left = {name: int(weight.count_nonzero()) for name, weight in weights.items()}
    assert sum(left.values()) == sum(weight.numel() for weight in weights.values()) // 5
    rates = [weights[name].numel() / left[name] for name in left]
    assert max(rates) > 1.2 * min(rates)
    assert [line["stage"] for line in result.metrics] == ["scores"] * 3 + ["finetune"] * 3
    assert set(result.metrics[2]["wanted"]) == set(weights)


def test_at_rate_1_everything_stays(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    recipe = quick(method="harp", search__epochs=1, finetune__epochs=1)
    result = pwoa.prune(tiny_teacher, tiny_data, rate=1, recipe=recipe, folder=tmp_path / "run")
    assert result.summary["rate"] == 1.0


def test_a_rate_that_equal_shares_could_not_meet(tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    """At the first, two of the layers would keep less than half a weight; at the second, each keeps one."""
    layers = prunable(tiny_teacher)
    total = sum(weight.numel() for weight in layers.values())
    for rate in (100.0, total / 3):
        with pytest.raises(InputError, match="leaves layer"):
            allocate(layers, SparsityRecipe(rate=rate))
        scoring, _ = scoring_of(tiny_teacher, tiny_data, quick(sparsity__rate=rate))
        left = [int(mask.sum()) for mask in scoring.final_masks().values()]
        assert (sum(left), min(left)) == (int(total / rate), 1)
    with pytest.raises(InputError, match="2 weights cannot be shared out among 3 layers; lower the rate"):
        scoring_of(tiny_teacher, tiny_data, quick(sparsity__rate=total / 2))
