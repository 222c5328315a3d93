"""Architectures, checkpoints, the border of a model, and its hidden activations."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from pwoa.data import Data
from pwoa.errors import InputError
from pwoa.models.border import LogitModel, as_logits, check_model, evaluating
from pwoa.models.checkpoint import fingerprint, load_state, read_state
from pwoa.models.hidden import hidden_points, recording
from pwoa.models.registry import ARCHITECTURES, architecture_name, build, lite_width
from pwoa.models.search import forward_model, search_model

__all__ = [
    "ARCHITECTURES",
    "LogitModel",
    "architecture_name",
    "as_logits",
    "build",
    "check_model",
    "evaluating",
    "fingerprint",
    "forward_model",
    "hidden_points",
    "lite_width",
    "load_model",
    "load_state",
    "read_state",
    "recording",
    "search_model",
]


def load_model(
    architecture: str | nn.Module | None,
    checkpoint: str | Path,
    data: Data,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    *,
    kept: float | None = None,
) -> nn.Module:
    """A model with the weights of a checkpoint, in eval mode, checked on an image of `data`.

    architecture: a registered name; `auto` or None for the one the file is of; `module:function` of your own code; or
    a network of your own, which is filled. Every tensor must fit, and the classes must be those of the data.
    mean, std: how the images are normalised, a number a channel, if that was done outside the network; a normalisation
    in the file is found. Either way the model takes images in [0, 1] and is a `Normalised`.
    kept: for a file with HYDRA's or HARP's scores, the part of the weights they keep; 1 for a dense network.
    """
    if not isinstance(architecture, (str, nn.Module, NoneType)):
        raise InputError(f"give a network or the name of an architecture, not {architecture!r}")
    channels = data.train.pixels.shape[1]
    given = normalisation(mean, std, channels)
    source = str(checkpoint)
    hint: Callable[[Mapping[str, Tensor]], str] = lambda state: ""  # noqa: E731
    if isinstance(architecture, nn.Module):
        network = architecture
    elif architecture in (None, "auto"):
        network = recognised(read_checkpoint(checkpoint, kept), data.classes, channels)
    ...
