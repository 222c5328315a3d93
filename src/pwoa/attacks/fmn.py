"""FMN (Pintor et al. 2021, "Fast minimum-norm adversarial attacks through adaptive norm constraints", algorithm 1).

The attack looks for the nearest image of another class, whatever the radius. Each step follows the gradient of the lead
of the true class within a ball of its own around each image. The ball shrinks while the image is broken and grows while
it is not, so that the search settles on the boundary of the decision. All that is found on the way counts: from the
distances follows the accuracy at every radius.

Two things are ours. In l∞ a step is along the sign of the gradient, and a tenth as long, where the paper's has length 1
in l2: after 100 steps on a robust LeNet the median of the distances was 0.34, instead of 0.57. And until an image is
broken, its ball reaches beyond the boundary that its gradient promises by γ, not just to it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pwoa.attacks.ball import distance, per_image, project, steepest, take_
from pwoa.attacks.problem import Random, count_classes, lead
from pwoa.guard import refuse_attack
from pwoa.threat import Threat

if TYPE_CHECKING:
    from pwoa.models.border import LogitModel

STEPS = 100
LONGEST = {"l2": 1.0, "linf": 0.1}  # α at first, the paper's in l2; at last it is a hundredth of that
WIDEST, NARROWEST = 0.05, 0.001  # the paper's γ: by what share the ball changes, at first and at last
_TINY = 1e-12


def fmn(
    model: LogitModel, x: Tensor, labels: Tensor, threat: Threat, *, steps: int = STEPS, generator: Random = None
) -> Tensor:
    """Return the nearest broken images found, projected into the ball; nothing is random: `generator` is not used.

    Example: `fmn(model, x, labels, Threat("linf", 8 / 255))`.
    """
    return project(minimal(model, x, labels, threat.norm, steps=steps)[0], x, threat)


@torch.no_grad()
def minimal(model: LogitModel, x: Tensor, labels: Tensor, norm: str, *, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """Return the nearest broken images found, and how far they are: 0 where an image is wrong already.

    Where none is found, the image itself, and infinity. Example: `minimal(model, x, labels, "l2")[1].median()`.
    """
    refuse_attack("fmn")
    if not len(x):
        return x.clone(), x.new_zeros(0)
    count_classes(model, x)
    natural = x.detach()
    offset, radius = torch.zeros_like(natural), natural.new_zeros(len(natural))
    nearest, length = natural.clone(), torch.full_like(radius, torch.inf)
    for k in range(steps):
        step = _annealed(LONGEST[norm], LONGEST[norm] / 100, k, steps)
        change = _annealed(WIDEST, NARROWEST, k, steps)
        ahead, gradient = _look(model, natural + offset, labels)
        broken, far = ahead < 0, distance(natural + offset, natural, norm)
        closer = broken & (far < length)
        length = torch.where(closer, far, length)
        take_(nearest, natural + offset, closer)
        # Until an image is broken, its ball reaches to the boundary as its gradient sees it; then it grows and shrinks.
        seen = (far + ahead.abs() / _dual(gradient, norm).clamp_min(_TINY)) * (1 + change)
        outside = torch.where(length.isinf(), seen, radius * (1 + change))
        radius = torch.where(broken, torch.minimum(radius * (1 - change), length), outside)
        offset = _shrunk(offset - step * steepest(gradient, norm), radius, norm)
        offset = (natural + offset).clamp_(0, 1) - natural
    ahead, _ = _look(model, natural + offset, labels)
    far = distance(natural + offset, natural, norm)
    closer = (ahead < 0) & (far < length)
    take_(nearest, natural + offset, closer)
    return nearest, torch.where(closer, far, length)


def _annealed(first: float, last: float, k: int, steps: int) -> float:
    """Return where a cosine from `first` to `last` is at step k."""
    return last + (first - last) * (1 + math.cos(math.pi * k / steps)) / 2


def _look(model: LogitModel, at: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lead of the true class, below 0 where the image is broken, and its gradient."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        logits = model(at).float()
        ahead = lead(logits, labels)
        (gradient,) = torch.autograd.grad(ahead.sum(), at)
    # On a tie, `argmax` decides, as it does when accuracy is counted.
    wrong = logits.detach().argmax(1) != labels
    return torch.where(wrong, ahead.detach().clamp_max(-_TINY), ahead.detach()), gradient.nan_to_num(0, 0, 0)


def _dual(gradient: Tensor, norm: str) -> Tensor:
    """Return how fast the lead can fall along a step of length 1 in `norm`: the dual norm of its gradient."""
    flat = gradient.flatten(1)
    return flat.abs().sum(1) if norm == "linf" else flat.square().sum(1).sqrt()


def _shrunk(offset: Tensor, radius: Tensor, norm: str) -> Tensor:
    """Return the nearest offsets of at most `radius`, one for each image."""
    limit = per_image(radius, offset)
    if norm == "linf":
        return torch.minimum(torch.maximum(offset, -limit), limit)
    return offset * (limit / per_image(offset.flatten(1).norm(dim=1), offset).clamp_min(_TINY)).clamp_max(1)
