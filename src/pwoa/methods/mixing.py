"""The mix ratio: a fraction of the examples of each batch is replaced by adversarial ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from pwoa.attacks import pgd
from pwoa.errors import InputError
from pwoa.models import as_logits, under_attack
from pwoa.recipe import Recipe
from pwoa.training import Batch, Loss, Material

STEPS = 10


class Mixer:
    """Replaces training.mix of the examples of a batch, chosen at random, by PGD-10 examples of the model as it is.

    Their steps are a quarter of the radius. With a ratio of 0 it does nothing. Each group has as many of them, so that
    their number does not depend on how a batch is cut up. The images chosen and the attack's start come from torch's
    own generator, which the engine seeds anew for each epoch.
    """

    def __init__(self, model: nn.Module, material: Material, recipe: Recipe) -> None:
        self._model, self._logits = model, as_logits(model, material.classes)
        self._threat, self._ratio = recipe.threat.in_quarters(), recipe.training.mix
        self._group = min(recipe.training.group, recipe.training.batch)
        if self._ratio and not round(self._ratio * self._group):
            kind = "batch" if self._group == recipe.training.batch else "group"
            raise InputError(
                f"training.mix = {self._ratio:g} of a {kind} of {self._group} is less than one example; "
                "give more of either, or 0"
            )

    def __call__(self, batch: Batch) -> Batch:
        images = len(batch.y)
        group = images if images % self._group else self._group
        count = round(self._ratio * group)
        if not count:
            return batch
        positions = torch.arange(images, device=batch.y.device).view(-1, group)
        order = torch.rand(positions.shape, device=positions.device).argsort(1)
        chosen = positions.gather(1, order[:, :count]).flatten()
        x = batch.x.clone()
        with under_attack(self._model):
            x[chosen] = pgd(self._logits, batch.x[chosen], batch.y[chosen], self._threat, STEPS)
        return Batch(x, batch.y, batch.index)


def mixed_classification(model: nn.Module, material: Material, recipe: Recipe) -> Callable[[Batch], Loss]:
    """The cross-entropy of mixed batches."""
    logits, mixer = as_logits(model, material.classes), Mixer(model, material, recipe)

    def loss(batch: Batch) -> Loss:
        mixed = mixer(batch)
        said = logits(mixed.x)
        value = F.cross_entropy(said.float(), mixed.y)
        return Loss(value, {"classification": value}, said)

    return loss
