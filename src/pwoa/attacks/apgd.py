"""APGD (Croce & Hein 2020, "Reliable evaluation of adversarial robustness …", algorithm 1) and its targeted form.

PGD with momentum whose step needs no setting: it starts at twice the radius and is halved at checkpoints, for
each image by itself, when the loss has stopped growing; the search then goes on from the best point.

The DLR, the difference of logits ratio, is equation 6 there, its targeted form equation 7. Neither changes when the
logits are shifted or scaled. The DLR takes three classes, its targeted form four; with fewer the spread in the
denominator is that of all three classes, and with two classes, where it would always be 1, both become cross-entropy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from pwoa.attacks.ball import Ball, per_image, steepest, take_
from pwoa.attacks.problem import TARGETS, Problem, Random, Round, lead, likely_targets, run_rounds
from pwoa.guard import refuse_attack
from pwoa.threat import Threat

if TYPE_CHECKING:
    from pwoa.models.border import LogitModel

STEPS = 100
STRONG_CE_STEPS, STRONG_TARGETS, STRONG_T_STEPS = 50, 1, 50
"""Of `strong`: how many steps of APGD-CE, then how many classes APGD-T aims at, in how many steps each."""
STRONG_CALLS = STRONG_CE_STEPS + STRONG_TARGETS * STRONG_T_STEPS
MOMENTUM = 0.75  # the paper's α: the share of the new step
GROWTH = 0.75  # the paper's ρ: the share of steps that must raise the loss
_TINY = 1e-12

ImageLoss = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) → one value an image, larger where the attacker is closer to its goal."""


def apgd_ce(
    model: LogitModel, x: Tensor, labels: Tensor, threat: Threat, *, steps: int = STEPS, generator: Random = None
) -> Tensor:
    """Run APGD on cross-entropy: return the broken image with the highest loss, else that with the highest loss.

    Example: `apgd_ce(model, x, labels, Threat("linf", 8 / 255))`.
    """
    refuse_attack("apgd-ce")
    return _ascend(Problem(model, x, labels, threat, generator), ce, steps)


def apgd_dlr(
    model: LogitModel, x: Tensor, labels: Tensor, threat: Threat, *, steps: int = STEPS, generator: Random = None
) -> Tensor:
    """Run APGD on the DLR loss (cross-entropy for two classes). Example: `apgd_dlr(model, x, labels, Threat())`."""
    refuse_attack("apgd-dlr")
    return _ascend(Problem(model, x, labels, threat, generator), dlr, steps)


def apgd_t(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    *,
    steps: int = STEPS,
    targets: int = TARGETS,
    generator: Random = None,
) -> Tensor:
    """Run APGD on the targeted DLR loss, for the `targets` most likely other classes in turn.

    Example: `apgd_t(model, x, labels, Threat("l2", 0.5))`.
    """
    refuse_attack("apgd-t")
    rounds = partial(apgd_t_rounds, targets=targets, steps=steps)
    return run_rounds(rounds, Problem(model, x, labels, threat, generator))


def apgd_t_rounds(classes: int, *, targets: int = TARGETS, steps: int = STEPS) -> Sequence[Round]:
    """Return a round for each target class, most likely first."""
    return [partial(_aim, rank=rank, steps=steps) for rank in range(min(targets, classes - 1))]


def strong(model: LogitModel, x: Tensor, labels: Tensor, threat: Threat, *, generator: Random = None) -> Tensor:
    """Run APGD-CE, then APGD-T for the likeliest classes, both cut to what a table can afford.

    Example: `strong(model, x, labels, Threat("linf", 8 / 255))`.
    """
    refuse_attack("strong")
    return run_rounds(strong_rounds, Problem(model, x, labels, threat, generator))


def strong_rounds(
    classes: int, *, ce_steps: int = STRONG_CE_STEPS, targets: int = STRONG_TARGETS, steps: int = STRONG_T_STEPS
) -> Sequence[Round]:
    """Return a round of APGD-CE, and one of APGD-T for each target class."""

    def untargeted(problem: Problem, best: Tensor) -> Tensor:
        return _ascend(problem, ce, ce_steps)

    return [untargeted, *apgd_t_rounds(classes, targets=targets, steps=steps)]


def _aim(problem: Problem, best: Tensor, *, rank: int, steps: int) -> Tensor:
    with torch.no_grad():
        target = likely_targets(problem.model(problem.x).float(), problem.labels, rank)
    return _ascend(problem, targeted_dlr(target), steps)


def checkpoints(steps: int) -> list[int]:
    """Return the iterations at which the step may be halved: p₁ = 0.22, then shorter by 0.03 each, at least 0.06."""
    at, gap, iterations = 22, 22, []
    while at <= 100:
        iterations.append(-(-at * steps // 100))
        gap = max(gap - 3, 6)
        at += gap
    return iterations


def _ascend(problem: Problem, loss: ImageLoss, steps: int) -> Tensor:
    """Run algorithm 1. Every decision stays on the device; the only Python numbers are counts of iterations."""
    ball = Ball.around(problem.x, problem.threat)
    at = previous = ball.random(problem.generator)
    value, direction, wrong = _look(problem, at, loss)
    # The best point is the one with the highest loss, among the broken ones once there is one.
    best, best_value, best_direction, broken = at.clone(), value, direction.clone(), wrong
    step = value.new_full((len(at),), 2 * problem.threat.radius)
    growths, last = torch.zeros_like(value), 0
    value_then, halved = torch.full_like(value, -torch.inf), torch.zeros_like(wrong)
    turning = set(checkpoints(steps))

    for k in range(1, steps + 1):
        moved = ball.project(torch.addcmul(at, direction, per_image(step, at)))
        if k > 1:  # at + α (moved − at) + (1 − α) (at − previous)
            moved.mul_(MOMENTUM).add_(at, alpha=2 - 2 * MOMENTUM).sub_(previous, alpha=1 - MOMENTUM)
            moved = ball.project(moved)
        previous, at, value_before = at, moved, value
        value, direction, wrong = _look(problem, at, loss)
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


def _look(problem: Problem, at: Tensor, loss: ImageLoss) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of each image, the direction in which it grows fastest, and whether the image is broken."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        logits = problem.model(at).float()
        value = loss(logits, problem.labels)
        (gradient,) = torch.autograd.grad(value.sum(), at)
    return value.detach(), steepest(gradient, problem.threat.norm), logits.detach().argmax(1) != problem.labels


def ce(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each image."""
    return F.cross_entropy(logits, labels, reduction="none")


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """Return minus the lead of the true class over the distance of the first from the third; positive where broken."""
    if logits.shape[1] < 3:
        return ce(logits, labels)
    top = logits.topk(3, dim=1).values
    return -lead(logits, labels) / (top[:, 0] - top[:, 2] + _TINY)


def targeted_dlr(targets: Tensor) -> ImageLoss:
    """Return the loss whose ascent brings each image to the class `targets` gives it."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        classes = logits.shape[1]
        if classes < 3:
            return ce(logits, labels)
        top = logits.topk(min(classes, 4), dim=1).values
        gain = logits.gather(1, targets[:, None]) - logits.gather(1, labels[:, None])
        return gain.squeeze(1) / (top[:, 0] - top[:, 2:].mean(1) + _TINY)

    return loss
