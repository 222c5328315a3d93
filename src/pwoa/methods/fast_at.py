"""Adversarial training with one step (Wong et al. 2020, "Fast is better than free"), guarded against collapse.

One-step training can collapse: from one epoch to the next it resists the single step only, and PGD breaks
everything. Two safeguards: the start is drawn from twice the radius and the step is not cut back to the ball
(de Jorge et al. 2022, "Make some noise"), which avoids the collapse at no cost; and when the error under PGD on the
validation split jumps all the same, training goes on with two steps.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.attacks.ball import random_offset, steepest
from pwoa.guard import refuse_attack
from pwoa.methods.adversarial import RobustTraining
from pwoa.models.border import under_attack
from pwoa.recipe.sections import Recipe
from pwoa.threat import Threat
from pwoa.training.stage import Batch, Loss, Material

JUMP = 10.0
"""By how many points the error under PGD must rise above the lowest so far to be taken for a collapse."""


class FastAt(RobustTraining):
    """Cross-entropy on images moved by noise and one step; after a collapse, by two half steps."""

    name = "fast-at"
    ignores = (*RobustTraining.ignores, *(f"pretrain.{setting}" for setting in ("step", "beta")))

    def __init__(self, model: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(model, material, recipe)
        self._steps, self._lowest = 1, 100.0

    def constants(self) -> object:
        return super().constants(), self._steps

    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        logits = self._logits(self._moved(batch, threat))
        loss = F.cross_entropy(logits.float(), batch.y)
        return Loss(loss, {"adversarial": loss}, logits)

    def after_epoch(self, epoch: int, validation: Mapping[str, float]) -> Mapping[str, Any]:
        error = validation["robust_error"]
        if error > self._lowest + JUMP:
            self._steps = 2
        self._lowest = min(self._lowest, error)
        return {"steps": self._steps}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "lowest": self._lowest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps, self._lowest = state["steps"], state["lowest"]

    def _moved(self, batch: Batch, threat: Threat) -> Tensor:
        refuse_attack("fast-at")
        at = batch.x + random_offset(batch.x, threat.norm, 2 * threat.radius)
        for _ in range(self._steps):
            with torch.enable_grad(), under_attack(self._model):
                at = at.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(F.cross_entropy(self._logits(at).float(), batch.y), at)
            at = at.detach() + threat.radius / self._steps * steepest(gradient, threat.norm)
        return at.clamp(0, 1)
