"""FGSM (Goodfellow et al. 2015), PGD (Madry et al. 2018), and PGD on the loss of Carlini & Wagner (2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from pwoa.attacks.ball import Ball, per_image, steepest
from pwoa.attacks.problem import Random, is_broken, lead
from pwoa.guard import refuse_attack
from pwoa.threat import Threat

if TYPE_CHECKING:
    from pwoa.models.border import LogitModel

AttackLoss = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) → the sum over images of what the attacker wants large."""

PGD_STEPS = 40
CW_STEPS = 30


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of FGSM and PGD."""
    return F.cross_entropy(logits, labels, reduction="sum")


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the CW loss: the largest other logit minus that of the true class."""
    return -lead(logits, labels).sum()


def fgsm(model: LogitModel, x: Tensor, labels: Tensor, threat: Threat, *, generator: Random = None) -> Tensor:
    """Take one step of the whole radius from the natural image. Nothing is random: `generator` is not used.

    Example: `fgsm(model, x, labels, Threat("linf", 8 / 255))`.
    """
    refuse_attack("fgsm")
    return _ascend(model, x, Ball.around(x, threat), labels, threat.radius, cross_entropy)


def pgd(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    steps: int = PGD_STEPS,
    *,
    loss: AttackLoss = cross_entropy,
    restarts: int = 1,
    start: Tensor | None = None,
    generator: Random = None,
) -> Tensor:
    """Take `steps` steepest-ascent steps of `threat.step`, from `start` or a random point; return the last iterate.

    Given the result of an earlier call as `start`, it goes on from there: 10 steps after 10 are PGD-20.
    With `restarts` the whole is done that many times, from new random points after the first, and an image
    that one of them broke comes back broken.
    Example: `pgd(model, x, labels, Threat("linf", 8 / 255, 2 / 255), 20)`.
    """
    refuse_attack("pgd")
    ball = Ball.around(x, threat)
    best = _run(model, ball.random(generator) if start is None else start, ball, labels, steps, loss)
    for _ in range(restarts - 1):
        again = _run(model, ball.random(generator), ball, labels, steps, loss)
        best = torch.where(per_image(is_broken(model, best, labels), x), best, again)
    return best


def cw(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    steps: int = CW_STEPS,
    *,
    restarts: int = 1,
    start: Tensor | None = None,
    generator: Random = None,
) -> Tensor:
    """Run PGD on the margin of the logits. Example: `cw(model, x, labels, Threat("linf", 8 / 255, 2 / 255))`."""
    return pgd(model, x, labels, threat, steps, loss=margin, restarts=restarts, start=start, generator=generator)


def _run(model: LogitModel, at: Tensor, ball: Ball, labels: Tensor, steps: int, loss: AttackLoss) -> Tensor:
    for _ in range(steps):
        at = _ascend(model, at, ball, labels, ball.threat.step, loss)
    return at


def _ascend(model: LogitModel, at: Tensor, ball: Ball, labels: Tensor, step: float, loss: AttackLoss) -> Tensor:
    """Take one steepest-ascent step from `at`, back into the ball."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(model(at), labels), at)
    with torch.no_grad():
        return ball.project(at + step * steepest(gradient, ball.threat.norm))
