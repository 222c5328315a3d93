"""The problem that every attack is given, and how a long attack goes in rounds.

A round is one target class of a targeted attack, or some hundred queries of Square. Between rounds the images
that are left can be packed into full batches; within a round the host never waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pwoa.errors import InputError
from pwoa.threat import Threat

if TYPE_CHECKING:
    from pwoa.models.border import LogitModel

TARGETS = 9
"""How many classes the targeted attacks aim at, one after the other, or all others where there are fewer."""

Random = torch.Generator | None
"""Where random numbers come from; None takes torch's default."""


@dataclass(frozen=True)
class Problem:
    """Images that a model shall get wrong, and the attacker who may change them."""

    model: LogitModel
    x: Tensor
    labels: Tensor
    threat: Threat
    generator: Random = None

    def subset(self, chosen: Tensor) -> Problem:
        """Return the problem with only some of the images, chosen by their numbers or by a mask."""
        return replace(self, x=self.x[chosen], labels=self.labels[chosen])

    def on(self, model: LogitModel) -> Problem:
        """Return the same problem on another model."""
        return replace(self, model=model)

    def broken(self, adversarial: Tensor) -> Tensor:
        """Tell for each image whether the model gets it wrong as `adversarial`."""
        return is_broken(self.model, adversarial, self.labels)


Round = Callable[[Problem, Tensor], Tensor]
"""(problem, best) → better images than `best`: what the round before returned, or the natural ones at first."""

Rounds = Callable[[int], Sequence[Round]]
"""Number of classes → the rounds of an attack."""


def run_rounds(rounds: Rounds, problem: Problem) -> Tensor:
    """Run all rounds on one batch; what is broken takes no further part."""
    x = problem.x
    if not len(x):
        return x.clone()
    best, left = x.clone(), torch.arange(len(x), device=x.device)
    for attack in rounds(count_classes(problem.model, x)):
        remaining = problem.subset(left)
        tried = attack(remaining, best[left])
        best[left] = tried
        left = left[~remaining.broken(tried)]
        if not len(left):
            break
    return best


@torch.no_grad()
def is_broken(model: LogitModel, x: Tensor, labels: Tensor) -> Tensor:
    """Tell for each image whether the model gets it wrong."""
    return model(x).argmax(1) != labels


@torch.no_grad()
def count_classes(model: LogitModel, x: Tensor) -> int:
    """Return how many classes the model tells apart; one class is an error, for nothing can break it."""
    classes = model(x[:1]).shape[1]
    if classes < 2:
        raise InputError(f"an attack needs a model of two or more classes; this one gives {classes}")
    return classes


def lead(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how far the true class is ahead of the best other one; 0 or less where the image is broken."""
    true = logits.gather(1, labels[:, None])
    return (true - logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)).squeeze(1)


def likely_targets(logits: Tensor, labels: Tensor, rank: int) -> Tensor:
    """Return for each image the class that is the `rank`-th (from 0) most likely one besides the true class."""
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return others.topk(rank + 1, dim=1).indices[:, rank]
