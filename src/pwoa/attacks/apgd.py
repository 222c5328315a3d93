"""APGD (Croce & Hein 2020, "Reliable evaluation of adversarial robustness …", algorithm 1) and its targeted form.

PGD with momentum whose step needs no setting: it starts at twice the radius and is halved at checkpoints, for
each image on its own, when the loss has stopped growing; the search then goes on from the best point.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from pwoa.attacks.ball import Ball, per_image, steepest, take_
from pwoa.attacks.losses import ImageLoss, ce, dlr, likely_targets, targeted_dlr
from pwoa.attacks.problem import TARGETS, Round, run_rounds
from pwoa.guard import refuse_attack
from pwoa.models.border import LogitModel
from pwoa.threat import Threat

STEPS = 100
MOMENTUM = 0.75  # the paper's α: the share of the new step
GROWTH = 0.75  # the paper's ρ: the share of steps that must raise the loss


def apgd_ce(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    *,
    steps: int = STEPS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """APGD on cross-entropy: the broken image with the highest loss, else that with the highest loss."""
    refuse_attack("apgd-ce")
    return _ascend(model, x, labels, threat, ce, steps, generator)


def apgd_dlr(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    *,
    steps: int = STEPS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """APGD on the DLR loss (cross-entropy for two classes)."""
    refuse_attack("apgd-dlr")
    return _ascend(model, x, labels, threat, dlr, steps, generator)


def apgd_t(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    *,
    steps: int = STEPS,
    targets: int = TARGETS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """APGD on the targeted DLR loss, for the `targets` most likely other classes in turn."""
    refuse_attack("apgd-t")
    rounds = partial(apgd_t_rounds, targets=targets, steps=steps)
    return run_rounds(rounds, model, x, labels, threat, generator)


def apgd_t_rounds(classes: int, *, targets: int = TARGETS, steps: int = STEPS) -> Sequence[Round]:
    """A round for each target class, most likely first."""

    def aim(rank: int) -> Round:
        def attack(
            model: LogitModel,
            x: Tensor,
            labels: Tensor,
            threat: Threat,
            best: Tensor,
            generator: torch.Generator | None,
        ) -> Tensor:
            with torch.no_grad():
                target = likely_targets(model(x).float(), labels, rank)
            return _ascend(model, x, labels, threat, targeted_dlr(target), steps, generator)

        return attack

    return [aim(rank) for rank in range(min(targets, classes - 1))]


def checkpoints(steps: int) -> list[int]:
    """The iterations at which the step may be halved: p₁ = 0.22, then shorter by 0.03 each, at least 0.06."""
    at, gap, found = 22, 22, []
    while at <= 100:
        found.append(-(-at * steps // 100))
        gap = max(gap - 3, 6)
        at += gap
    return found


def _ascend(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    loss: ImageLoss,
    steps: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Algorithm 1. Every decision stays on the device; the only Python numbers are counts of iterations."""
    ball = Ball.around(x, threat)
    at = previous = ball.random(generator)
    value, direction, wrong = _look(model, at, labels, loss, threat.norm)
    # The best point is the one with the highest loss, among the broken ones once there is one.
    best, best_value, best_direction, broken = at.clone(), value, direction.clone(), wrong
    step = value.new_full((len(x),), 2 * threat.radius)
    growths, last = torch.zeros_like(value), 0
    value_then, halved = torch.full_like(value, -torch.inf), torch.zeros_like(wrong)
    turning = set(checkpoints(steps))

    for k in range(1, steps + 1):
        moved = ball.project(torch.addcmul(at, direction, per_image(step, at)))
        if k > 1:  # at + α (moved − at) + (1 − α) (at − previous)
            moved.mul_(MOMENTUM).add_(at, alpha=2 - 2 * MOMENTUM).sub_(previous, alpha=1 - MOMENTUM)
            moved = ball.project(moved)
        previous, at, value_before = at, moved, value
        value, direction, wrong = _look(model, at, labels, loss, threat.norm)
        growths += value > value_before
        better = torch.where(wrong == broken, value > best_value, wrong)
        broken = broken | wrong
        best_value = torch.where(better, value, best_value)
        take_(best, at, better)
        take_(best_direction, direction, better)
        if k in turning:
            stuck = (value_then >= best_value) & ~halved
            halved = (growths < GROWTH * (k - last)) | stuck
            step = torch.where(halved, step / 2, step)
            value = torch.where(halved, best_value, value)
            take_(at, best, halved)
            take_(direction, best_direction, halved)
            growths, last, value_then = torch.zeros_like(value), k, best_value
    return best


def _look(model: LogitModel, at: Tensor, labels: Tensor, loss: ImageLoss, norm: str) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each image, the direction in which it grows fastest, and whether the image is broken."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        logits = model(at).float()
        value = loss(logits, labels)
        (gradient,) = torch.autograd.grad(value.sum(), at)
    return value.detach(), steepest(gradient, norm), logits.detach().argmax(1) != labels
