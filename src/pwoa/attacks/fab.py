"""FAB (Croce & Hein 2020, "Minimally distorted adversarial examples with a fast adaptive boundary attack").

The attack looks for the nearest image of another class, whatever the radius. It walks along the boundary of the
decision, taken as a hyperplane at each step, with a pull back to the natural image (algorithm 1). Here in its
targeted form (FAB-T): the boundary is that between the true class and one other class at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pwoa.attacks.ball import distance, onto_hyperplane, per_image, project, take_
from pwoa.attacks.problem import TARGETS, Problem, Random, Round, likely_targets, run_rounds
from pwoa.guard import refuse_attack
from pwoa.threat import Threat

if TYPE_CHECKING:
    from pwoa.models.border import LogitModel

STEPS = 100
ALPHA_MAX = 0.1  # the strongest pull towards the natural image
ETA = 1.05  # how far past the hyperplane a step goes
BETA = 0.9  # how much of the offset is kept once the image is broken
SEARCHES = 3  # steps of the last search, on the line to the natural image


def fab_t(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    *,
    steps: int = STEPS,
    targets: int = TARGETS,
    generator: Random = None,
) -> Tensor:
    """Run FAB-T for the `targets` most likely other classes in turn; nothing is random: `generator` is not used.

    Return the nearest broken image found, projected into the ball, or the natural one where none was found.
    Example: `fab_t(model, x, labels, Threat("linf", 8 / 255))`.
    """
    refuse_attack("fab-t")
    rounds = partial(fab_t_rounds, targets=targets, steps=steps)
    return run_rounds(rounds, Problem(model, x, labels, threat, generator))


def fab_t_rounds(classes: int, *, targets: int = TARGETS, steps: int = STEPS) -> Sequence[Round]:
    """Return a round for each target class, most likely first."""
    return [partial(_aim, rank=rank, steps=steps) for rank in range(min(targets, classes - 1))]


def _aim(problem: Problem, best: Tensor, *, rank: int, steps: int) -> Tensor:
    x, threat = problem.x, problem.threat
    return project(nearest_broken(problem.model, x, problem.labels, threat.norm, rank, steps=steps), x, threat)


@torch.no_grad()
def nearest_broken(
    model: LogitModel, x: Tensor, labels: Tensor, norm: str, rank: int = 0, *, steps: int = STEPS
) -> Tensor:
    """Return the nearest broken images found on the way to the `rank`-th most likely other class, at any distance.

    An image that is wrong already, or that could not be broken, is returned as it is.
    Example: `distance(nearest_broken(model, x, labels, "l2"), x, "l2")`.
    """
    refuse_attack("fab-t")
    logits = model(x).float()
    target = likely_targets(logits, labels, rank)
    at, natural = x, x.flatten(1)
    nearest, length = x.clone(), torch.where(logits.argmax(1) == labels, torch.inf, 0.0).to(x.dtype)

    def note(tried: Tensor) -> Tensor:
        """Tell which images are broken, and keep the nearest ones."""
        broken = model(tried).argmax(1) != labels
        now = distance(tried, x, norm)
        closer = broken & (now < length)
        torch.where(closer, now, length, out=length)
        take_(nearest, tried, closer)
        return broken

    for _ in range(steps):
        gap, normal = _boundary(model, at, labels, target)
        here = at.flatten(1)
        there = torch.cat([here, natural])
        gaps = torch.cat([gap, gap + ((natural - here) * normal).sum(1)])
        landed = onto_hyperplane(there, normal.repeat(2, 1), gaps, norm)
        step, pull = distance(landed, there, norm).chunk(2)
        alpha = (step / (step + pull).clamp_min(1e-12)).clamp_max(ALPHA_MAX)
        past_here, past_natural = torch.lerp(there, landed, ETA).chunk(2)
        at = torch.lerp(past_here, past_natural, alpha[:, None]).clamp_(0, 1).view_as(x)
        at = torch.lerp(x, at, per_image(torch.where(note(at), BETA, 1.0), x))

    # Straight from the natural image to the boundary as the nearest image sees it: exact on a linear model.
    gap, normal = _boundary(model, nearest, labels, target)
    gap += ((natural - nearest.flatten(1)) * normal).sum(1)
    landed = onto_hyperplane(natural, normal, gap * (1 + 1e-4), norm).view_as(x)
    note(landed)
    return _search(model, x, labels, nearest)


def _search(model: LogitModel, x: Tensor, labels: Tensor, broken: Tensor) -> Tensor:
    """Move the images closer to the boundary, by false position on the line to the natural ones (section 2.6)."""
    right = x
    for _ in range(SEARCHES):
        ends = model(right).float(), model(broken).float()
        other = ends[1].argmax(1, keepdim=True)
        before, after = (z.gather(1, labels[:, None]) - z.gather(1, other) for z in ends)
        share = (before / (before - after).clamp_min(1e-12)).clamp(0, 1)
        # A little past the crossing, where the other class wins.
        middle = torch.lerp(right, broken, per_image(torch.lerp(share, torch.ones_like(share), 0.01), x))
        wrong = model(middle).argmax(1) != labels
        take_(broken, middle, wrong)
        right = torch.lerp(middle, right, per_image(wrong.to(x.dtype), x))
    return broken


def _boundary(model: LogitModel, at: Tensor, labels: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the boundary as a hyperplane, seen from `at`: the lead of the true class over the target, its gradient."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        logits = model(at).float()
        gap = (logits.gather(1, labels[:, None]) - logits.gather(1, target[:, None])).squeeze(1)
        (gradient,) = torch.autograd.grad(gap.sum(), at)
    return gap.detach(), gradient.flatten(1).nan_to_num(0, 0, 0)
