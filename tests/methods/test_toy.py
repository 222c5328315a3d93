"""A method of one's own takes a few lines: the seam is enough, nothing else is touched."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pwoa
from pwoa.data.images import Data
from pwoa.methods import METHODS
from pwoa.methods.pruning import MaskedStage
from pwoa.recipe.sections import Recipe
from pwoa.sparsity.allocation import allocate
from pwoa.sparsity.constraint import prunable
from pwoa.sparsity.masks import Masks
from pwoa.training.stage import Batch, Loss, Material


class Toy:
    """Keeps random weights, and trains them with labels that are smoothed."""

    example_free = True

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        def loss(batch: Batch) -> Loss:
            logits = student(batch.x)
            value = F.cross_entropy(logits, batch.y, label_smoothing=0.1)
            return Loss(value, {"smoothed": value}, logits)

        weights = prunable(student)
        kept = allocate(weights, recipe.sparsity)
        masks = Masks(weights, kept, recipe.sparsity.pattern)
        self.stages = [RandomStage(loss, masks, recipe.finetune.epochs, recipe.finetune.learning_rate)]


class RandomStage(MaskedStage):
    @torch.no_grad()
    def begin(self) -> None:
        for weight in self._masks.weights.values():
            weight.copy_(torch.randn_like(weight))
        self._masks.choose()


def test_a_toy_method_takes_less_than_30_lines_and_has_all_a_run_has(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Callable[..., Recipe],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sum(len(inspect.getsource(part).splitlines()) for part in (Toy, RandomStage)) < 30
    monkeypatch.setitem(METHODS, "toy", Toy)
    result = pwoa.prune(tiny_teacher, tiny_data, rate=4, recipe=quick(method="toy"), folder=tmp_path / "run")
    weights = prunable(result.model).values()
    left = sum(int(weight.count_nonzero()) for weight in weights)
    assert left == sum(weight.numel() for weight in weights) // 4
    assert (result.summary["method"], result.summary["example_free"]) == ("toy", True)
    assert [line["stage"] for line in result.metrics] == ["finetune"] * 3
    assert "smoothed" in result.metrics[0]["validation"]
