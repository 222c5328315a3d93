"""A learned allocation: the shares, their budget, and what the search begins with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pwoa
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.guard import ExampleFreeViolation, example_free
from pwoa.methods import METHODS
from pwoa.methods.advprune import AdvPrune, Magnitude
from pwoa.methods.harp import Harp
from pwoa.methods.pwoa import Finetune, Pwoa, Search
from pwoa.methods.shares import Shares
from pwoa.models.hidden import multiply_adds
from pwoa.progress import Progress
from pwoa.recipe import Recipe, SparsityRecipe
from pwoa.runs.folder import Run
from pwoa.sparsity import affordable, budget, prunable, select, shared_out, sizes
from pwoa.sparsity.allocation import allocate, cost
from pwoa.training.stage import Batch, Material

Make = Callable[..., Recipe]
CPU = torch.device("cpu")
PLAIN = {"objective__hsic_x": 0.0, "objective__hsic_y": 0.0}


class Branches(nn.Module):
    """A logit that is the sum of two layers of the same positive weights, one times a factor; the others are 0.

    Images are positive too, so that every weight that is pruned makes the logit smaller, and the loss larger.
    """

    def __init__(self, factor: float, swapped: bool = False) -> None:
        super().__init__()
        self.factor = factor
        layers = {name: nn.Linear(36, 1, bias=False) for name in ("needed", "other")}
        for layer in layers.values():
            nn.init.constant_(layer.weight, 0.3)
        self.layers = nn.ModuleDict(dict(sorted(layers.items(), reverse=swapped)))

    def forward(self, x: Tensor) -> Tensor:
        needed, other = self.layers["needed"](x.flatten(1)), self.layers["other"](x.flatten(1))
        return nn.functional.pad(needed + self.factor * other, (0, 2))


class Tied(nn.Module):
    """Uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(36, 36), nn.Linear(36, 36), nn.Linear(36, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.relu(self.second(torch.relu(self.first(x.flatten(1))))))
        return logits


def stages_of(model: nn.Module, data: Data, recipe: Recipe) -> tuple[Shares, Search, Finetune, Batch]:
    """Return the stages that prune a model, and a batch of its images."""
    material = Material.of(data, recipe, CPU)
    shares, search, finetune = Pwoa(model, copy.deepcopy(model).eval(), material, recipe).stages
    assert isinstance(shares, Shares)
    assert isinstance(search, Search)
    assert isinstance(finetune, Finetune)
    index = material.train[:32]
    return shares, search, finetune, Batch(*material.images.batch(index), index)


def learn(shares: Shares, model: nn.Module, batch: Batch, steps: int, learning_rate: float = 0.1) -> None:
    """Train the stage on one batch, as the engine does."""
    optimizer = torch.optim.SGD(shares.parameters(), learning_rate)
    model.train()
    shares.before_epoch(0)
    with shares.running():
        for _ in range(steps):
            model.zero_grad()
            shares.loss(batch).total.backward()
            shares.after_backward()
            optimizer.step()
            shares.after_step()


def at_random(shares: Shares, seed: int) -> None:
    """Let the stage have learned anything."""
    torch.manual_seed(seed)
    with torch.no_grad():
        shares.rates.copy_(4 * torch.randn(len(shares.rates)))


