"""Architectures by name, and their lite versions: the same depth with fewer filters."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cache
from typing import cast

import torch
from torch import nn

from pwoa.errors import InputError, did_you_mean
from pwoa.models.architectures.mnist import LeNet, SmallCNN
from pwoa.models.architectures.resnet import (
    PreActResNet18,
    ResNet18,
    ResNet34,
    ResNet50,
    WideResNet28x4,
    WideResNet28x10,
    WideResNet34x10,
)
from pwoa.models.architectures.vgg import VGG16, HydraVGG16
from pwoa.models.border import Normalised

ARCHITECTURES: dict[str, Callable[[int, int, float], nn.Module]] = {
    "lenet": LeNet,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "resnet50": ResNet50,
    "preactresnet18": PreActResNet18,
    "wrn-28-4": WideResNet28x4,
    "wrn-28-10": WideResNet28x10,
    "wrn-34-10": WideResNet34x10,
    "vgg16": VGG16,
    "vgg16-hydra": HydraVGG16,
    "smallcnn": SmallCNN,
}
"""Name → function of (classes, input channels, width) that builds the network."""

_GREY = ("lenet", "smallcnn")
"""Those for MNIST, whose images have one channel."""

_WIDEST = 10
_STEPS = 10_000
"""Lite widths are multiples of one over this: finer than one filter of the widest layer."""


def build(architecture: str, classes: int, channels: int, width: float | None = None) -> nn.Module:
    """A new network of a registered architecture.

    `width` multiplies the filters of every layer, each rounded half up to a whole number of at least 1; it may
    stand in the name instead: `resnet18@0.5`.
    """
    name, named_width = _parse(architecture)
    if width is not None and named_width is not None:
        raise InputError(f"{architecture!r} says its width; leave out width={width!r}")
    chosen = next((given for given in (width, named_width) if given is not None), 1.0)
    if not (isinstance(chosen, (int, float)) and 0 < chosen <= _WIDEST):
        raise InputError(f"the width of {name} must be a number above 0 and up to {_WIDEST}, not {chosen!r}")
    return ARCHITECTURES[name](classes, channels, float(chosen))


def architecture_name(model: nn.Module) -> str:
    """The registered name of a model's architecture, with its width if it is lite (`resnet18@0.5`), which `build`
    takes; or `module:class` of a user's own. Of a normalised model it is the network's."""
    if isinstance(model, Normalised):
        return architecture_name(model.model)
    for name, maker in ARCHITECTURES.items():
        if type(model) is maker:
            return name if model.width == 1 else f"{name}@{model.width}"
    return f"{type(model).__module__}:{type(model).__qualname__}"


def described() -> list[tuple[str, int, tuple[str, ...]]]:
    """Each architecture's name, its parameters for 10 classes, and the modules of its hidden activations."""
    rows = []
    for name, maker in ARCHITECTURES.items():
        with torch.device("meta"):
            model = maker(10, 1 if name in _GREY else 3, 1.0)
        rows.append(
            (name, sum(value.numel() for value in model.parameters()), cast(tuple[str, ...], model.hidden_points))
        )
    return rows


def lite_width(architecture: str, classes: int, channels: int, rate: float) -> float:
    """The width at which the number of parameters is closest to the architecture's own divided by `rate`.

    All layers are scaled by it, so the count moves in steps: it can miss by some per mille in a network of millions
    of parameters, and by a few percent in a small one. Of the widths that give the same network, the roundest.
    """
    if not 1 <= rate < math.inf:
        raise InputError(f"the rate of a lite network must be a number of at least 1, not {rate!r}")
    name, own_width = _parse(architecture)

    @cache
    def size(step: int) -> int:
        return _parameters(name, classes, channels, step / _STEPS)

    target = _parameters(architecture, classes, channels) / rate
    steps = range(1, math.ceil(_STEPS * (own_width or 1.0)) + 1)
    above = bisect_left(steps, target, key=size)
    nearest = min(map(size, steps[max(above - 1, 0) : above + 1]), key=lambda found: abs(found - target))
    same = steps[bisect_left(steps, nearest, key=size) : bisect_right(steps, nearest, key=size)]
    return max(same, key=_zeros) / _STEPS


def _zeros(step: int) -> int:
    """How many zeros a number ends in."""
    return len(str(step)) - len(str(step).rstrip("0"))


def _parse(architecture: str) -> tuple[str, float | None]:
    """The registered name in `name` or `name@width`, and the width if there is one."""
    name, at, text = architecture.partition("@")
    if name not in ARCHITECTURES:
        hint = did_you_mean(name, ARCHITECTURES)
        raise InputError(f"unknown architecture {name!r} ({hint}); in Python any nn.Module will do")
    if not at:
        return name, None
    try:
        return name, float(text)
    except ValueError:
        raise InputError(f"the width in {architecture!r} is not a number; write for example {name}@0.5") from None


def _parameters(architecture: str, classes: int, channels: int, width: float | None = None) -> int:
    with torch.device("meta"):
        model = build(architecture, classes, channels, width)
    return sum(parameter.numel() for parameter in model.parameters())
