"""Architectures by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from pwoa.errors import InputError, did_you_mean
from pwoa.models.lenet import LeNet
from pwoa.models.resnet import ResNet18

ARCHITECTURES: dict[str, Callable[[int, int], nn.Module]] = {
    "lenet": LeNet,
    "resnet18": ResNet18,
}
"""Name → function of (classes, input channels) that builds the network."""


def build(architecture: str, classes: int, channels: int) -> nn.Module:
    """A new network of a registered architecture."""
    if architecture not in ARCHITECTURES:
        hint = did_you_mean(architecture, ARCHITECTURES)
        raise InputError(f"unknown architecture {architecture!r} ({hint}); in Python any nn.Module will do")
    return ARCHITECTURES[architecture](classes, channels)


def architecture_name(model: nn.Module) -> str:
    """The registered name of a model's architecture, or `module:class` of a user's own."""
    for name, maker in ARCHITECTURES.items():
        if type(model) is maker:
            return name
    return f"{type(model).__module__}:{type(model).__qualname__}"
