"""Folders of every kind, made once: two runs that pruned, one that trained from scratch, and an evaluation."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pwoa
from pwoa.data.images import Data
from pwoa.demo import NAIVE
from pwoa.recipe.sections import Recipe
from tests.conftest import TinyNet

Make = Callable[..., Recipe]
QUICK = {
    "data.validation": 24,
    "threat.radius": 0.05,
    "threat.step": 0.0125,
    "search.epochs": 2,
    "search.interval": 1,
    "search.learning_rate": 0.05,
    "finetune.epochs": 2,
    "finetune.learning_rate": 0.05,
    "pretrain.epochs": 1,
    "pretrain.steps": 1,
    "pretrain.warmup": 0,
    "training.batch": 16,
    "training.device": "cpu",
    "training.optimizer": "adam",
    "evaluation.attacks": ["natural", "pgd2"],
    "evaluation.radii": [0.0, 0.1],
    "evaluation.checks": False,
    "evaluation.strong": 8,
}
ODD = '"><script>alert(1)</script>&lt;'
"""A name that would break out of a page that does not escape it; a folder may have it."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_data: Data, _trained: dict[str, Tensor]) -> Path:
    """A folder `runs` with the runs pwoa, naive and scratch, and beside it the evaluation."""
    folder = tmp_path_factory.mktemp("made")
    teacher, recipe = TinyNet(), Recipe().with_settings(QUICK)
    teacher.load_state_dict(_trained)
    torch.manual_seed(0)
    for name, settings in (("pwoa", {}), ("naive", NAIVE)):
        pwoa.prune(teacher, tiny_data, recipe=recipe, settings=settings, folder=folder / "runs" / name, force=True)
    pwoa.pretrain(TinyNet(), tiny_data, method="pgd-at", recipe=recipe, folder=folder / "runs" / "scratch")
    pwoa.evaluate(teacher, tiny_data, recipe=recipe, folder=folder / "evaluation")
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy of the runs, to be broken."""
    return Path(shutil.copytree(made / "runs", tmp_path / "runs"))
