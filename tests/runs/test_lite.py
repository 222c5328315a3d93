"""Lite networks: as deep, narrower, trained from scratch by adversarial examples."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from typer.testing import CliRunner

import pwoa
from pwoa.cli.options import app
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from pwoa.recipe.sections import Recipe

Make = Callable[..., Recipe]


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def lite(quick: Make, rate: float) -> Recipe:
    return quick(
        method="pgd-at",
        teacher__architecture="resnet18@0.2",
        pretrain__lite=rate,
        pretrain__epochs=1,
        pretrain__steps=1,
        evaluation__images=8,
    )


def test_a_lite_network_has_the_depth_of_the_other_and_that_many_fewer_parameters(
    tmp_path: Path, tiny_data: Data, quick: Make, told: Any
) -> None:
    result = pwoa.pretrain(None, tiny_data, recipe=lite(quick, 4.0), folder=tmp_path / "run", progress=told)
    dense = build("resnet18@0.2", 3, 1)
    assert [name for name, _ in result.model.named_parameters()] == [name for name, _ in dense.named_parameters()]
    assert result.summary["parameters"] == parameters(result.model)
    assert parameters(result.model) == pytest.approx(parameters(dense) / 4, rel=0.02)
    assert result.summary["rate"] == parameters(dense) / parameters(result.model)
    assert f"({parameters(result.model):,} parameters, " in told.said[0]
    assert "× fewer than resnet18@0.2)" in told.said[0]
    assert json.loads((result.folder / "model.json").read_text())["architecture"] == result.summary["architecture"]
    assert parameters(pwoa.load_model(result.folder)) == parameters(result.model)


def test_the_run_can_be_given_again_also_by_the_recipe_it_wrote(tmp_path: Path, tiny_data: Data, quick: Make) -> None:
    first = pwoa.pretrain(None, tiny_data, recipe=lite(quick, 4.0), folder=tmp_path / "run")
    again = pwoa.pretrain(None, tiny_data, recipe=tmp_path / "run" / "recipe.toml", folder=tmp_path / "run")
    assert again.summary == first.summary


def test_a_network_of_ones_own_cannot_be_made_lite(tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    with pytest.raises(InputError, match=r"pretrain\.lite narrows an architecture by name"):
        pwoa.pretrain(tiny_teacher, tiny_data, recipe=lite(quick, 4.0))


def test_the_command_line_trains_one(tmp_path: Path) -> None:
    settings = ["data.name=mnist-mini", "data.validation=9900", "training.batch=50", "pretrain.steps=1"]
    settings += ["evaluation.images=10", "evaluation.attacks=natural", "evaluation.checks=false"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(
        app, ["pretrain", "--lite", "64", "--epochs", "1", *words, "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    assert "× fewer than lenet)" in done.output
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["rate"] == pytest.approx(64, rel=0.05)
    assert re.search(r"pwoa prune would refuse it: [\d.]+ % under attack, and teacher.minimum is 20 %\n", done.output)
    assert "prune it: " not in done.output
    wrong = CliRunner().invoke(app, ["pretrain", "--lite", "0.5"])
    assert wrong.exit_code == 2
    assert "pretrain.lite = 0.5; allowed: at least 1" in wrong.stderr
