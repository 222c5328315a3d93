"""The border of a model: images in [0, 1] go in, logits come out, whatever stands behind it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from numbers import Real
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pwoa.errors import InputError, counted, first_line

LogitModel = Callable[[Tensor], Tensor]
"""What attacks and objectives see: images in, one row of logits an image out."""


def as_logits(model: Callable[[Tensor], Any], classes: int | None = None) -> LogitModel:
    """Return the model as a function to logits, also when it returns them in a tuple, a list, a dict or an object."""

    def logits(x: Tensor) -> Tensor:
        output = model(x)
        return output if isinstance(output, Tensor) else _find_logits(output, classes)

    return logits


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Keep the model in eval mode while inside; afterwards each of its modules is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def under_attack(model: nn.Module) -> Iterator[None]:
    """Keep the model in eval mode while inside, and its parameters without gradients, which no attack uses."""
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        with evaluating(model):
            yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)


def is_finite(value: Tensor) -> bool:
    """Tell whether no number of a tensor is NaN or infinite. Else their sum is so too, which is fast to look at."""
    if not value.is_floating_point() and not value.is_complex():
        return True
    value = value.float() if value.itemsize == 1 else value  # torch cannot add numbers of one byte
    return bool(value.sum().isfinite()) or bool(value.isfinite().all())  # a sum of finite numbers may overflow


def check_complete(model: nn.Module) -> None:
    """Refuse a model with parameters that have no shape yet."""
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise InputError(
            f"the model's {lazy[0]} has no shape yet (a lazy layer): pass a batch of images through the network before"
        )


def check_model(model: nn.Module, x: Tensor, classes: int, *, logits_only: bool = True) -> None:
    """Refuse a model that is not a classifier with logits for `classes` classes on images like `x`.

    Without `logits_only` it may return probabilities, which is fit for measuring but not for distillation.
    """
    check_complete(model)
    for name, value in model.state_dict().items():
        if not is_finite(value):
            raise InputError(f"the model holds NaN or infinite weights in {name}")
    device = next((value.device for value in model.parameters()), x.device)
    try:
        with evaluating(model), torch.no_grad():
            logits = as_logits(model, classes)(x.to(device))
    except InputError:
        raise
    except Exception as error:  # a user's own forward can raise anything
        shape = "×".join(map(str, x.shape[1:]))
        raise InputError(f"the model cannot take images of {shape}: {first_line(error)}") from None
    if logits.dim() != 2 or len(logits) != len(x):
        raise InputError(
            f"the model gives a tensor of shape {tuple(logits.shape)} for {len(x)} images, not a row of logits an image"
        )
    if logits.shape[1] != classes:
        raise InputError(f"the model gives {counted(logits.shape[1], 'class', 'classes')}, the data has {classes}")
    if logits_only and (kind := not_logits(logits)):
        layer = {"probabilities": "softmax", "log-probabilities": "log_softmax"}[kind]
        raise InputError(f"the model outputs {kind}; let it return logits (drop its last {layer})")


def not_logits(output: Tensor) -> str | None:
    """Tell what a model's output seems to be instead of logits: `probabilities`, `log-probabilities`, or None."""
    if bool((output >= 0).all()) and bool(((output.sum(1) - 1).abs() < 1e-3).all()):
        return "probabilities"
    if bool((output <= 1e-6).all()) and bool(((output.exp().sum(1) - 1).abs() < 1e-3).all()):
        return "log-probabilities"
    return None


def _find_logits(output: Any, classes: int | None) -> Tensor:
    if isinstance(output, Mapping):
        named = [output[key] for key in ("logits", "out") if isinstance(output.get(key), Tensor)]
        if not named:
            raise InputError(f"the model returns a dict without 'logits' (keys: {', '.join(map(str, output))})")
        return cast(Tensor, named[0])
    if isinstance(attribute := getattr(output, "logits", None), Tensor):
        return attribute
    if not isinstance(output, (tuple, list)):
        raise InputError(f"the model returns a {type(output).__name__}, not a tensor of logits")
    matrices = [value for value in output if isinstance(value, Tensor) and value.dim() == 2]
    rows = [value for value in matrices if classes in (None, value.shape[1])]
    if len(rows) != 1:
        raise InputError(
            f"the model returns {len(output)} things, of which {len(rows)} could be the logits; "
            "wrap it so that it returns the logits alone"
        )
    return rows[0]


class Normalisation(NamedTuple):
    """The numbers subtracted from, and then divided into, each channel of an image in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def trivial(self) -> bool:
        """Tell whether it leaves every image as it is."""
        return all(value == 0 for value in self.mean) and all(value == 1 for value in self.std)

    def near(self, other: "Normalisation") -> bool:
        """Tell whether both are the same up to the rounding of written numbers."""
        return len(self.mean) == len(other.mean) and all(
            math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
            for numbers, others in zip(self, other, strict=True)
            for a, b in zip(numbers, others, strict=True)
        )

    def for_channels(self, channels: int) -> "Normalisation":
        """Return it with one number a channel; a single one holds for all of them."""
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
        """Return those the model itself declares, by their names in here."""
        return tuple(f"model.{name}" for name in getattr(self.model, "hidden_points", ()))

    @property
    def numbers(self) -> Normalisation:
        """Return the numbers it normalises by."""
        return Normalisation(tuple(self.mean.flatten().tolist()), tuple(self.std.flatten().tolist()))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.model((x - self.mean) / self.std)
        return output


def check_normalisation(
    mean: Sequence[float] | None, std: Sequence[float] | None, channels: int | None
) -> Normalisation | None:
    """Check the normalisation a user gives, one number a channel, and return it; None if nothing is given.

    channels: those of the images, if they are known.
    """
    if not mean and not std:
        return None
    if not mean or not std:
        raise InputError(f"a normalisation needs both: the {'std' if mean else 'mean'} is missing")
    for name, values in (("mean", mean), ("std", std)):
        if not isinstance(values, Sized) or not all(isinstance(value, Real) for value in values):
            raise InputError(f"the {name} must be numbers, one a channel, not {values!r}")
        channels = len(values) if channels is None else channels
        if len(values) != channels:
            raise InputError(f"the {name} has length {len(values)}; give one number a channel, {channels} in all")
        if not all(math.isfinite(value) for value in values):
            raise InputError(f"the {name} must be finite numbers, not {list(values)}")
    if not all(value > 0 for value in std):
        raise InputError(f"the std must be above 0, not {list(std)}")
    return Normalisation(tuple(map(float, mean)), tuple(map(float, std)))


def normalise(model: nn.Module, by: Normalisation | None) -> nn.Module:
    """Return the model behind a normalisation, or as it is if there is nothing to normalise."""
    return model if by is None or by.trivial else Normalised(model, by.mean, by.std)
