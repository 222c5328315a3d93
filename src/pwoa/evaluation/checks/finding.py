"""What all checks share: the finding that each reports, and how they look at a model, on a few images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pwoa.models.border import LogitModel

IMAGES = 100
"""How many images a check looks at, at most, where that costs forward passes."""


@dataclass(frozen=True)
class Finding:
    """A warning: the short, stable name of a check, and what it saw and what that means, in a sentence or two."""

    check: str
    message: str


def some(images: Tensor, seed: int) -> Tensor:
    """At most IMAGES of these numbers of images, whatever their order: data may be sorted by class."""
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:IMAGES]]


@torch.no_grad()
def look(model: LogitModel, x: Tensor) -> Tensor:
    return model(x).float()
