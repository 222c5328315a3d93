"""Architectures by name, and their lite versions: the same depth with fewer filters.

A new architecture is a file beside this one and a line in the table. The table imports nothing: a network's class is
imported when it is built.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from pwoa.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Architecture:
    """What there is to know of an architecture without building it.

    home: `module:class`; the class takes (classes, input channels, width). parameters: for 10 classes.
    hidden_points: at how many modules hidden activations are taken. channels: 1 for the grey images of MNIST.
    """

    home: str
    parameters: int
    hidden_points: int
    channels: int = 3


_HERE = "pwoa.models.architectures"
ARCHITECTURES: dict[str, Architecture] = {
    "lenet": Architecture(f"{_HERE}.mnist:LeNet", 3_274_634, 3, channels=1),
    "resnet18": Architecture(f"{_HERE}.resnet:ResNet18", 11_173_962, 10),
    "resnet34": Architecture(f"{_HERE}.resnet:ResNet34", 21_282_122, 18),
    "resnet50": Architecture(f"{_HERE}.resnet:ResNet50", 23_520_842, 18),
    "preactresnet18": Architecture(f"{_HERE}.resnet:PreActResNet18", 11_172_170, 10),
    "wrn-28-4": Architecture(f"{_HERE}.resnet:WideResNet28x4", 5_849_050, 14),
    "wrn-28-10": Architecture(f"{_HERE}.resnet:WideResNet28x10", 36_479_194, 14),
    "wrn-34-10": Architecture(f"{_HERE}.resnet:WideResNet34x10", 46_160_474, 17),
    "vgg16": Architecture(f"{_HERE}.vgg:VGG16", 14_728_266, 6),
    "vgg16-hydra": Architecture(f"{_HERE}.vgg:HydraVGG16", 15_311_818, 6),
    "smallcnn": Architecture(f"{_HERE}.mnist:SmallCNN", 312_202, 6, channels=1),
}

MADE_BY = "_pwoa_made_by"
"""The attribute of a network of a user's own that names the function or class that made it, as the user wrote it."""
_WIDEST = 10
_STEPS = 10_000
"""Lite widths are multiples of one over this: finer than one filter of the widest layer."""


def build(architecture: str, classes: int, channels: int, width: float | None = None) -> nn.Module:
    """Return a new network of a registered architecture. Example: `build("resnet18@0.5", classes=10, channels=3)`.

    `width` multiplies the filters of every layer, each rounded half up to a whole number of at least 1; it may
    stand in the name instead: `resnet18@0.5`.
    """
    name, named_width = _parse(architecture)
    if width is not None and named_width is not None:
        raise InputError(f"{architecture!r} says its width; leave out width={width!r}")
    chosen = next((given for given in (width, named_width) if given is not None), 1.0)
    if not (isinstance(chosen, (int, float)) and 0 < chosen <= _WIDEST):
        raise InputError(f"the width of {name} must be a number above 0 and up to {_WIDEST}, not {chosen!r}")
    module, _, network = ARCHITECTURES[name].home.partition(":")
    made: nn.Module = getattr(import_module(module), network)(classes, channels, float(chosen))
    return made


def architecture_name(model: nn.Module) -> str:
    """Return the registered name of a model's architecture, with its width if it is lite, as `build` takes it.

    Of a user's own network it is `module:class`, or the `file.py:function` that made it; of a normalised model, the
    name of the network inside.
    """
    from pwoa.models.border import Normalised

    if isinstance(model, Normalised):
        return architecture_name(model.model)
    home = f"{type(model).__module__}:{type(model).__qualname__}"
    name = next((name for name, entry in ARCHITECTURES.items() if entry.home == home), None)
    if name is None:
        return str(vars(model).get(MADE_BY, home))
    return name if model.width == 1 else f"{name}@{model.width}"


def described() -> list[tuple[str, int, int]]:
    """List each architecture's name, its parameters for 10 classes, and how many hidden activations it has."""
    return [(name, entry.parameters, entry.hidden_points) for name, entry in ARCHITECTURES.items()]


def lite_width(architecture: str, classes: int, channels: int, rate: float) -> float:
    """Return the width at which the number of parameters is closest to the architecture's own divided by `rate`.

    All layers are scaled by it, so the count moves in steps: it can miss by some per mille in a network of millions
    of parameters, and by a few percent in a small one. Of the widths that give the same network, the roundest.
    """
    if not 1 <= rate < math.inf:
        raise InputError(f"the rate of a lite network must be a number of at least 1, not {rate!r}")
    name, full_width = _parse(architecture)

    @cache
    def size(step: int) -> int:
        return _parameters(name, classes, channels, step / _STEPS)

    target = _parameters(architecture, classes, channels) / rate
    steps = range(1, math.ceil(_STEPS * (full_width or 1.0)) + 1)
    above = bisect_left(steps, target, key=size)
    nearest = min(map(size, steps[max(above - 1, 0) : above + 1]), key=lambda count: abs(count - target))
    same = steps[bisect_left(steps, nearest, key=size) : bisect_right(steps, nearest, key=size)]
    return max(same, key=lambda step: len(str(step)) - len(str(step).rstrip("0"))) / _STEPS


def _parse(architecture: str) -> tuple[str, float | None]:
    """Split `name` or `name@width` into the registered name, and the width if there is one."""
    name, at, text = architecture.partition("@")
    if name not in ARCHITECTURES:
        if name.endswith(".py"):
            raise InputError(f"{name!r} names a file and no network in it; give {name}:CLASS")
        hint = did_you_mean(name, ARCHITECTURES)
        raise InputError(f"unknown architecture {name!r} ({hint}); in Python any nn.Module will do")
    if not at:
        return name, None
    try:
        return name, float(text)
    except ValueError:
        raise InputError(f"the width in {architecture!r} is not a number; write for example {name}@0.5") from None


def _parameters(architecture: str, classes: int, channels: int, width: float | None = None) -> int:
    import torch

    with torch.device("meta"):
        model = build(architecture, classes, channels, width)
    return sum(parameter.numel() for parameter in model.parameters())
