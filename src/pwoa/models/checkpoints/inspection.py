"""What is in a checkpoint, before anything is loaded: the architecture by its names and shapes, and the rest."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pwoa.models.architectures.registry import ARCHITECTURES, build
from pwoa.models.border import Normalisation, is_finite
from pwoa.models.checkpoints.contents import Checkpoint, unpack
from pwoa.models.checkpoints.files import COUNTER, open_checkpoint, some
from pwoa.models.checkpoints.pruned import ScoresError
from pwoa.models.checkpoints.skeleton import write_skeleton

_SCALES = (1, 10, 100, 1_000, 10_000)
_WIDEST = 10
_SPARSE = 0.05
_LIKE = 0.5
_STATISTICS = (COUNTER, "running_mean", "running_var")

Shapes = Mapping[str, tuple[int, ...]]


class Guess(NamedTuple):
    """A registered architecture, with its width if it is lite, of which a file holds every tensor and no other."""

    architecture: str
    classes: int
    channels: int


class TensorForm(NamedTuple):
    """A tensor of a file: its name in the network, its shape, and the dtype it was saved as."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Inspection:
    """What a checkpoint file holds.

    container, prefix: what stood around the network, empty if nothing. architecture: None if it is no registered one;
    classes and channels are then guessed from the last and the first layer, or None. dropped: tensors that are no part
    of the network, and why. sparsity: the part of exact zeros among the weights of layers, if it is more than a few
    percent, else 0. nonzero: of all parameters, how many. layout: the form of each tensor of the network. skeleton:
    Python source of a class that they fit.
    """

    path: str
    container: str
    prefix: str
    architecture: str | None
    classes: int | None
    channels: int | None
    normalisation: Normalisation | None
    dropped: dict[str, str]
    tensors: int
    parameters: int
    nonzero: int
    dtype: str
    sparsity: float
    warnings: tuple[str, ...]
    layout: tuple[TensorForm, ...] = ()
    skeleton: str = ""


def inspect_checkpoint(path: str | Path, kept: float | None = None) -> Inspection:
    """Look into a checkpoint of any form that `load_model` takes. Example: `inspect_checkpoint("trades.pt")`.

    path: the file.
    kept: as for `load_model`; where it is needed and not given, there is a warning instead of an error.
    """
    opened, doubts = open_checkpoint(path), []
    try:
        contents = unpack(opened, str(path), kept)
    except ScoresError as error:
        doubts.append(str(error))
        contents = unpack(opened, str(path), kept=1)
    guess = guess_architecture(contents.state)
    parameters = [value for key, value in contents.state.items() if not key.endswith(_STATISTICS)]
    return Inspection(
        path=contents.source,
        container=contents.container,
        prefix=contents.prefix,
        architecture=guess.architecture if guess else None,
        classes=guess.classes if guess else _likely_classes(contents.state),
        channels=guess.channels if guess else _likely_channels(contents.state),
        normalisation=contents.normalisation,
        dropped=contents.dropped,
        tensors=len(contents.tensors),
        parameters=sum(value.numel() for value in parameters),
        nonzero=sum(int(value.count_nonzero()) for value in parameters),
        dtype=contents.dtype,
        sparsity=_sparsity(contents.state),
        warnings=(*contents.warnings, *doubts, *_doubts(contents, guess)),
        layout=_layout(contents, opened.tensors),
        skeleton=write_skeleton(contents.state),
    )


def guess_architecture(state: Mapping[str, Tensor]) -> Guess | None:
    """Return the registered architecture whose names and shapes are exactly those of the state, but for counters.

    Of several, one that is not lite comes first.
    """
    shapes = {key: tuple(value.shape) for key, value in state.items() if not key.endswith(COUNTER)}
    alike = [name for name in ARCHITECTURES if set(_shapes(name, 10, 3)) == set(shapes)]
    return next((guess for lite in (False, True) for name in alike if (guess := _guess(name, shapes, lite))), None)


def likeness(state: Mapping[str, Tensor]) -> str:
    """Say which registered architecture has most of its names in common with a state; nothing if none is near."""
    names = {key for key in state if not key.endswith(COUNTER)}
    wanted = {name: _shapes(name, 10, 3).keys() for name in ARCHITECTURES}
    shared = {name: len(names & keys) / len(names | keys) for name, keys in wanted.items()}
    nearest = max(shared, key=lambda name: shared[name])
    if shared[nearest] < _LIKE:
        return ""
    if missing := [key for key in wanted[nearest] if key not in names]:
        return f"nearest is {nearest}, without its {some(missing)}"
    if extra := sorted(names - wanted[nearest]):
        return f"nearest is {nearest}, which has no {some(extra)}"
    return f"it has the names of {nearest}, but not its shapes"


