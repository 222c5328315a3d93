"""What methods of pruning share: mixed batches, the teacher's logits, and the stage that trains what masks keep."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.attacks.gradient import pgd
from pwoa.errors import InputError
from pwoa.models.border import LogitModel, as_logits, under_attack
from pwoa.models.inference import forward_copy, observed
from pwoa.recipe.sections import Recipe
from pwoa.sparsity.masks import Masks
from pwoa.training.stage import Batch, Loss, Material, Stage

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

    def choose(self, batch: Batch) -> Tensor:
        """Return the positions of the examples to replace, a row for each group."""
        images = len(batch.y)
        group = images if images % self._group else self._group
        count = round(self._ratio * group)
        positions = torch.arange(images, device=batch.y.device).view(-1, group)
        if not count:
            return positions[:, :0]
        order = torch.rand(positions.shape, device=positions.device).argsort(1)
        return positions.gather(1, order[:, :count])

    def __call__(self, batch: Batch) -> Batch:
        chosen = self.choose(batch).flatten()
        if not len(chosen):
            return batch
        x = batch.x.clone()
        with under_attack(self._model):
            x[chosen] = pgd(self._logits, batch.x[chosen], batch.y[chosen], self._threat, STEPS)
        return Batch(x, batch.y, batch.index)


def mixed_classification(model: nn.Module, material: Material, recipe: Recipe) -> Callable[[Batch], Loss]:
    """Return the loss that is the cross-entropy of mixed batches."""
    logits, mixer = as_logits(model, material.classes), Mixer(model, material, recipe)

    def loss(batch: Batch) -> Loss:
        mixed = mixer(batch)
        answer = logits(mixed.x)
        ce = F.cross_entropy(answer.float(), mixed.y)
        return Loss(ce, {"classification": ce}, answer)

    return loss


CHUNK = 1000


def teacher_logits(
    teacher: nn.Module, material: Material, fast: bool = False, moving: bool = False
) -> Callable[[Batch], Tensor]:
    """Return what asks the teacher about a batch, without a graph.

    Where images are never augmented or `moving`, its logits are looked up.
    """
    device = material.images.pixels.device
    logits = as_logits(teacher, material.classes)
    if material.augment == "none" and not moving:
        return _table(logits, material)
    if fast:
        logits = forward_copy(teacher, material.images.batch(material.validation[:CHUNK])[0], material.classes)

    @torch.no_grad()
    def ask(batch: Batch) -> Tensor:
        with torch.autocast(device.type, enabled=False):  # a fast copy has the precision it was made with
            return logits(batch.x)

    return ask


Asked = Callable[[Batch], tuple[Tensor, list[Tensor]]]
"""(batch) → the teacher's logits, and its hidden activations where they are wanted."""


def teacher_hidden(teacher: nn.Module, material: Material, points: Sequence[str], fast: bool = False) -> Asked:
    """Return what asks the teacher about a batch, without a graph: for its logits and its hidden activations."""
    device = material.images.pixels.device
    example, _ = material.images.batch(material.validation[:CHUNK])
    look = observed(teacher, example, points, material.classes, fast)

    @torch.no_grad()
    def ask(batch: Batch) -> tuple[Tensor, list[Tensor]]:
        with torch.autocast(device.type, enabled=False):  # a fast copy has the precision it was made with
            return look(batch.x)

    return ask


def _table(logits: LogitModel, material: Material) -> Callable[[Batch], Tensor]:
    """Return what the teacher says of each image that the run uses, computed when it is first asked for, in float32."""
    table: list[Tensor] = []

    @torch.no_grad()
    def look_up(batch: Batch) -> Tensor:
        if not table:
            used = torch.cat([material.train, material.validation]).sort().values
            with torch.autocast(used.device.type, enabled=False):
                rows = torch.cat([logits(material.images.batch(part)[0]) for part in torch.split(used, CHUNK)])
            table.append(rows.new_empty(len(material.images), rows.shape[1]).index_copy_(0, used, rows))
        return table[0][batch.index]

    return look_up


class MaskedStage(Stage):
    """Minimises a loss over the weights that the masks keep: the largest at its start, or what a subclass chooses."""

    name = "finetune"

    def __init__(self, loss: Callable[[Batch], Loss], masks: Masks, epochs: int, learning_rate: float) -> None:
        self.epochs = epochs
        self.learning_rate = learning_rate
        self._loss = loss
        self._masks = masks

    def begin(self) -> None:
        self._masks.choose()

    def loss(self, batch: Batch) -> Loss:
        return self._loss(batch)

    def after_backward(self) -> None:
        self._masks.mask_gradients()

    def state_dict(self) -> dict[str, Any]:
        return self._masks.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._masks.load_state_dict(state)
