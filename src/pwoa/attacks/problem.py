"""Attacks in rounds: what a long attack does one after the other, each round only to the images still unbroken.

A round is one target class of a targeted attack, or some hundred queries of Square. Between rounds the images
that are left can be packed into full batches; within a round the host never waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pwoa.errors import InputError
from pwoa.models.border import LogitModel
from pwoa.threat import Threat

TARGETS = 9
"""How many classes the targeted attacks aim at, one after the other, or all others where there are fewer."""


class Round(Protocol):
    def __call__(
        self,
        model: LogitModel,
        x: Tensor,
        labels: Tensor,
        threat: Threat,
        best: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Better images than `best`, which is what the round before returned, or `x` in the first round."""


Rounds = Callable[[int], Sequence[Round]]
"""Number of classes → the rounds of an attack."""


def run_rounds(
    rounds: Rounds,
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    generator: torch.Generator | None,
) -> Tensor:
    """All rounds on one batch; what is broken takes no further part."""
    if not len(x):
        return x.clone()
    best, left = x.clone(), torch.arange(len(x), device=x.device)
    for attack in rounds(count_classes(model, x)):
        found = attack(model, x[left], labels[left], threat, best[left], generator)
        best[left] = found
        left = left[~is_broken(model, found, labels[left])]
        if not len(left):
            break
    return best


@torch.no_grad()
def is_broken(model: LogitModel, x: Tensor, labels: Tensor) -> Tensor:
    """For each image whether the model gets it wrong."""
    return model(x).argmax(1) != labels


@torch.no_grad()
def count_classes(model: LogitModel, x: Tensor) -> int:
    """How many classes the model tells apart; an error for one, which nothing can break."""
    classes = model(x[:1]).shape[1]
    if classes < 2:
        raise InputError(f"an attack needs a model of two or more classes; this one gives {classes}")
    return classes
