"""The set an attacker may choose from: the l∞ ball around each image, cut with [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from pwoa.recipe import Threat


def project(adversarial: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """The nearest allowed image."""
    low, high = (x - threat.radius).clamp_min(0), (x + threat.radius).clamp_max(1)
    return torch.minimum(torch.maximum(adversarial, low), high)


def random_start(x: Tensor, threat: Threat, generator: torch.Generator | None = None) -> Tensor:
    """A uniformly random point of the ball, cut with [0, 1]."""
    noise = torch.rand(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    return project(x + (2 * noise - 1) * threat.radius, x, threat)
