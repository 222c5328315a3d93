"""The competing ways to prune, and the mix ratio."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

import pwoa
from pwoa.attacks.ball import distance
from pwoa.cli.options import app
from pwoa.data.images import Data
from pwoa.guard import ExampleFreeViolation, example_free
from pwoa.methods import METHODS, find_pruning, harp
from pwoa.methods.adversarial import Trades
from pwoa.methods.hydra import Hydra, Scoring, first_scores, mixed_loss
from pwoa.methods.pruning import Mixer, teacher_logits
from pwoa.progress import Progress
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Run
from pwoa.sparsity.selection import prunable
from pwoa.threat import Threat
from pwoa.training.groups import Plan, grouped
from pwoa.training.stage import Batch, Material

Make = Callable[..., Recipe]
CPU = torch.device("cpu")
PRUNING = [name for name, method in METHODS.items() if method.prunes]


def batch_of(data: Data, recipe: Recipe, n: int = 20) -> tuple[Material, Batch]:
    material = Material.of(data, recipe, CPU)
    index = material.train[:n]
    return material, Batch(*material.images.batch(index), index)


class TestMixing:
    @pytest.mark.parametrize(("ratio", "count"), [(0.0, 0), (0.2, 4), (0.5, 10), (1.0, 20)])
    def test_that_fraction_of_the_examples_is_attacked(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, ratio: float, count: int
    ) -> None:
        recipe = quick(training__mix=ratio)
        material, batch = batch_of(tiny_data, recipe)
        tiny_teacher.train()
        mixed = Mixer(tiny_teacher, material, recipe)(batch)
        apart = distance(mixed.x, batch.x, "linf")
        assert int((apart > 0).sum()) == count
        assert float(apart.max()) <= recipe.threat.radius + 1e-6
        assert torch.equal(mixed.y, batch.y)
        assert all(module.training for module in tiny_teacher.modules())

    @pytest.mark.parametrize("parts", [1, 2, 4])
    def test_each_group_has_as_many_however_a_batch_is_cut_up(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, parts: int
    ) -> None:
        recipe = quick(training__mix=0.3, training__group=4)
        material, batch = batch_of(tiny_data, recipe, 16)
        mixer, size = Mixer(tiny_teacher, material, recipe), 16 // parts
        slices = [slice(at, at + size) for at in range(0, 16, size)]
        cut = [Batch(batch.x[part], batch.y[part], batch.index[part]) for part in slices]
        apart = torch.cat([distance(mixer(part).x, part.x, "linf") for part in cut])
        assert (apart > 0).view(4, 4).sum(1).tolist() == [1, 1, 1, 1]

    def test_any_image_of_a_group_can_be_chosen(self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
        recipe = quick(training__mix=0.25, training__group=4)
        material, batch = batch_of(tiny_data, recipe, 16)
        mixer = Mixer(tiny_teacher, material, recipe)
        torch.manual_seed(0)
        times = sum((distance(mixer(batch).x, batch.x, "linf") > 0).int() for _ in range(60))
        assert isinstance(times, Tensor)
        assert 5 <= int(times.min()) <= int(times.max()) <= 28  # 15 on average, with a deviation of 3.4

    def test_the_attack_can_reach_all_of_the_ball(self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
        """Also where the steps for evaluation are so small that ten of them cannot, as on MNIST."""
        recipe = quick(training__mix=1.0, threat__radius=0.3, threat__step=0.001)
        material, batch = batch_of(tiny_data, recipe)
        apart = (Mixer(tiny_teacher, material, recipe)(batch).x - batch.x).abs()
        inside = (batch.x > 0.31) & (batch.x < 0.69)
        assert int(inside.sum()) > 50
        assert float((apart[inside] > 0.29).float().mean()) > 0.5

    def test_it_is_seeded(self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
        recipe = quick(training__mix=0.5)
        material, batch = batch_of(tiny_data, recipe)
        mixer, found = Mixer(tiny_teacher, material, recipe), []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            found.append(mixer(batch).x)
        assert torch.equal(found[0], found[1])
        assert not torch.equal(found[0], found[2])

    def test_it_raises_in_an_example_free_run(self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
        recipe = quick(training__mix=0.5)
        material, batch = batch_of(tiny_data, recipe)
        with example_free(tiny_teacher), pytest.raises(ExampleFreeViolation):
            Mixer(tiny_teacher, material, recipe)(batch)

    def test_the_teacher_sees_what_the_student_sees(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        """A student that is the teacher has no distillation loss, on whatever images."""
        recipe = quick(training__mix=1.0, objective__hsic_x=0.0, objective__hsic_y=0.0)
        material, batch = batch_of(tiny_data, recipe)
        method = find_pruning("pwoa")(tiny_teacher, tiny_teacher, material, recipe)
        tiny_teacher.eval()
        with method.stages[0].running():
            loss = method.stages[0].loss(batch)
        assert float(loss.parts["distillation"].detach()) == pytest.approx(0, abs=1e-4)


def test_the_command_line_knows_every_method() -> None:
    for verb, known in (("prune", PRUNING), ("pretrain", METHODS.keys() - PRUNING)):
        text = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output
        (line,) = (line for line in text.splitlines() if "--method" in line and "Example" not in line)
        assert set(re.findall(r"[a-z-]+", line)) >= set(known)
    wrong = CliRunner().invoke(app, ["prune", "--method", "hidra"])
    assert wrong.exit_code == 2
    assert "unknown method 'hidra' (did you mean 'hydra'?)" in wrong.stderr


@pytest.mark.parametrize("method", PRUNING)
@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0])
def test_every_method_prunes_to_the_exact_budget(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, method: str, mix: float
) -> None:
    recipe = quick(method=method, training__mix=mix, search__epochs=2, finetune__epochs=2)
    result = pwoa.prune(tiny_teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "run")
    assert result.summary["example_free"] == (mix == 0)
    assert result.summary["method"] == method
    weights = prunable(result.model)
    left = {name: int(weight.count_nonzero()) for name, weight in weights.items()}
    assert sum(left.values()) == sum(weight.numel() for weight in weights.values()) // 4
    if method != "harp":  # which learns how to share the budget
        assert all(abs(weight.numel() / 4 - left[name]) < 1 for name, weight in weights.items())


def test_the_teacher_is_asked_about_the_images_that_are_used_and_no_others(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    material = Material.of(tiny_data, quick(data__images=60, data__validation=20), CPU)
    asked: list[Tensor] = []
    teacher = copy.deepcopy(tiny_teacher)
    teacher.register_forward_hook(lambda module, given, logits: asked.append(logits))
    says = teacher_logits(teacher, material)
    for part in (material.train[:7], material.validation):
        x, y = material.images.batch(part)
        with torch.no_grad():
            torch.testing.assert_close(says(Batch(x, y, part)), tiny_teacher(x))
    assert sum(map(len, asked)) == 60


class Unhurried(TorchDispatchMode):
    """Raises where the host would wait for a device to tell it a number."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::")
        assert name not in ("_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero"), name
        chosen = args[1] if name.startswith(("index.", "index_put")) else ()
        assert not any(each is not None and each.dtype == torch.bool for each in chosen), f"{name} by a mask"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("method", "allocation"), [*((name, "uniform") for name in PRUNING), ("pwoa", "learned")])
