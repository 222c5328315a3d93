"""One of a thing is not many, wherever a number is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

import pwoa
from pwoa.cli.options import app
from pwoa.data.images import Data
from pwoa.errors import counted
from pwoa.progress import Progress
from pwoa.recipe.sections import Recipe


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 images"), (1, "1 image"), (2, "2 images"), (60_000, "60,000 images")]
)
def test_a_number_of_things(number: int, expected: str) -> None:
    assert counted(number, "image") == expected


def test_a_word_that_takes_more_than_an_s() -> None:
    assert [counted(number, "class", "classes") for number in (1, 2)] == ["1 class", "2 classes"]


class Listening(Progress):
    def __init__(self) -> None:
        self.said = ""

    def say(self, message: str) -> None:
        self.said += message + "\n"


def test_a_run_of_one_epoch_and_one_image(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data) -> None:
    one = {
        "training.batch": 16,
        "pretrain.epochs": 1,
        "evaluation.images": 1,
        "evaluation.attacks": "natural",
        "evaluation.checks": False,
    }
    recipe = Recipe().with_settings({**one, "data.validation": 1, "search.epochs": 1, "finetune.epochs": 1})
    told = Listening()
    pwoa.pretrain(tiny_teacher, tiny_data, method="pgd-at", recipe=recipe, folder=tmp_path / "a", progress=told)
    assert " on custom, 1 epoch on 95 images (1 held out), " in told.said
    pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "b", force=True, progress=told)
    assert "teacher on 1 validation image: " in told.said
    assert "In percent, on 1 test image; " in CliRunner().invoke(app, ["card", str(tmp_path / "b")]).output
