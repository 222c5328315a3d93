"""APD (Lee and Lee 2021, "Robust CNN compression framework for security-sensitive embedded systems").

Distillation on adversarial examples, solved by the proximal gradient method: after each step on

    (1 − λ) CE(f(x'), y) + λ τ² KL(T^τ(x) ‖ f^τ(x'))

the weights are projected on those with a number of entries, which is the proximal operator of the sparsity constraint.
The number falls to the budget's over the epochs: at once, the mask would stay that of the largest weights of the start,
for a weight that begins each step at 0 does not come back. x' is an example of a mixed batch; the teacher is asked
about the natural image x, where also a teacher that is not robust is right.

Published: the mix ratio 1, 60 epochs in one stage, a teacher that is not robust. Here the teacher is that of the run,
so that methods compare from the same one; `apd.teacher` names the checkpoint of another. The last epochs are a stage of
their own with fixed masks, so that averaged weights have the budget too. λ and τ are our choice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.methods.adversarial import divergence
from pwoa.methods.pruning import MaskedStage, Mixer, teacher_logits
from pwoa.models.border import Normalised, as_logits
from pwoa.models.checkpoints.contents import normalises
from pwoa.models.checkpoints.files import open_checkpoint
from pwoa.models.checkpoints.fitting import fill
from pwoa.recipe.sections import Recipe
from pwoa.sparsity.allocation import allocate
from pwoa.sparsity.constraint import prunable
from pwoa.sparsity.masks import Masks
from pwoa.sparsity.patterns import project
from pwoa.training.stage import Batch, Loss, Material, Stage


class Apd:
    """Proximal steps, then steps within the masks they ended with."""

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        self.example_free = not recipe.training.mix
        weights, pattern = prunable(student), recipe.sparsity.pattern
        kept = allocate(weights, recipe.sparsity)
        loss = distilled(student, _teacher(teacher, recipe.apd.teacher), material, recipe)
        masks = Masks(weights, kept, pattern)
        self.stages: list[Stage] = [
            Proximal(loss, weights, kept, recipe),
            Settled(loss, masks, recipe.finetune.epochs, recipe.finetune.learning_rate),
        ]


class Proximal(Stage):
    """A gradient step, then the nearest weights with so many entries: of n down to the budget's k by a cubic."""

    name = "search"

    def __init__(
        self,
        loss: Callable[[Batch], Loss],
        weights: Mapping[str, nn.Parameter],
        kept: Mapping[str, int],
        recipe: Recipe,
    ) -> None:
        self.epochs, self.learning_rate = recipe.search.epochs, recipe.search.learning_rate
        self._loss, self._weights, self._kept = loss, dict(weights), dict(kept)
        self._pattern, self._now = recipe.sparsity.pattern, dict(kept)

    def before_epoch(self, epoch: int) -> None:
        left = (1 - (epoch + 1) / self.epochs) ** 3
        self._now = {name: k + round(left * (self._weights[name].numel() - k)) for name, k in self._kept.items()}

    def constants(self) -> object:
        return self._now

    def loss(self, batch: Batch) -> Loss:
        return self._loss(batch)

    @torch.no_grad()
    def after_step(self) -> None:
        for name, weight in self._weights.items():
            weight.copy_(project(weight, self._now[name], self._pattern))


class Settled(MaskedStage):
    """The same loss on the weights that are left."""

    def begin(self) -> None:
        self._masks.choose()


def distilled(student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> Callable[[Batch], Loss]:
    """(1 − λ) CE + λ τ² KL of mixed batches."""
    share, temperature = recipe.apd.weight, recipe.apd.temperature
    logits, mixer = as_logits(student, material.classes), Mixer(student, material, recipe)
    said = teacher_logits(teacher, material, fast=recipe.training.mode == "fast")

    def loss(batch: Batch) -> Loss:
        found: Tensor = logits(mixer(batch).x)
        right = F.cross_entropy(found.float(), batch.y)
        apart = temperature**2 * divergence(said(batch) / temperature, found / temperature).mean()
        parts = {"classification": right, "distillation": apart}
        return Loss((1 - share) * right + share * apart, parts, found)

    return loss


def _teacher(teacher: nn.Module, checkpoint: str) -> nn.Module:
    """The run's teacher, or the same network with the weights of a checkpoint.

    It stands behind the normalisation in the checkpoint; without one, behind that of the run's teacher.
    """
    if not checkpoint:
        return teacher
    other, opened, given = copy.deepcopy(teacher), open_checkpoint(checkpoint), None
    if isinstance(other, Normalised):
        given = None if normalises(opened.tensors, checkpoint) else other.numbers
        other = other.model
    return fill(other, opened, checkpoint, given).eval().requires_grad_(False)
