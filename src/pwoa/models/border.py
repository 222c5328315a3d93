"""The border of a model: what comes out of any nn.Module as logits, and whether it can be what we prune."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.errors import InputError, first_line
from pwoa.words import counted

LogitModel = Callable[[Tensor], Tensor]
"""What attacks and objectives see: images in, one row of logits an image out."""


def as_logits(model: Callable[[Tensor], Any], classes: int | None = None) -> LogitModel:
    """The model as a function that returns logits, also when they are in a tuple, a list, a dict or an object."""

    def logits(x: Tensor) -> Tensor:
        output = model(x)
        return output if isinstance(output, Tensor) else _find_logits(output, classes)

    return logits


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While inside, the model is in eval mode; afterwards each of its modules is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def under_attack(model: nn.Module) -> Iterator[None]:
    """While inside, the model is in eval mode, and its parameters ask for no gradients that an attack does not use."""
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        with evaluating(model):
            yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)


def check_model(model: nn.Module, x: Tensor, classes: int, *, logits_only: bool = True) -> None:
    """Refuse a model that is not a classifier with logits for `classes` classes on images like `x`.

    Without `logits_only` it may return probabilities, which is fit for measuring but not for distillation.
    """
    for name, value in model.state_dict().items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
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
    """What a model's output seems to be instead of logits: `probabilities`, `log-probabilities`, or None."""
    if bool((output >= 0).all()) and bool(((output.sum(1) - 1).abs() < 1e-3).all()):
        return "probabilities"
    if bool((output <= 1e-6).all()) and bool(((output.exp().sum(1) - 1).abs() < 1e-3).all()):
        return "log-probabilities"
    return None


def _find_logits(output: Any, classes: int | None) -> Tensor:
    if isinstance(output, Mapping):
        for key in ("logits", "out"):
            if isinstance(output.get(key), Tensor):
                found: Tensor = output[key]
                return found
        raise InputError(f"the model returns a dict without 'logits' (keys: {', '.join(map(str, output))})")
    if isinstance(logits := getattr(output, "logits", None), Tensor):
        return logits
    if isinstance(output, (tuple, list)):
        rows = [
            value
            for value in output
            if isinstance(value, Tensor) and value.dim() == 2 and classes in (None, value.shape[1])
        ]
        if len(rows) == 1:
            return rows[0]
        raise InputError(
            f"the model returns {len(output)} things, of which {len(rows)} could be the logits; "
            "wrap it so that it returns the logits alone"
        )
    raise InputError(f"the model returns a {type(output).__name__}, not a tensor of logits")