def test_the_host_never_waits_for_the_device_within_a_step(
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    method: str,
    allocation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(harp, "largest", harp.largest_by_rank)  # as on a device
    recipe = quick(method=method, training__mix=0.5, sparsity__allocation=allocation)
    material, batch = batch_of(tiny_data, recipe)
    for stage in find_pruning(method)(tiny_teacher, copy.deepcopy(tiny_teacher), material, recipe).stages:
        tiny_teacher.train()
        with stage.running():
            stage.begin()
            stage.before_epoch(0)
            stage.loss(batch)  # what is kept from the first step on may be computed in it
            with Unhurried():
                stage.loss(batch).total.backward()
                stage.after_backward()
                stage.after_step()


@pytest.mark.parametrize("at", [11, 15, 23])
@pytest.mark.parametrize("method", ["pwoa", "advprune", "hydra", "apd", "harp"])
def test_a_method_killed_in_either_stage_resumes_to_the_same_bits(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    killed: Callable[[int], Progress],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    at: int,
) -> None:
    """In the third epoch of the search, and in the first and the third of the weights, at 4 steps an epoch."""
    monkeypatch.setattr("pwoa.training.engine.SHARE", 0)  # saved after every step
    recipe = quick(method=method, training__mix=0.5)
    whole = pwoa.prune(tiny_teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        pwoa.prune(tiny_teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "cut", progress=killed(at))
    state = Run(tmp_path / "cut").load_checkpoint()
    assert state is not None
    assert state["step"] == 1  # the check of the teacher counts as a step of the progress
    pwoa.prune(tiny_teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "cut")
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("method", "optimizer", "told_so"), [("hydra", "adam", 1), ("hydra", "sgd", 0), ("apd", "adam", 0)]
)
def test_scores_that_are_trained_by_adam_are_told(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    told: Any,
    method: str,
    optimizer: str,
    told_so: int,
) -> None:
    settings = {"search__epochs": 1, "finetune__epochs": 1, "search__learning_rate": 0.001}
    recipe = quick(method=method, training__optimizer=optimizer, **settings)
    pwoa.prune(tiny_teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "run", progress=told)
    assert told.said[0].count("note: the scores of hydra are meant for SGD") == told_so


@pytest.mark.parametrize(
    ("method", "allocation", "rate", "hint"),
    [
        ("magnitude", "lamp", "rate 5 by lamp, ", 0),
        ("magnitude", "uniform", "rate 5, ", 0),
        ("harp", "lamp", "rate 5, ", 1),
    ],
)
def test_an_allocation_is_told_or_that_it_is_not_used(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    told: Any,
    method: str,
    allocation: str,
    rate: str,
    hint: int,
) -> None:
    recipe = quick(method=method, sparsity__allocation=allocation, search__epochs=1, finetune__epochs=1)
    pwoa.prune(tiny_teacher, tiny_data, rate=5, recipe=recipe, folder=tmp_path / "run", progress=told)
    assert rate in told.said[0]
    assert told.said[0].count("note: harp learns how many weights each layer keeps; sparsity.allocation is not") == hint


class Forgetful(nn.Module):
    """Has a layer that it does not use."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.unused = model, nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


@pytest.mark.parametrize("method", PRUNING)
def test_a_layer_that_is_not_used_is_pruned_like_the_others(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, method: str
) -> None:
    recipe = quick(method=method, search__epochs=1, finetune__epochs=1)
    result = pwoa.prune(Forgetful(tiny_teacher), tiny_data, rate=4, recipe=recipe, folder=tmp_path / "run")
    left = {name: int(weight.count_nonzero()) for name, weight in prunable(result.model).items()}
    assert sum(left.values()) == sum(weight.numel() for weight in prunable(result.model).values()) // 4
    assert left["unused.weight"] < 20


class TestHydra:
    def test_where_all_examples_are_adversarial_the_attack_can_reach_all_of_the_ball(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = quick(method="hydra", training__mix=1.0, threat__radius=0.3, threat__step=0.001)
        material, batch = batch_of(tiny_data, recipe)
        asked: list[Threat] = []

        def note(trades: Trades, batch: Batch, threat: Threat) -> Tensor:
            asked.append(threat)
            return batch.x

        monkeypatch.setattr(Trades, "furthest", note)
        mixed_loss(tiny_teacher, material, recipe)(batch)
        assert asked == [recipe.threat.in_quarters()]

    @pytest.mark.parametrize("mix", [0.0, 0.25, 0.5, 1.0])
    def test_the_divergence_is_over_the_mix_ratio(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch, mix: float
    ) -> None:
        """The images that are not chosen add 0, so that the loss goes from cross-entropy to TRADES without a jump."""
        recipe = quick(method="hydra", training__mix=mix, training__group=4, pretrain__beta=3.0)
        material, batch = batch_of(tiny_data, recipe)
        attacked: list[Tensor] = []

        def shifted(trades: Trades, batch: Batch, threat: Threat) -> Tensor:
            attacked.append(batch.index)
            return (batch.x + 0.1).clamp(0, 1)

        monkeypatch.setattr(Trades, "furthest", shifted)
        tiny_teacher.eval()
        with torch.no_grad():
            tiny_teacher.get_parameter("out.weight").mul_(0.05)  # else it is sure of everything
            found = mixed_loss(tiny_teacher, material, recipe)(batch)
            logits, moved = tiny_teacher(batch.x), tiny_teacher((batch.x + 0.1).clamp(0, 1))
        chosen = torch.isin(batch.index, torch.cat([*attacked, batch.index[:0]]))
        assert chosen.view(-1, 4).sum(1).tolist() == [round(4 * mix)] * 5
        kl = (logits.softmax(1) * (logits.log_softmax(1) - moved.log_softmax(1))).sum(1)
        expected = nn.functional.cross_entropy(logits, batch.y) + 3 * (kl * chosen).mean()
        assert float(kl.min()) > 1e-5
        torch.testing.assert_close(found.total, expected)
        torch.testing.assert_close(found.logits, logits)

    def test_natural_images_are_normalised_with_the_adversarial_ones_of_their_group(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = quick(method="hydra", training__mix=0.5, training__group=4)
        material, batch = batch_of(tiny_data, recipe, 8)
        monkeypatch.setattr(Trades, "furthest", lambda trades, batch, threat: batch.x + 0.3)
        monkeypatch.setattr(Mixer, "choose", lambda mixer, batch: torch.tensor([[1, 3], [4, 7]]))
        with grouped(tiny_teacher.train(), Plan(4, images=8)):
            found = mixed_loss(tiny_teacher, material, recipe)(batch).logits
        parts = [
            tiny_teacher(torch.cat([batch.x[at], batch.x[some] + 0.3]))[:4]
            for at, some in ((slice(4), [1, 3]), (slice(4, 8), [4, 7]))
        ]
        torch.testing.assert_close(found, torch.cat(parts), atol=1e-4, rtol=1e-4)

    def scoring(self, model: nn.Module, data: Data, recipe: Recipe) -> tuple[Scoring, Batch]:
        material, batch = batch_of(data, recipe)
        scoring = Hydra(model, model, material, recipe).stages[0]
        assert isinstance(scoring, Scoring)
        return scoring, batch

    def test_scores_start_with_the_largest_weights(self) -> None:
        weight = torch.tensor([[3.0, -6.0], [0.0, 1.5]])
        assert torch.allclose(first_scores(weight), math.sqrt(3) * torch.tensor([[0.5, -1.0], [0.0, 0.25]]))

    def test_the_gradient_goes_straight_through_the_mask(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        dense = {name: weight.detach().clone() for name, weight in prunable(tiny_teacher).items()}
        scoring, batch = self.scoring(tiny_teacher, tiny_data, quick(sparsity__rate=2.0))
        with scoring.running():
            weights = prunable(tiny_teacher)
            assert all(0 < int(weight.count_nonzero()) < weight.numel() for weight in weights.values())
            scoring.loss(batch).total.backward()
            gradients: dict[str, Tensor] = {name: w.grad.clone() for name, w in weights.items() if w.grad is not None}
            scoring.after_backward()
        for name, score in scoring._scores.items():
            assert score.grad is not None
            assert torch.allclose(score.grad, gradients[name] * dense[name] * score.detach().sign())
        left = {name for name, parameter in tiny_teacher.named_parameters() if parameter.grad is not None}
        assert left == {"norm.weight", "norm.bias"}

    def test_only_scores_change_in_the_first_stage(
        self, tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        """What is kept in the end, if the second stage does nothing, has the teacher's weights."""
        recipe = quick(method="hydra", search__learning_rate=0.5, finetune__learning_rate=0.0, finetune__epochs=1)
        recipe = recipe.with_settings({"training.average": 0.0})
        result = pwoa.prune(tiny_teacher, tiny_data, rate=3, recipe=recipe, folder=tmp_path / "run")
        before, by_size = prunable(tiny_teacher), 0
        for name, weight in prunable(result.model).items():
            kept = weight != 0
            assert torch.equal(weight[kept], before[name][kept])
            smallest = before[name][kept].abs().min()
            by_size += int((before[name][~kept].abs() <= smallest).all())
        assert by_size < len(before)  # the scores have learned something else than the sizes
        assert torch.equal(dict(result.model.named_parameters())["out.bias"], tiny_teacher.get_parameter("out.bias"))


@pytest.mark.parametrize("method", ["hydra", "harp"])
def test_while_scores_are_learned_batch_normalisation_is_trained_and_no_bias(
    tmp_path: Path, tiny_data: Data, quick: Make, method: str
) -> None:
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    teacher(torch.zeros(2, 1, 6, 6))
    settings = {"training.average": 0.0, "finetune.learning_rate": 0.0, "finetune.epochs": 1}
    recipe = quick(method=method).with_settings(settings)
    result = pwoa.prune(teacher, tiny_data, rate=2, recipe=recipe, folder=tmp_path / "run", force=True)
    before, after = dict(teacher.named_parameters()), dict(result.model.named_parameters())
    for name, value in after.items():
        changed = not torch.equal(value[value != 0], before[name][value != 0])
        assert changed == name.startswith("1."), name


def test_magnitude_keeps_the_largest_of_the_teacher(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("pwoa.methods.pwoa.Admm")  # whose variables are as large as the network
    recipe = quick(method="magnitude", finetune__epochs=1)
    result = pwoa.prune(tiny_teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "run")
    assert [line["stage"] for line in result.metrics] == ["finetune"]
    before = {name: weight.detach() for name, weight in prunable(tiny_teacher).items()}
    for name, weight in prunable(result.model).items():
        kept = weight != 0
        assert float(before[name][~kept].abs().max()) <= float(before[name][kept].abs().min())


def test_advprune_without_adversarial_examples_is_naive_pruning(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    naive = quick(
        objective__distillation=0.0, objective__hsic_x=0.0, objective__hsic_y=0.0, objective__classification=1.0
    )
    found = [
        pwoa.prune(tiny_teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / str(number)).folder
        for number, recipe in enumerate([naive, quick(method="advprune")])
    ]
    assert (found[0] / "model.safetensors").read_bytes() == (found[1] / "model.safetensors").read_bytes()
