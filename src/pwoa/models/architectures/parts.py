"""What the architectures share: how many filters a lite network has, and He's initial weights."""

from __future__ import annotations

import math
from typing import Literal

from torch import nn


def scaled(filters: int, width: float) -> int:
    """Return how many filters a network `width` times as wide has: rounded half up, at least one."""
    return max(1, math.floor(filters * width + 0.5))


def start_as_he(model: nn.Module, fan: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Draw the weights of every convolution from He et al.'s normal distribution; biases begin at 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
