"""Robust training: each loss is its paper's formula, and each method runs from end to end."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pwoa
from pwoa.attacks.ball import distance
from pwoa.attacks.gradient import AttackLoss, cross_entropy
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.methods import METHODS, find_training, lbgat
from pwoa.methods.adversarial import RobustTraining, boosted_cross_entropy
from pwoa.methods.fast_at import JUMP, FastAt
from pwoa.methods.lbgat import Lbgat
from pwoa.models.hidden import hidden_points, recording
from pwoa.objectives.hsic import bottleneck
from pwoa.progress import Progress
from pwoa.recipe import load_recipe
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Run
from pwoa.storage.folder import unsealed
from pwoa.threat import Threat
from pwoa.training.groups import Plan, grouped
from pwoa.training.stage import Batch, Material

Make = Callable[..., Recipe]
CPU = torch.device("cpu")
TRAINING = [name for name, method in METHODS.items() if not method.prunes]


@pytest.fixture(autouse=True)
def small_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbgat, "GUIDE", "resnet18@0.05")


def stage_of(method: str, model: nn.Module, data: Data, recipe: Recipe) -> tuple[RobustTraining, Batch]:
    material = Material.of(data, recipe, CPU)
    stage = find_training(method)(model, material, recipe.with_settings({"method": method}))
    index = material.train[:20]
    model.train()
    return stage, Batch(*material.images.batch(index), index)


def moved(batch: Batch) -> Tensor:
    noise = torch.rand(batch.x.shape, generator=torch.Generator().manual_seed(5))
    return (batch.x + 0.1 * (noise - 0.5)).clamp(0, 1)


@torch.no_grad()
def losses(
    method: str, model: nn.Module, data: Data, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, dict[str, Tensor]]:
    """The loss of a method whose attack finds `moved`, and what the model, with its batch statistics, says."""
    model.get_parameter("out.weight").mul_(0.05)  # else it is sure of everything
    stage, batch = stage_of(method, model, data, recipe)
    monkeypatch.setattr(stage, "attacked", lambda batch, threat, loss=None: moved(batch))
    before = {name: value.clone() for name, value in stage.trained.state_dict().items()}
    with stage.running():
        total = float(stage.robust_loss(batch, recipe.threat).total)
    stage.trained.load_state_dict(before)
    natural, adversarial = model(torch.cat([batch.x, moved(batch)])).chunk(2)
    said = {"natural": natural, "together": adversarial, "adversarial": model(moved(batch))}
    said |= {"y": batch.y, "x_adv": moved(batch)}
    if isinstance(stage, Lbgat):
        said["guide"] = stage.trained.train().get_submodule("guide")(batch.x)
    return total, said


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (F.softmax(p, 1) * (F.log_softmax(p, 1) - F.log_softmax(q, 1))).sum(1)


def test_pgd_at_is_cross_entropy_on_what_the_attack_finds(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, said = losses("pgd-at", tiny_teacher, tiny_data, quick(), monkeypatch)
    assert total == pytest.approx(float(F.cross_entropy(said["adversarial"], said["y"])), rel=1e-5)


def test_trades_adds_the_divergence(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, said = losses("trades", tiny_teacher, tiny_data, quick(pretrain__beta=3.0), monkeypatch)
    apart = kl(said["natural"], said["together"]).mean()
    assert float(apart) > 1e-4
    assert total == pytest.approx(float(F.cross_entropy(said["natural"], said["y"]) + 3 * apart), rel=1e-4)


def test_mart_weighs_by_how_unsure_the_model_is(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, said = losses("mart", tiny_teacher, tiny_data, quick(pretrain__beta=5.0), monkeypatch)
    sure = F.softmax(said["natural"], 1)[torch.arange(20), said["y"]]
    apart = (kl(said["natural"], said["together"]) * (1 - sure)).mean()
    expected = boosted_cross_entropy(said["together"], said["y"]) + 5 * apart
    assert total == pytest.approx(float(expected), rel=1e-4)


def test_natural_and_adversarial_images_are_normalised_together(tiny_data: Data, quick: Make) -> None:
    """Else a shift of all images, which an attacker can make, would be taken out again, and seem to do nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    stage, batch = stage_of("trades", model, tiny_data, quick())
    assert torch.allclose(model(batch.x), model(batch.x + 0.3), atol=1e-4)
    natural, shifted = stage.both(batch.x, batch.x + 0.3)
    assert float((natural - shifted).detach().abs().mean()) > 0.1
    expected = model(torch.cat([batch.x, batch.x + 0.3]))
    torch.testing.assert_close(torch.cat([natural, shifted]), expected)


