"""PGD adversarial training (Madry et al. 2018, "Towards deep learning models resistant to adversarial attacks")."""

from __future__ import annotations

from torch.nn import functional as F

from pwoa.methods.adversarial import RobustTraining
from pwoa.recipe import Threat
from pwoa.training import Batch, Loss


class PgdAt(RobustTraining):
    """Cross-entropy on PGD examples."""

    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        logits = self._logits(self.attacked(batch, threat))
        loss = F.cross_entropy(logits.float(), batch.y)
        return Loss(loss, {"adversarial": loss}, logits)