class TestBudget:
    @pytest.mark.parametrize("rate", [1.0, 2.3, 5.0, 33.3, 600.0])
    def test_a_budget_of_weights_is_met_exactly_whatever_was_learned(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, rate: float
    ) -> None:
        shares, search, _, _ = stages_of(
            tiny_teacher, tiny_data, quick(sparsity__allocation="learned", sparsity__rate=rate)
        )
        weights, found = prunable(tiny_teacher), []
        for seed in range(20):
            at_random(shares, seed)
            search.begin()
            kept = search.constraint.kept
            assert sum(kept.values()) == budget(weights, rate)
            assert all(1 <= kept[name] <= weight.numel() for name, weight in weights.items())
            found.append(tuple(kept.values()))
        assert (len(set(found)) > 1) == (1 < rate < 600)  # at the ends all layers keep everything, or one weight

    @pytest.mark.parametrize("rate", [1.0, 1.7, 3.0, 10.0])
    def test_one_of_multiply_adds_is_never_exceeded_and_missed_by_less_than_the_dearest_weight(
        self, tiny_data: Data, quick: Make, rate: float
    ) -> None:
        layers = (nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 3))
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        recipe = quick(sparsity__allocation="learned", sparsity__budget="macs", sparsity__rate=rate)
        shares, _, _, batch = stages_of(model, tiny_data, recipe)
        weights = prunable(model)
        prices = multiply_adds(model, batch.x, weights)
        assert sorted(prices.values()) == [16, 36]
        total, missed = budget(weights, rate, prices), []
        for seed in range(100):
            at_random(shares, seed)
            kept = shares.constraint.kept
            wanted = dict(zip(weights, shares.wanted().tolist(), strict=True))
            assert kept == shared_out(wanted, sizes(weights), total, units=prices)
            missed.append(total - cost(kept, prices))
        assert min(missed) >= 0
        assert max(missed) < 36
        assert not any(missed) or rate > 1

    def test_its_penalty_and_gradients_count_what_weights_cost(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        """At first every layer keeps √(1/√rate · LAMP's share). Autograd has the same gradients."""
        recipe = quick(sparsity__allocation="learned", sparsity__budget="macs", sparsity__rate=16.0)
        shares, _, _, batch = stages_of(tiny_teacher, tiny_data, recipe)
        shares.before_epoch(0)
        weights = prunable(tiny_teacher)
        shares.pass_on({name: torch.zeros_like(weight) for name, weight in weights.items()})
        prices, numbers = multiply_adds(tiny_teacher, batch.x, weights), sizes(weights)
        assert len(set(prices.values())) > 1
        total, dense = budget(weights, 16, prices), cost(numbers, prices)
        lamp = allocate(weights, SparsityRecipe(rate=16.0, allocation="lamp-macs", budget="macs"), costs=prices)
        first = {name: (lamp[name] / numbers[name] / 4) ** 0.5 for name in weights}
        assert shares.wanted().tolist() == pytest.approx([first[name] * numbers[name] for name in weights], rel=0.02)
        over = sum(first[name] * numbers[name] * prices[name] for name in weights) / total - 1
        assert float(shares.penalty()) == pytest.approx(over, rel=0.02)
        rates = shares.rates.detach().clone().requires_grad_()
        least = 0.1 * total / dense
        each = torch.tensor([float(numbers[name] * prices[name]) for name in weights])
        penalty = ((least + (1 - least) * torch.sigmoid(rates)) * each).sum() / total - 1
        (shares.gamma * penalty).backward()
        assert shares.rates.grad is not None
        assert rates.grad is not None
        assert torch.allclose(shares.rates.grad, rates.grad, rtol=1e-4)

    @pytest.mark.parametrize("what", ["weights", "macs"])
    def test_layers_with_few_inputs_keep_their_least(self, tiny_data: Data, quick: Make, what: str) -> None:
        depthwise = nn.Conv2d(8, 8, 3, groups=8)
        model = nn.Sequential(nn.Conv2d(1, 8, 1), depthwise, nn.Flatten(), nn.Linear(128, 30), nn.Linear(30, 3))
        recipe = quick(sparsity__allocation="learned", sparsity__rate=6.0, sparsity__budget=what)
        shares, _, _, batch = stages_of(model, tiny_data, recipe)
        chosen = select(model)
        units = multiply_adds(model, batch.x, chosen.weights) if what == "macs" else {}
        total = budget(chosen.weights, 6, units)
        least = affordable(chosen.least, total, units)
        assert least["1.weight"] > 1
        with torch.no_grad():
            shares.rates.fill_(2.0)
            shares.rates[list(chosen.weights).index("1.weight")] = -20.0
        kept = shares.constraint.kept
        assert kept["1.weight"] == least["1.weight"]
        assert cost(kept, units) <= total


class TestLearning:
    @pytest.mark.parametrize("swapped", [False, True])
    def test_a_layer_that_the_objective_needs_keeps_more_than_one_that_hardly_matters(
        self, tiny_data: Data, quick: Make, swapped: bool
    ) -> None:
        model = Branches(1e-3, swapped)
        shares, _, _, batch = stages_of(model, tiny_data, quick(sparsity__allocation="learned", **PLAIN))
        assert set(shares.constraint.kept.values()) == {9}
        learn(shares, model, batch, 30, learning_rate=1.0)
        kept = shares.constraint.kept
        assert kept["layers.needed.weight"] > 2 * kept["layers.other.weight"]

    def test_layers_that_matter_the_same_keep_the_same(self, tiny_data: Data, quick: Make) -> None:
        model = Branches(1.0)
        shares, _, _, batch = stages_of(model, tiny_data, quick(sparsity__allocation="learned", **PLAIN))
        start = shares.rates.tolist()
        learn(shares, model, batch, 30, learning_rate=1.0)
        first, second = shares.rates.tolist()
        assert abs(first - start[0]) > 0.1
        assert first == pytest.approx(second, abs=1e-4)
        assert set(shares.constraint.kept.values()) == {9}

    def test_the_loss_is_the_objectives_and_the_penalty(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        recipe = quick(sparsity__allocation="learned", objective__hidden=0.3, search__allocation_epochs=4)
        shares, _, finetune, batch = stages_of(tiny_teacher, tiny_data, recipe)
        shares.before_epoch(3)
        with shares.running():
            learned = shares.loss(batch)
        with finetune.running():
            plain = finetune.loss(batch)
        assert set(learned.parts) == {"distillation", "hidden", "hsic_x", "hsic_y", "budget"}
        over = learned.total.item() - plain.total.item()
        assert over == pytest.approx(0.2 * learned.parts["budget"].item(), rel=1e-3)


class TestWhatTheSearchBeginsWith:
    def test_the_teachers_weights_and_statistics_and_the_learned_constraint(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        student = copy.deepcopy(tiny_teacher)
        recipe = quick(sparsity__allocation="learned", sparsity__rate=8.0)
        shares, search, finetune, batch = stages_of(student, tiny_data, recipe)
        first = search.constraint.kept
        learn(shares, student, batch, 12, learning_rate=1.0)
        teachers, changed = tiny_teacher.state_dict(), student.state_dict()
        names = {name for name, value in teachers.items() if not torch.equal(value, changed[name])}
        assert names >= {"conv.weight", "norm.weight", "norm.running_mean", "norm.num_batches_tracked"}
        assert names.isdisjoint({"conv.bias", "out.bias"})
        search.begin()
        assert all(torch.equal(value, teachers[name]) for name, value in student.state_dict().items())
        assert search.constraint.kept == shares.constraint.kept != first
        auxiliary = search.state_dict()["admm"]["auxiliary"]
        assert {name: int(value.count_nonzero()) for name, value in auxiliary.items()} == search.constraint.kept
        finetune.begin()
        left = {name: int(weight.count_nonzero()) for name, weight in prunable(student).items()}
        assert left == search.constraint.kept

    def test_a_weight_that_layers_share_stays_one(self, tiny_data: Data, quick: Make) -> None:
        model = Tied()
        before = copy.deepcopy(model.state_dict())
        recipe = quick(sparsity__allocation="learned", sparsity__rate=3.0, sparsity__budget="macs")
        shares, search, _, batch = stages_of(model, tiny_data, recipe)
        learn(shares, model, batch, 3)
        assert not torch.equal(model.first.weight, before["first.weight"])
        search.begin()
        assert model.second.weight is model.first.weight
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert cost(search.constraint.kept, {"first.weight": 2}) == budget(prunable(model), 3.0, {"first.weight": 2})

    def test_a_constraint_that_tightens_ends_at_the_learned_one(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        recipe = quick(sparsity__allocation="learned", sparsity__rate=8.0, search__start_rate=2.0)
        shares, search, _, _ = stages_of(tiny_teacher, tiny_data, recipe)
        at_random(shares, 1)
        search.begin()
        counts = []
        for step in (0, 29):
            search.before_step(step, 10)
            search.before_step(step + 1, 10)
            auxiliary = search.state_dict()["admm"]["auxiliary"]
            counts.append({name: int(value.count_nonzero()) for name, value in auxiliary.items()})
        total = sum(sizes(prunable(tiny_teacher)).values())
        assert sum(counts[0].values()) >= total // 2
        assert counts[1] == shares.constraint.kept


@pytest.mark.parametrize("step", [3, 6, 9, 11, 14, 17, 19])
def test_killed_and_resumed_in_any_stage_it_ends_with_the_same_bits(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    killed: Callable[[int], Progress],
    monkeypatch: pytest.MonkeyPatch,
    step: int,
) -> None:
    """Of 4 steps an epoch: 2 epochs learn the allocation, 2 search, 1 finetunes. 9 and 17 are the first of a stage."""
    monkeypatch.setattr("pwoa.training.engine.SHARE", 0)  # saved after every step
    monkeypatch.setattr("pwoa.methods.shares.LEARNING_RATE", 1.0)  # in so few steps
    epochs = {"search__allocation_epochs": 2, "search__epochs": 2, "finetune__epochs": 1}
    recipe = quick(
        sparsity__allocation="learned",
        objective__distillation=1e-3,  # the logits here are large, and with them the term
        search__interval=0.5,
        search__start_rate=2.0,
        evaluation__images=4,
        **epochs,
    )

    def run(folder: str, progress: Progress) -> pwoa.Result:
        return pwoa.prune(tiny_teacher, tiny_data, rate=8, recipe=recipe, folder=tmp_path / folder, progress=progress)

    whole = run("whole", Progress())
    with pytest.raises(KeyboardInterrupt):
        run("cut", killed(1 + step))  # the check of the teacher is one more
    state = Run(tmp_path / "cut").load_checkpoint()
    assert state is not None
    assert (state["stage"], state["epoch"], state["step"]) == ((step - 1) // 8, (step - 1) // 4 % 2, (step - 1) % 4)
    again = run("cut", Progress())
    kept = {name: int(weight.count_nonzero()) for name, weight in prunable(whole.model).items()}
    uniform = allocate(prunable(tiny_teacher), Recipe().with_settings({"sparsity.rate": 8.0}).sparsity)
    assert sum(kept.values()) == sum(uniform.values())
    assert kept != uniform  # so a constraint that is lost would be seen
    found = again.model.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in whole.model.state_dict().items())
    assert [without_seconds(line) for line in again.metrics] == [without_seconds(line) for line in whole.metrics]


def without_seconds(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.endswith("seconds")}


@pytest.mark.parametrize(("method", "mix"), [("pwoa", 0.0), ("advprune", 0.0), ("pwoa", 0.5)])
def test_a_run_says_what_it_does_and_is_example_free_without_a_mix_ratio(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, told: Any, method: str, mix: float
) -> None:
    short = {"search__epochs": 1, "finetune__epochs": 1, "evaluation__images": 4}
    recipe = quick(method=method, sparsity__allocation="learned", training__mix=mix, **short)
    result = pwoa.prune(tiny_teacher, tiny_data, rate=5, recipe=recipe, folder=tmp_path / "run", progress=told)
    assert "rate 5 by a learned allocation, 2 + 1 + 1 epochs on " in told.said[0]
    assert [line["stage"] for line in result.metrics] == ["allocation"] * 2 + ["search", "finetune"]
    weights = prunable(result.model)
    assert set(result.metrics[1]["wanted"]) == set(weights)
    assert sum(int(weight.count_nonzero()) for weight in weights.values()) == sum(sizes(weights).values()) // 5
    assert result.summary["example_free"] == (mix == 0)


def test_the_stage_makes_adversarial_examples_only_with_a_mix_ratio(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    """Inside the guard of an example-free run it learns; with a mix ratio it cannot."""
    for mix in (0.0, 0.5):
        student = copy.deepcopy(tiny_teacher)
        shares, _, _, batch = stages_of(
            student, tiny_data, quick(sparsity__allocation="learned", training__mix=mix, training__batch=32)
        )
        with example_free(student):
            if mix:
                with pytest.raises(ExampleFreeViolation):
                    learn(shares, student, batch, 1)
            else:
                learn(shares, student, batch, 1)


class TestWhoLearnsIt:
    @pytest.mark.parametrize("method", ["hydra", "apd", "magnitude"])
    def test_methods_that_do_not_learn_it_refuse_it_before_anything_is_told(
        self, tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, told: Any, method: str
    ) -> None:
        recipe = quick(method=method, sparsity__allocation="learned")
        with pytest.raises(InputError, match=r"^sparsity\.allocation = learned is for pwoa and advprune; ") as caught:
            pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run", progress=told)
        assert "\n" not in str(caught.value)
        assert "learned" not in str(caught.value).partition("allowed: ")[2]
        assert told.said == []

    def test_adam_is_refused(self, tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
        recipe = quick(sparsity__allocation="learned", training__optimizer="adam")
        with pytest.raises(
            InputError, match=r"^sparsity\.allocation = learned needs training\.optimizer = sgd"
        ) as caught:
            pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run")
        assert "\n" not in str(caught.value)
        assert not Run(tmp_path / "run").started

    def test_what_methods_declare(self) -> None:
        recipe = Recipe().with_settings(
            {
                "sparsity.allocation": "learned",
                "search.allocation_epochs": 4,
                "search.epochs": 2,
                "finetune.epochs": 3,
            }
        )
        epochs = {name: method.stage_epochs(recipe) for name, method in METHODS.items() if method.prunes}
        learning = {"pwoa": (4, 2, 3), "advprune": (4, 2, 3)}
        assert epochs == dict.fromkeys(epochs, (2, 3)) | {"magnitude": (3,)} | learning
        known = Recipe()
        assert [kind.learns_allocation(recipe) for kind in (Pwoa, AdvPrune, Harp)] == [True, True, True]
        assert [kind.learns_allocation(known) for kind in (Pwoa, AdvPrune, Harp)] == [False, False, True]
        assert not Magnitude.learns_allocation(recipe)
