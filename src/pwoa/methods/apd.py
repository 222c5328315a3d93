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

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from pwoa.methods.adversarial import divergence
from pwoa.methods.method import PruningMethod
from pwoa.methods.pruning import MaskedStage, Mixer, teacher_logits
from pwoa.models.border import Normalised, as_logits
from pwoa.models.checkpoints.contents import normalises
from pwoa.models.checkpoints.files import open_checkpoint
from pwoa.models.checkpoints.fitting import fill
from pwoa.recipe import Recipe
from pwoa.recipe.methods import ApdSettings
from pwoa.sparsity import Constraint, Masks
from pwoa.training.stage import Batch, Loss, Material, Stage


class Apd(PruningMethod):
    """Proximal steps, then steps within the masks they ended with."""

    name, settings = "apd", ApdSettings
    uses = ("search.epochs", "search.learning_rate", "finetune.")

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(student, teacher, material, recipe)
        other = recipe.own_settings(ApdSettings).teacher
        loss = distilled(student, _teacher(teacher, other), material, recipe)
        settled = MaskedStage(loss, Masks(self.constraint), recipe.finetune.epochs, recipe.finetune.learning_rate)
        self.stages = [Proximal(loss, self.constraint, recipe), settled]

    @classmethod
    def files(cls, recipe: Recipe) -> dict[str, str]:
        teacher = recipe.own_settings(ApdSettings).teacher
        return {"apd.teacher": teacher} if teacher else {}


class Proximal(Stage):
    """A gradient step, then the nearest weights with so many entries: of n down to the budget's k by a cubic."""

    name = "search"

    def __init__(self, loss: Callable[[Batch], Loss], constraint: Constraint, recipe: Recipe) -> None:
        self.epochs, self.learning_rate = recipe.search.epochs, recipe.search.learning_rate
        self._loss, self._final, self._now = loss, constraint, constraint

    def before_epoch(self, epoch: int) -> None:
        left, weights = (1 - (epoch + 1) / self.epochs) ** 3, self._final.weights
        kept = {name: k + round(left * (weights[name].numel() - k)) for name, k in self._final.kept.items()}
        self._now = self._final.with_kept(kept)

    def constants(self) -> object:
        return self._now.kept

    def loss(self, batch: Batch) -> Loss:
        return self._loss(batch)

    @torch.no_grad()
    def after_step(self) -> None:
        for name, weight in self._now.weights.items():
            weight.copy_(self._now.project(name, weight))


def distilled(student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> Callable[[Batch], Loss]:
    """Return the loss (1 − λ) CE + λ τ² KL of mixed batches."""
    settings = recipe.own_settings(ApdSettings)
    share, temperature = settings.weight, settings.temperature
    student_logits, mixer = as_logits(student, material.classes), Mixer(student, material, recipe)
    teacher_says = teacher_logits(teacher, material, fast=recipe.training.mode == "fast")

    def loss(batch: Batch) -> Loss:
        logits = student_logits(mixer(batch).x)
        ce = F.cross_entropy(logits.float(), batch.y)
        kl = temperature**2 * divergence(teacher_says(batch) / temperature, logits / temperature).mean()
        return Loss((1 - share) * ce + share * kl, {"classification": ce, "distillation": kl}, logits)

    return loss


def _teacher(teacher: nn.Module, checkpoint: str) -> nn.Module:
    """Return the run's teacher, or the same network with the weights of a checkpoint.

    It stands behind the normalisation in the checkpoint; without one, behind that of the run's teacher.
    """
    if not checkpoint:
        return teacher
    other, opened, given = copy.deepcopy(teacher), open_checkpoint(checkpoint), None
    if isinstance(other, Normalised):
        given = None if normalises(opened.tensors, checkpoint) else other.numbers
        other = other.model
    return fill(other, opened, checkpoint, given).eval().requires_grad_(False)