def _guess(name: str, shapes: Shapes, lite: bool) -> Guess | None:
    """Return the architecture, as it is or lite, with the classes and channels that give these shapes.

    The first tensor of every registered one is the convolution of the images, the last the biases of the classes.
    """
    keys = list(_shapes(name, 10, 3))
    first, last = shapes[keys[0]], shapes[keys[-1]]
    if len(first) != 4 or len(last) != 1:
        return None
    classes, channels = last[0], first[1]
    full = f"{name}@{_width(name, classes, channels, shapes)}" if lite else name
    return Guess(full, classes, channels) if dict(shapes) == _shapes(full, classes, channels) else None


def _width(name: str, classes: int, channels: int, shapes: Shapes) -> float:
    """Return the width with fewest decimals of a network with as many numbers as the shapes have; else 1."""
    keys = list(_shapes(name, 10, 3))
    filters, full = shapes[keys[0]][0], _shapes(name, 10, 3)[keys[0]][0]
    low, high = (filters - 0.5 if filters > 1 else 0) / full, min((filters + 0.5) / full, _WIDEST)
    target = sum(map(math.prod, shapes.values()))

    def size(width: float) -> int:
        return sum(map(math.prod, _shapes(f"{name}@{width}", classes, channels).values()))

    for scale in _SCALES:
        widths = [step / scale for step in range(max(1, math.ceil(low * scale)), math.ceil(high * scale))]
        place = bisect_left(widths, target, key=size)
        if place < len(widths) and size(widths[place]) == target:
            return widths[place]
    return 1.0


@cache
def _shapes(architecture: str, classes: int, channels: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an architecture's tensors by name, but for counters; nothing is computed for it."""
    with torch.device("meta"):
        state = build(architecture, classes, channels).state_dict()
    return {key: tuple(value.shape) for key, value in state.items() if not key.endswith(COUNTER)}


def _likely_classes(state: Mapping[str, Tensor]) -> int | None:
    """Return the outputs of the last layer: a matrix, or a convolution of 1×1."""
    ends = [value for key, value in state.items() if key.endswith("weight") and _is_end(value)]
    return int(ends[-1].shape[0]) if ends else None


def _is_end(value: Tensor) -> bool:
    return value.dim() == 2 or (value.dim() == 4 and value.shape[2:].numel() == 1)


def _likely_channels(state: Mapping[str, Tensor]) -> int | None:
    """Return the inputs of the first convolution, if they are as many as images usually have."""
    first = next((value for value in state.values() if value.dim() == 4), None)
    return int(first.shape[1]) if first is not None and first.shape[1] in (1, 3, 4) else None


def _layout(contents: Checkpoint, saved: Mapping[str, Tensor]) -> tuple[TensorForm, ...]:
    """Return the form of each tensor; one that was put together from several has the dtype of computation."""
    forms = []
    for name, value in contents.state.items():
        before = saved.get(contents.prefix + name, saved.get(name, value))
        forms.append(TensorForm(name, tuple(value.shape), str(before.dtype).removeprefix("torch.")))
    return tuple(forms)


def _sparsity(state: Mapping[str, Tensor]) -> float:
    weights = [value for value in state.values() if value.dim() > 1]
    total = sum(value.numel() for value in weights)
    part = sum(int((value == 0).sum()) for value in weights) / total if total else 0.0
    return part if part >= _SPARSE else 0.0


def _doubts(contents: Checkpoint, guess: Guess | None) -> list[str]:
    """List what a person should know before trusting the file."""
    doubts = []
    if guess is None:
        own = "to prune or evaluate it give --arch FILE.py:CLASS"
        doubts.append(f"no registered architecture: {likeness(contents.state) or own}")
    if contents.hidden:
        doubts.append("the layer before the network left nothing in the file; give its --mean and --std")
    if bad := [key for key, value in contents.state.items() if not is_finite(value)]:
        doubts.append(f"NaN or infinite weights in {bad[0]}")
    return doubts