@pytest.mark.parametrize("method", ["trades", "mart", "pgd-at"])
def test_attacks_start_anywhere_in_the_ball(tiny_teacher: nn.Module, tiny_data: Data, quick: Make, method: str) -> None:
    """With steps that move nothing, what is found is the start."""
    recipe = quick(threat__radius=0.2, pretrain__step=1e-6)
    stage, batch = stage_of(method, tiny_teacher, tiny_data, recipe)
    found = stage.furthest(batch, stage.threat) if method == "trades" else stage.attacked(batch, stage.threat)
    apart = (found - batch.x).abs()[(batch.x > 0.2) & (batch.x < 0.8)]
    assert float(apart.mean()) == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize("group", [4, 10, 20])
def test_a_group_is_of_so_many_natural_images_and_their_adversarial_ones(
    tiny_data: Data, quick: Make, group: int
) -> None:
    """A statistic is over twice the group, whether the batch has one group or several."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    stage, batch = stage_of("trades", model, tiny_data, quick())
    with grouped(model, Plan(group, images=20)):
        natural, shifted = stage.both(batch.x, batch.x + 0.3)
    parts = [model(torch.cat([x, x + 0.3])).chunk(2) for x in batch.x.split(group)]
    torch.testing.assert_close(natural, torch.cat([part[0] for part in parts]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(shifted, torch.cat([part[1] for part in parts]), atol=1e-4, rtol=1e-4)


def test_boosted_cross_entropy_has_a_margin() -> None:
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]]))
    expected = -(torch.tensor([0.7, 0.3]).log() + torch.tensor([0.8001, 0.4001]).log()).mean()
    assert float(boosted_cross_entropy(logits, torch.tensor([0, 0]))) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("beta", [0.0, 6.0])
def test_lbgat_follows_its_guide(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch, beta: float
) -> None:
    total, said = losses("lbgat", tiny_teacher, tiny_data, quick(pretrain__beta=beta), monkeypatch)
    adversarial = said["together"]
    expected = (adversarial - said["guide"]).square().mean() + F.cross_entropy(said["guide"], said["y"])
    expected = expected + beta * kl(said["natural"], adversarial).mean()
    assert total == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("beta", [0.0, 6.0])
def test_lbgat_attacks_the_divergence_for_every_beta(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch, beta: float
) -> None:
    stage, batch = stage_of("lbgat", tiny_teacher, tiny_data, quick(pretrain__beta=beta))
    with torch.no_grad():
        tiny_teacher.get_parameter("out.weight").mul_(0.05)  # else it is sure of everything
        natural = copy.deepcopy(tiny_teacher).eval()(batch.x)
    maximised: list[Tensor] = []

    def attacked(batch: Batch, threat: Threat, loss: AttackLoss = cross_entropy) -> Tensor:
        maximised.extend([loss(natural, batch.y), loss(2 * natural, batch.y)])
        return batch.x

    monkeypatch.setattr(stage, "attacked", attacked)
    stage.robust_loss(batch, stage.threat)
    expected = [natural.new_zeros(()), kl(natural, 2 * natural).sum()]
    torch.testing.assert_close(torch.stack(maximised), torch.stack(expected))


def test_natural_training_is_cross_entropy_on_the_images_as_they_are(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    stage, batch = stage_of("natural", tiny_teacher, tiny_data, quick())
    expected = F.cross_entropy(copy.deepcopy(tiny_teacher)(batch.x), batch.y)
    torch.testing.assert_close(stage.loss(batch).total, expected)
    used = {name for name in ("steps", "step", "beta", "growing", "epochs") if stage.uses_setting(f"pretrain.{name}")}
    assert used == {"epochs"}


def test_the_teachers_of_the_paper_have_presets() -> None:
    for data, beta in (("cifar10", 0.0), ("cifar100", 6.0)):
        recipe = load_recipe(f"teacher-{data}-lbgat")
        assert (recipe.method, recipe.teacher.architecture, recipe.data.name) == ("lbgat", "wrn-34-10", data)
        assert recipe.pretrain.beta == beta
    assert load_recipe("teacher-cifar10-natural").method == "natural"


def test_hbar_adds_the_bottleneck_of_the_adversarial_examples(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = quick(objective__hsic_x=0.3, objective__hsic_y=0.2)
    total, said = losses("hbar", tiny_teacher, tiny_data, recipe, monkeypatch)
    points = hidden_points(tiny_teacher, said["x_adv"][:2])
    with torch.no_grad(), recording(tiny_teacher, points) as hidden:
        logits = tiny_teacher(said["x_adv"])
    found = bottleneck(said["x_adv"], said["y"], [hidden[point] for point in points])
    expected = F.cross_entropy(logits, said["y"]) + 0.3 * found.x.sum() - 0.2 * found.y.sum()
    assert total == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("method", ["pgd-at", "trades", "mart", "lbgat"])
def test_the_attack_stays_in_the_ball_and_the_model_in_its_mode(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make, method: str
) -> None:
    recipe = quick(pretrain__steps=3)
    stage, batch = stage_of(method, tiny_teacher, tiny_data, recipe)
    statistics = {name: value.clone() for name, value in tiny_teacher.named_buffers()}
    found = stage.furthest(batch, recipe.threat) if method != "pgd-at" else stage.attacked(batch, recipe.threat)
    assert float(distance(found, batch.x, "linf").max()) <= recipe.threat.radius + 1e-6
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert not torch.equal(found, batch.x)
    assert all(module.training for module in tiny_teacher.modules())
    assert all(torch.equal(value, statistics[name]) for name, value in tiny_teacher.named_buffers())


def test_the_radius_grows(tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    stage, _ = stage_of("pgd-at", tiny_teacher, tiny_data, quick(pretrain__growing=4, pretrain__step=0.02))
    seen = []
    for epoch in range(6):
        stage.before_epoch(epoch)
        seen.append((stage._now.radius, stage._now.step))
    assert seen == [pytest.approx((0.05 * share, 0.02 * share)) for share in (0.25, 0.5, 0.75, 1, 1, 1)]


def test_in_fewer_epochs_it_grows_faster(tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    stage, _ = stage_of("pgd-at", tiny_teacher, tiny_data, quick(pretrain__growing=10, pretrain__epochs=2))
    seen = []
    for epoch in range(2):
        stage.before_epoch(epoch)
        seen.append(stage._now.radius)
    assert seen == pytest.approx([0.025, 0.05])


class TestFast:
    def test_one_step_goes_beyond_the_ball_but_not_out_of_the_box(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        stage, batch = stage_of("fast-at", tiny_teacher, tiny_data, quick())
        assert isinstance(stage, FastAt)
        found = stage._moved(batch, quick().threat)
        assert 0.05 < float(distance(found, batch.x, "linf").max()) <= 3 * 0.05 + 1e-6
        assert float(found.min()) >= 0
        assert float(found.max()) <= 1

    def test_in_l2_the_start_is_from_twice_the_radius_too(
        self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
    ) -> None:
        stage, batch = stage_of("fast-at", tiny_teacher, tiny_data, quick())
        assert isinstance(stage, FastAt)
        found = stage._moved(batch, Threat("l2", 0.1, 0.025))
        assert 0.1 < float(distance(found, batch.x, "l2").max()) <= 3 * 0.1 + 1e-6

    def test_a_collapse_is_answered_with_two_steps(self, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
        stage, _ = stage_of("fast-at", tiny_teacher, tiny_data, quick())
        steps = [stage.after_epoch(0, {"robust_error": error})["steps"] for error in (60, 50, 50 + JUMP, 61, 20)]
        assert steps == [1, 1, 1, 2, 2]
        other, _ = stage_of("fast-at", tiny_teacher, tiny_data, quick())
        other.load_state_dict(stage.state_dict())
        assert other.state_dict() == {"steps": 2, "lowest": 20}


@pytest.mark.parametrize("method", TRAINING)
def test_every_method_runs_from_end_to_end(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, method: str
) -> None:
    recipe = quick(pretrain__epochs=2, pretrain__steps=2, pretrain__learning_rate=0.05)
    before = {name: value.clone() for name, value in tiny_teacher.state_dict().items()}
    result = pwoa.pretrain(tiny_teacher, tiny_data, method=method, recipe=recipe, folder=tmp_path / "run")
    assert all(torch.equal(value, before[name]) for name, value in tiny_teacher.state_dict().items())
    assert any(not torch.equal(value, before[name]) for name, value in result.model.state_dict().items())
    assert list(result.model.state_dict()) == list(before)
    assert (result.summary["method"], result.summary["example_free"]) == (method, method == "natural")
    assert unsealed(json.loads((result.folder / "result.json").read_text()), "result.json") == result.summary
    errors = [line["validation"][find_training(method).criterion] for line in result.metrics]
    assert result.summary["selected_epoch"] == min(range(2), key=errors.__getitem__)
    loaded = pwoa.load_model(result.folder, architecture=type(tiny_teacher)())
    with torch.no_grad():
        assert torch.equal(loaded(tiny_data.test.pixels), result.model(tiny_data.test.pixels))


def test_adversarial_training_makes_a_model_robust(tmp_path: Path, tiny_data: Data, quick: Make) -> None:
    recipe = quick(threat__radius=0.2, threat__step=0.05, pretrain__epochs=15, pretrain__steps=5, training__average=0.0)
    torch.manual_seed(0)
    fragile = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    result = pwoa.pretrain(fragile, tiny_data, method="pgd-at", recipe=recipe, folder=tmp_path / "run")
    assert result.summary["accuracy"]["natural"] > 90
    assert result.summary["accuracy"]["pgd2"] > 60
    untrained = pwoa.evaluate(fragile, tiny_data, attacks="pgd2", threat=recipe.threat, device="cpu", checks=False)
    assert untrained["pgd2"] < 40


@pytest.mark.parametrize("method", TRAINING)
def test_a_training_killed_in_its_third_epoch_resumes_to_the_same_bits(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    killed: Callable[[int], Progress],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    monkeypatch.setattr("pwoa.training.engine.SHARE", 0)  # saved after every step
    recipe = quick(method=method, pretrain__epochs=4, pretrain__steps=2, pretrain__learning_rate=0.01)
    whole = pwoa.pretrain(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        pwoa.pretrain(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "cut", progress=killed(10))
    state = Run(tmp_path / "cut").load_checkpoint()
    assert state is not None
    assert (state["epoch"], state["step"]) == (2, 1)
    pwoa.pretrain(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "cut")
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


def test_a_guide_is_another_network_than_the_one_it_guides(
    tmp_path: Path, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: dict[str, Tensor] = {}

    def note(stage: Lbgat, epoch: int) -> None:
        first.update({name: value.clone() for name, value in stage.trained.state_dict().items()})
        raise KeyboardInterrupt

    monkeypatch.setattr(Lbgat, "before_epoch", note)
    recipe = quick(method="lbgat", teacher__architecture="resnet18@0.05")
    with pytest.raises(KeyboardInterrupt):
        pwoa.pretrain(None, tiny_data, recipe=recipe, folder=tmp_path / "run")
    convolutions = [name for name, value in first.items() if name.startswith("robust.") and value.dim() == 4]
    assert convolutions
    assert not any(torch.equal(first[name], first[name.replace("robust", "guide", 1)]) for name in convolutions)


def test_unknown_methods_are_refused(tiny_data: Data, quick: Make) -> None:
    with pytest.raises(InputError, match=r"unknown method 'trade' \(did you mean 'trades'\?\)"):
        pwoa.pretrain(None, tiny_data, method="trade", recipe=quick())
