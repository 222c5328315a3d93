"""What an attacker wants large, image by image: cross-entropy and the difference of logits ratio (DLR).

The DLR is equation 6, its targeted form equation 7, of Croce & Hein 2020, "Reliable evaluation of adversarial
robustness with an ensemble of diverse parameter-free attacks". Neither changes when the logits are shifted or
scaled. The DLR takes three classes, its targeted form four; with fewer the spread in the denominator is that of
all three classes, and with two classes, where it would always be 1, both become cross-entropy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

ImageLoss = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) → one value an image, larger where the attacker is closer to its goal."""

_TINY = 1e-12


def ce(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy."""
    return F.cross_entropy(logits, labels, reduction="none")


def lead(logits: Tensor, labels: Tensor) -> Tensor:
    """How far the true class is ahead of the best other one; 0 or less where the image is broken."""
    true = logits.gather(1, labels[:, None])
    return (true - logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)).squeeze(1)


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """Minus the lead of the true class over the distance of the first from the third; positive where broken."""
    if logits.shape[1] < 3:
        return ce(logits, labels)
    top = logits.topk(3, dim=1).values
    return -lead(logits, labels) / (top[:, 0] - top[:, 2] + _TINY)


def targeted_dlr(targets: Tensor) -> ImageLoss:
    """The loss whose ascent brings each image to the class `targets` gives it."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        classes = logits.shape[1]
        if classes < 3:
            return ce(logits, labels)
        top = logits.topk(min(classes, 4), dim=1).values
        gain = logits.gather(1, targets[:, None]) - logits.gather(1, labels[:, None])
        return gain.squeeze(1) / (top[:, 0] - top[:, 2:].mean(1) + _TINY)

    return loss


def likely_targets(logits: Tensor, labels: Tensor, rank: int) -> Tensor:
    """For each image the class that is the `rank`-th (from 0) most likely one besides the true class."""
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return others.topk(rank + 1, dim=1).indices[:, rank]
