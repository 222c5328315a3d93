"""FGSM (Goodfellow et al. 2015), PGD (Madry et al. 2018), and PGD on the loss of Carlini & Wagner (2017)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from pwoa.attacks.ball import project, random_start
from pwoa.guard import refuse_attack
from pwoa.models.border import LogitModel
from pwoa.recipe import Threat

AttackLoss = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) → the sum over images of what the attacker wants large."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of FGSM and PGD."""
    return F.cross_entropy(logits, labels, reduction="sum")


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The CW loss: the largest other logit minus that of the true class."""
    true = logits.gather(1, labels[:, None])
    other = logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
    return (other - true).sum()


def fgsm(model: LogitModel, x: Tensor, labels: Tensor, threat: Threat) -> Tensor:
    """One step of the whole radius from the natural image."""
    refuse_attack("fgsm")
    return _ascend(model, x, x, labels, threat, threat.radius, cross_entropy)


def pgd(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    steps: int,
    *,
    loss: AttackLoss = cross_entropy,
    start: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`steps` signed gradient steps of `threat.step`, from `start` or else a random point; the last iterate.

    Given the result of an earlier call as `start`, it goes on from there: 10 steps after 10 are PGD-20.
    """
    refuse_attack("pgd")
    adversarial = random_start(x, threat, generator) if start is None else start
    for _ in range(steps):
        adversarial = _ascend(model, adversarial, x, labels, threat, threat.step, loss)
    return adversarial


def _ascend(
    model: LogitModel, at: Tensor, x: Tensor, labels: Tensor, threat: Threat, step: float, loss: AttackLoss
) -> Tensor:
    """One signed gradient step from `at`, back into the ball around `x`."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(model(at), labels), at)
    with torch.no_grad():
        return project(at + step * gradient.sign(), x, threat)
