"""The gate: before any pruning, is the teacher robust at all?"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.evaluation.measure import check_teacher
from pwoa.evaluation.subject import Subject
from pwoa.recipe.sections import Recipe
from pwoa.runs.prune import prune

RECIPE = Recipe().with_settings({"threat.radius": 0.1, "threat.step": 0.001, "teacher.minimum": 30.0})


def teacher(weight: float) -> nn.Module:
    """Class 1 where the pixel is above 0.5."""
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [weight]]))
        layer.bias.copy_(torch.tensor([0.0, -weight / 2]))
    return nn.Sequential(nn.Flatten(), layer)


def subject(distances: list[float]) -> Subject:
    """The teacher, and pixels at these distances above the border, all of class 1."""
    pixels = torch.tensor(distances).view(-1, 1, 1, 1) + 0.5
    images = Images(pixels, torch.ones(len(distances), dtype=torch.int64))
    return Subject(teacher(2), images, Data("mine", images, images, 2), torch.device("cpu"))


def test_a_robust_teacher_passes_with_its_numbers() -> None:
    found = check_teacher(subject([0.2, 0.3, 0.05, -0.1]), RECIPE, force=False)
    assert found == {"natural": 75.0, "pgd10": 50.0, "images": 4}


def test_a_teacher_that_is_not_robust_is_refused_in_one_line_with_the_numbers() -> None:
    with pytest.raises(InputError) as caught:
        check_teacher(subject([0.05, 0.06, 0.3, 0.01]), RECIPE, force=False)
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        "not robust: 25.0 %",
        "under PGD-10 at l∞ 0.1 in steps of 0.025 ",
        "natural 100.0 %",
        "4 validation images",
        "minimum is 30 %",
        "force",
    ):
        assert part in message


def test_force_lets_it_pass() -> None:
    found = check_teacher(subject([0.05, 0.06, 0.3, 0.01]), RECIPE, force=True)
    assert found["pgd10"] == 25.0


def test_the_minimum_is_the_recipes() -> None:
    lower = RECIPE.with_settings({"teacher.minimum": 25})
    assert check_teacher(subject([0.05, 0.06, 0.3, 0.01]), lower, force=False)["natural"] == 100.0


def test_its_steps_cross_the_ball_whatever_the_recipes_step_is() -> None:
    """Ten steps of threat.step = 0.001 would leave every image right."""
    with pytest.raises(InputError, match=r"not robust: 0\.0 %"):
        check_teacher(subject([0.08] * 3), RECIPE, force=False)


def test_it_looks_at_no_more_than_500_images(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Callable[..., Recipe],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = importlib.import_module("pwoa.runs.prune")
    assert run.GATE_IMAGES == 500
    monkeypatch.setattr(run, "GATE_IMAGES", 10)
    prune(tiny_teacher, tiny_data, recipe=quick(search__epochs=1, finetune__epochs=1), folder=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "teacher.json").read_text())["images"] == 10
