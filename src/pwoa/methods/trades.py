"""TRADES (Zhang et al. 2019, "Theoretically principled trade-off between robustness and accuracy")."""

from __future__ import annotations

from torch.nn import functional as F

from pwoa.methods.adversarial import RobustTraining, divergence
from pwoa.recipe import Threat
from pwoa.training import Batch, Loss


class Trades(RobustTraining):
    """CE(f(x), y) + β KL(f(x) ‖ f(x_adv)), with x_adv found by PGD on that divergence."""

    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        logits, adversarial = self.both(batch.x, self.furthest(batch, threat))
        natural = F.cross_entropy(logits.float(), batch.y)
        apart = divergence(logits, adversarial).mean()
        return Loss(natural + self._recipe.beta * apart, {"natural": natural, "divergence": apart}, logits)
