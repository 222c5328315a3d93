"""A method of one's own takes a few lines and one registration: the seam is enough, nothing else is touched."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pwoa
from pwoa.data.images import Data
from pwoa.methods import METHODS, PruningMethod
from pwoa.methods.pruning import MaskedStage
from pwoa.recipe import Recipe
from pwoa.recipe.settings import number
from pwoa.sparsity import Masks, prunable
from pwoa.training import Batch, Loss, Material


@dataclass(frozen=True)
class ToySettings:
    smoothing: float = number(0.1, low=0, high=1)


class Toy(PruningMethod):
    """Keeps random weights, and trains them with labels that are smoothed."""

    name, settings, uses = "toy", ToySettings, ("finetune.",)

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(student, teacher, material, recipe)
        smoothing = recipe.own_settings(ToySettings).smoothing

        def loss(batch: Batch) -> Loss:
            logits = student(batch.x)
            value = F.cross_entropy(logits, batch.y, label_smoothing=smoothing)
            return Loss(value, {"smoothed": value}, logits)

        masks = Masks(self.constraint)
        self.stages = [RandomStage(loss, masks, recipe.finetune.epochs, recipe.finetune.learning_rate)]


class RandomStage(MaskedStage):
    @torch.no_grad()
    def begin(self) -> None:
        for weight in self._masks.weights.values():
            weight.copy_(torch.randn_like(weight))
        self._masks.choose()


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "toy", Toy)


def test_a_new_method_takes_less_than_30_lines_and_has_all_a_run_has(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Callable[..., Recipe]
) -> None:
    assert sum(len(inspect.getsource(part).splitlines()) for part in (ToySettings, Toy, RandomStage)) < 30
    recipe = quick(method="toy")
    result = pwoa.prune(tiny_teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "run")
    weights = prunable(result.model).values()
    left = sum(int(weight.count_nonzero()) for weight in weights)
    assert left == sum(weight.numel() for weight in weights) // 4
    assert (result.summary["method"], result.summary["example_free"]) == ("toy", True)
    assert [line["stage"] for line in result.metrics] == ["finetune"] * 3
    assert "smoothed" in result.metrics[0]["validation"]
    assert "[toy]\nsmoothing = 0.1" in (tmp_path / "run" / "recipe.toml").read_text()


def test_its_own_settings_act_and_are_checked(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Callable[..., Recipe]
) -> None:
    def loss_of(smoothing: float) -> float:
        settings = {"toy.smoothing": smoothing}
        folder = tmp_path / f"{smoothing}"
        run = pwoa.prune(tiny_teacher, tiny_data, recipe=quick(method="toy"), settings=settings, folder=folder)
        return float(run.metrics[0]["train"]["loss"])

    assert loss_of(0.0) != loss_of(0.5)
    with pytest.raises(pwoa.InputError, match=r"toy.smoothing = 2.0; allowed: from 0 to 1"):
        loss_of(2.0)
    with pytest.raises(pwoa.InputError, match=r"unknown key 'toy.smooting' \(did you mean 'toy.smoothing'\?\)"):
        pwoa.prune(tiny_teacher, tiny_data, recipe=quick(method="toy"), settings={"toy.smooting": 1.0})


def test_settings_of_another_method_are_refused(tiny_teacher: nn.Module, tiny_data: Data) -> None:
    with pytest.raises(pwoa.InputError, match="unknown key 'toy'"):
        pwoa.prune(tiny_teacher, tiny_data, settings={"toy.smoothing": 0.1})
    with pytest.raises(pwoa.InputError, match=r"pwoa has no settings of its own, so no pwoa.smoothing"):
        pwoa.prune(tiny_teacher, tiny_data, settings={"pwoa.smoothing": 0.1})
