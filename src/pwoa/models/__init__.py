"""Architectures, checkpoints, the border of a model, and its hidden activations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import NoneType

import torch
from torch import nn

from pwoa.data import Data
from pwoa.errors import InputError
from pwoa.models.border import LogitModel, as_logits, check_model, evaluating, under_attack
from pwoa.models.checkpoint import load_state, open_checkpoint, read_state
from pwoa.models.contents import Checkpoint, read_checkpoint, unpacked
from pwoa.models.filling import fill, recognised
from pwoa.models.hidden import hidden_points, recording
from pwoa.models.inspection import Inspection, inspect_checkpoint
from pwoa.models.normalise import Normalisation, Normalised, normalisation, normalised
from pwoa.models.pretrained import from_pretrained
from pwoa.models.registry import ARCHITECTURES, architecture_name, build, lite_width
from pwoa.models.search import forward_model, search_model
from pwoa.models.source import is_factory, load_factory
from pwoa.models.tensors import fingerprint

__all__ = [
    "ARCHITECTURES",
    "Checkpoint",
    "Inspection",
    "LogitModel",
    "Normalisation",
    "Normalised",
    "architecture_name",
    "as_logits",
    "build",
    "check_model",
    "evaluating",
    "fingerprint",
    "forward_model",
    "from_pretrained",
    "hidden_points",
    "inspect_checkpoint",
    "lite_width",
    "load_model",
    "load_state",
    "normalisation",
    "normalised",
    "read_checkpoint",
    "read_state",
    "recording",
    "search_model",
    "under_attack",
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
    checkpoint: a file; a folder that `save_pretrained` or a run wrote; or `hf:owner/name` on the Hugging Face hub.
    mean, std: how the images are normalised, a number a channel, if that was done outside the network; a normalisation
    in the file is found. Either way the model takes images in [0, 1] and is a `Normalised`.
    kept: for a file with HYDRA's or HARP's scores, the part of the weights they keep; 1 for a dense network.
    """
    if not isinstance(architecture, (str, nn.Module, NoneType)):
        raise InputError(f"give a network or the name of an architecture, not {architecture!r}")
    if not isinstance(data, Data):
        raise InputError(f"the data must be what pwoa.load_data gives, not {data!r}")
    channels = data.train.pixels.shape[1]
    given = normalisation(mean, std, channels)
    opened = open_checkpoint(checkpoint)
    if isinstance(architecture, nn.Module):
        network = architecture
    elif architecture is None or architecture == "auto":
        network = recognised(unpacked(opened, str(checkpoint), kept), data.classes, channels)
    elif is_factory(architecture):
        network = load_factory(architecture)
    else:
        network = build(architecture, data.classes, channels)
    model = fill(network, opened, str(checkpoint), given, kept, channels).eval()
    index = torch.arange(min(2, len(data.test)), device=data.test.pixels.device)
    check_model(model, data.test.batch(index)[0], data.classes)
    return model
