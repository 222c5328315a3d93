"""Normalisation that begins with statistics of natural images: the same answers, and training begins at the teacher."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pwoa.data.images import Images
from pwoa.methods.pwoa import Pwoa
from pwoa.recipe import Recipe
from pwoa.training.refit import refit
from pwoa.training.stage import Batch, Material
from tests.training.test_groups import net as plain_net

Make = Callable[..., Recipe]
IMAGES = 64


def net(**settings: Any) -> nn.Sequential:
    """Return a network whose statistics are of other images than those of `material`, as a robust teacher's are."""
    model = plain_net(**settings).float()
    with torch.no_grad():
        for part in (3 * torch.rand(640, 2, 4, 4, generator=torch.Generator().manual_seed(2)) - 1).split(32):
            model(part)
    return model.eval()


def material() -> Material:
    x = torch.rand(IMAGES + 8, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    index = torch.arange(IMAGES + 8)
    return Material(Images(x, index % 5), index[:IMAGES], index[IMAGES:], 5)


def images() -> Tensor:
    return material().images.batch(torch.arange(IMAGES))[0]


def test_the_answers_stay_and_training_mode_has_them_too() -> None:
    teacher = net()
    model, x = copy.deepcopy(teacher), images()
    with torch.no_grad():
        before, untouched = teacher(x), copy.deepcopy(teacher).train()(x)
        refit(model, material(), IMAGES, 0)
        assert not model.training
        assert torch.allclose(model(x), before, atol=1e-5)
        assert not torch.allclose(untouched, before, atol=0.1)  # the statistics of a batch are others
        assert torch.allclose(model.train()(x), before, atol=1e-4)


def test_statistics_are_the_means_over_batches_from_all_parts() -> None:
    model = net()
    refit(model, material(), IMAGES // 4, 0)
    passed = model[0](images()).detach()
    assert isinstance(model[1], nn.BatchNorm2d)
    batches = passed.split(IMAGES // 4)
    means = torch.stack([part.mean((0, 2, 3)) for part in batches]).mean(0)
    variances = torch.stack([part.var((0, 2, 3), correction=0) for part in batches]).mean(0)
    assert torch.allclose(model[1].get_buffer("running_mean"), means, atol=1e-6)
    assert torch.allclose(model[1].get_buffer("running_var"), variances, atol=1e-6)


@pytest.mark.parametrize("settings", [{"affine": False}, {"track_running_stats": False}])
def test_layers_without_a_scale_or_without_statistics_are_left_alone(settings: dict[str, Any]) -> None:
    model = net(**settings)
    before = copy.deepcopy(model.state_dict())
    refit(model, material(), 16, 0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_the_user_froze_is_left_alone() -> None:
    model = net()
    model[1].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    refit(model, material(), 16, 0)
    same = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert {name for name in before if name.startswith("1.")} <= same
    assert "5.running_mean" not in same


def test_a_layer_that_is_not_used_is_left_alone() -> None:
    model = net()
    model.register_module("spare", nn.BatchNorm2d(3))
    used = nn.Sequential(*[layer for name, layer in model.named_children() if name != "spare"])
    used.register_module("spare", nn.Identity())
    spare = model.get_submodule("spare")
    model.forward = used.forward  # type: ignore[method-assign]
    refit(model, material(), 16, 0)
    assert torch.equal(spare.get_buffer("running_var"), torch.ones(3))
    assert torch.equal(spare.get_parameter("weight"), torch.ones(3))


def test_distillation_begins_near_zero_where_the_recipe_says_so(quick: Make) -> None:
    """A copy of the teacher does not say in training mode what the teacher says."""
    teacher, kept = net(), net()
    losses = {}
    for choice in (False, True):
        given = {"search__refit": choice, "objective__hsic_x": 0.0, "objective__hsic_y": 0.0, "training__batch": IMAGES}
        recipe = quick(**given, training__group=IMAGES)
        student, own = copy.deepcopy(teacher), material()
        stage = Pwoa(student, teacher, own, recipe).stages[-1]
        student.train()
        with stage.running():
            losses[choice] = stage.loss(Batch(*own.images.batch(own.train), own.train)).parts["distillation"].item()
    assert losses[True] < losses[False] / 100
    assert all(torch.equal(value, kept.state_dict()[name]) for name, value in teacher.state_dict().items())
