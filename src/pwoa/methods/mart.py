"""MART (Wang et al. 2020, "Improving adversarial robustness requires revisiting misclassified examples")."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pwoa.methods.adversarial import RobustTraining, divergence
from pwoa.recipe import Threat
from pwoa.training import Batch, Loss

_TINY = 1e-4


class Mart(RobustTraining):
    """Boosted cross-entropy on x_adv, and β KL(f(x) ‖ f(x_adv)) weighed by how unsure f is of the natural image."""

    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        natural, logits = self.both(batch.x, self.attacked(batch, threat))
        boosted = boosted_cross_entropy(logits.float(), batch.y)
        unsure = 1 - F.softmax(natural.float(), 1).gather(1, batch.y[:, None]).squeeze(1)
        apart = (divergence(natural, logits) * unsure).mean()
        return Loss(boosted + self._recipe.beta * apart, {"boosted": boosted, "divergence": apart}, natural)


def boosted_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−log p_y − log(1 − the largest other p): cross-entropy with a margin (the paper's equation 6)."""
    others = F.softmax(logits, 1).scatter(1, labels[:, None], 0.0).amax(1)
    return F.cross_entropy(logits, labels) - torch.log(1 + _TINY - others).mean()
