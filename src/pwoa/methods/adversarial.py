"""Robust training on adversarial examples: what its methods share, PGD-AT, TRADES and MART; and natural training.

- PGD-AT: Madry et al. 2018, "Towards deep learning models resistant to adversarial attacks".
- TRADES: Zhang et al. 2019, "Theoretically principled trade-off between robustness and accuracy".
- MART: Wang et al. 2020, "Improving adversarial robustness requires revisiting misclassified examples".
"""

import dataclasses
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.attacks.gradient import AttackLoss, cross_entropy, pgd
from pwoa.methods.method import Method
from pwoa.models.border import as_logits, evaluating, under_attack
from pwoa.recipe.sections import Recipe
from pwoa.threat import Threat
from pwoa.training.stage import Batch, Loss, Material, Stage


class RobustTraining(Stage, Method):
    """One stage of robust training. Epochs are selected by the error under PGD-10 on the validation split.

    A new method is a subclass with a name and a `loss`, and a line in `pwoa.methods.METHODS`.
    """

    prunes, example_free = False, False
    common = ("method", "data.", "teacher.", "threat.", "sparsity.rate", "pretrain.", "training.", "evaluation.")
    ignores: ClassVar[tuple[str, ...]] = ("teacher.checkpoint", "training.mix")
    section, criterion, accuracy_of, attacks = "pretrain", "robust_error", "PGD-10", True

    def __init__(self, model: nn.Module, material: Material, recipe: Recipe) -> None:
        self.epochs = recipe.pretrain.epochs
        self.learning_rate = recipe.pretrain.learning_rate
        self.warmup = recipe.pretrain.warmup
        self._recipe = recipe.pretrain
        self._model = model
        self.trained = model
        self._logits = as_logits(model, material.classes)
        threat = recipe.threat.in_quarters()
        self.threat = dataclasses.replace(threat, step=recipe.pretrain.step or threat.step)
        self._now = self.threat

    def before_epoch(self, epoch: int) -> None:
        """At the whole radius from the start, training on MNIST stays at a constant answer; the last epoch has it."""
        growing = min(self._recipe.growing, self.epochs)
        share = min(1.0, (epoch + 1) / growing) if growing else 1.0
        self._now = dataclasses.replace(self.threat, radius=share * self.threat.radius, step=share * self.threat.step)

    def constants(self) -> object:
        return self._now

    @classmethod
    def stage_epochs(cls, recipe: Recipe) -> tuple[int, ...]:
        return (recipe.pretrain.epochs,)

    @classmethod
    def files(cls, recipe: Recipe) -> dict[str, str]:
        return {"pretrain.start": recipe.pretrain.start} if recipe.pretrain.start else {}

    def loss(self, batch: Batch) -> Loss:
        return self.robust_loss(batch, self._now)

    def validation_loss(self, batch: Batch) -> Loss:
        with under_attack(self._model):
            adversarial = pgd(self._logits, batch.x, batch.y, self.threat.in_quarters(), 10)
        logits = self._logits(adversarial)
        error = 100 * (logits.argmax(1) != batch.y).float().mean()
        loss = F.cross_entropy(logits.float(), batch.y)
        return Loss(loss, {"adversarial": loss, "robust_error": error}, logits)

    @abstractmethod
    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        """Return what is minimised on a training batch, against this attacker."""

    def attacked(self, batch: Batch, threat: Threat, loss: AttackLoss = cross_entropy) -> Tensor:
        """Return PGD examples of the model in eval mode, from a random point of the ball.

        TRADES and MART are published with a start 0.001·N(0, 1) away, of which bfloat16 leaves next to nothing.
        """
        with under_attack(self._model):
            return pgd(self._logits, batch.x, batch.y, threat, self._recipe.steps, loss=loss)

    def both(self, x: Tensor, adversarial: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of natural images and of their adversarial ones, in one pass.

        So batch normalisation has the same statistics for both, as in evaluation: each over a group of natural images
        and their adversarial ones. With statistics of their own, what an attack does to the mean of a layer is taken
        out again in training mode.
        """
        pairs = torch.stack([x, adversarial], 1).flatten(0, 1)  # neighbours, so that a group has as many of both
        logits = self._logits(pairs)
        return logits[0::2], logits[1::2]

    def furthest(self, batch: Batch, threat: Threat) -> Tensor:
        """Return PGD examples on which the model in eval mode differs most from the natural images."""
        with torch.no_grad(), evaluating(self._model):
            natural = self._logits(batch.x)
        return self.attacked(batch, threat, lambda logits, _: divergence(natural, logits).sum())


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p ‖ q) of logits, image by image."""
    log_p, log_q = F.log_softmax(p.float(), 1), F.log_softmax(q.float(), 1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


class Natural(RobustTraining):
    """Cross-entropy on natural images, and no attack: for a teacher that is not robust, as APD's is published."""

    name, example_free = "natural", True
    ignores = (*RobustTraining.ignores, *(f"pretrain.{setting}" for setting in ("step", "beta", "growing")))
    criterion, accuracy_of, attacks = "error", "natural", False

    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        logits = self._logits(batch.x)
        loss = F.cross_entropy(logits.float(), batch.y)
        return Loss(loss, {"natural": loss}, logits)

    def validation_loss(self, batch: Batch) -> Loss:
        loss = self.robust_loss(batch, self.threat)
        error = 100 * (loss.logits.argmax(1) != batch.y).float().mean()
        return Loss(loss.total, {**loss.parts, "error": error}, loss.logits)


class PgdAt(RobustTraining):
    """Cross-entropy on PGD examples."""

    name = "pgd-at"
    ignores = (*RobustTraining.ignores, "pretrain.beta")

    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        logits = self._logits(self.attacked(batch, threat))
        loss = F.cross_entropy(logits.float(), batch.y)
        return Loss(loss, {"adversarial": loss}, logits)


class Trades(RobustTraining):
    """CE(f(x), y) + β KL(f(x) ‖ f(x_adv)), with x_adv found by PGD on that divergence."""

    name = "trades"

    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        logits, adversarial = self.both(batch.x, self.furthest(batch, threat))
        natural = F.cross_entropy(logits.float(), batch.y)
        kl = divergence(logits, adversarial).mean()
        return Loss(natural + self._recipe.beta * kl, {"natural": natural, "divergence": kl}, logits)

    def partial_loss(self, batch: Batch, threat: Threat, groups: Tensor) -> Loss:
        """Return the loss with the divergence of some images only, 0 for the others.

        groups: their positions, a row for each group, which is normalised with its own adversarial examples.
        """
        chosen, count = groups.flatten(), len(groups)
        some = Batch(batch.x[chosen], batch.y[chosen], batch.index[chosen])
        adversarial = self.furthest(some, threat) if len(chosen) else some.x
        together = [images.reshape(count, -1, *images.shape[1:]) for images in (batch.x, adversarial)]
        answer = self._logits(torch.cat(together, 1).flatten(0, 1))
        answer = answer.view(count, -1, answer.shape[1])
        natural_ones = len(batch.y) // count
        logits, moved = answer[:, :natural_ones].flatten(0, 1), answer[:, natural_ones:].flatten(0, 1)
        natural = F.cross_entropy(logits.float(), batch.y)
        kl = divergence(logits[chosen], moved).sum() / len(batch.y)
        return Loss(natural + self._recipe.beta * kl, {"natural": natural, "divergence": kl}, logits)


_TINY = 1e-4


class Mart(RobustTraining):
    """Boosted cross-entropy on x_adv, and β KL(f(x) ‖ f(x_adv)) weighed by how unsure f is of the natural image."""

    name = "mart"

    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        natural, logits = self.both(batch.x, self.attacked(batch, threat))
        boosted = boosted_cross_entropy(logits.float(), batch.y)
        unsure = 1 - F.softmax(natural.float(), 1).gather(1, batch.y[:, None]).squeeze(1)
        kl = (divergence(natural, logits) * unsure).mean()
        return Loss(boosted + self._recipe.beta * kl, {"boosted": boosted, "divergence": kl}, natural)


def boosted_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −log p_y − log(1 − the largest other p): cross-entropy with a margin (the paper's equation 6)."""
    others = F.softmax(logits, 1).scatter(1, labels[:, None], 0.0).amax(1)
    return F.cross_entropy(logits, labels) - torch.log(1 + _TINY - others).mean()
