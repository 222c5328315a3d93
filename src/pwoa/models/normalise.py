"""The normalisation of images as a layer of the model, so that every model takes images in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.words import counted


class Normalisation(NamedTuple):
    """The numbers subtracted from, and then divided into, each channel of an image in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def trivial(self) -> bool:
        """Whether it leaves every image as it is."""
        return all(value == 0 for value in self.mean) and all(value == 1 for value in self.std)

    def near(self, other: Normalisation) -> bool:
        """Whether both are the same up to the rounding of written numbers."""
        return len(self.mean) == len(other.mean) and all(
            math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
            for mine, its in zip(self, other, strict=True)
            for a, b in zip(mine, its, strict=True)
        )

    def for_channels(self, channels: int) -> Normalisation:
        """One number a channel; a single one holds for all of them."""
        if len(self.mean) == 1:
            return Normalisation(self.mean * channels, self.std * channels)
        if len(self.mean) != channels:
            raise InputError(f"the normalisation has {counted(len(self.mean), 'channel')}, the images have {channels}")
        return self

    def __str__(self) -> str:
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in self)
        return f"mean {mean}; std {std}"


class Normalised(nn.Module):
    """A model behind the normalisation of its images: `model((x - mean) / std)`.

    The state dict is that of the model under `model.`, with the buffers `mean` and `std` beside it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        example = next((value for value in model.state_dict().values() if value.is_floating_point()), torch.zeros(()))
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1).to(example))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1).to(example))

    @property
    def hidden_points(self) -> tuple[str, ...]:
        """Those the model itself declares, by their names in here."""
        return tuple(f"model.{name}" for name in getattr(self.model, "hidden_points", ()))

    @property
    def numbers(self) -> Normalisation:
        """Those it normalises by."""
        return Normalisation(tuple(self.mean.flatten().tolist()), tuple(self.std.flatten().tolist()))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.model((x - self.mean) / self.std)
        return output


def normalisation(mean: Sequence[float] | None, std: Sequence[float] | None, channels: int) -> Normalisation | None:
    """The normalisation a user gives, checked: one number a channel, or None if nothing is given."""
    if not mean and not std:
        return None
    if not mean or not std:
        raise InputError(f"a normalisation needs both: the {'std' if mean else 'mean'} is missing")
    for name, values in (("mean", mean), ("std", std)):
        if not isinstance(values, Sized) or not all(isinstance(value, Real) for value in values):
            raise InputError(f"the {name} must be numbers, one a channel, not {values!r}")
        if len(values) != channels:
            raise InputError(f"the {name} has length {len(values)}; give one number a channel, {channels} in all")
        if not all(math.isfinite(value) for value in values):
            raise InputError(f"the {name} must be finite numbers, not {list(values)}")
    if not all(value > 0 for value in std):
        raise InputError(f"the std must be above 0, not {list(std)}")
    return Normalisation(tuple(map(float, mean)), tuple(map(float, std)))


def normalised(model: nn.Module, by: Normalisation | None) -> nn.Module:
    """The model behind a normalisation, or as it is if there is nothing to normalise."""
    return model if by is None or by.trivial else Normalised(model, by.mean, by.std)
