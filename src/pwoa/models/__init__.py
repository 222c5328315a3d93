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


def load_model(architecture: str | nn.Module, checkpoint: str | Path, data: Data) -> nn.Module:
    """A model with the weights of a checkpoint, in eval mode, checked on an image of `data`.

    `architecture` is a registered name or a network of your own, which is filled and returned.
    """
    if not isinstance(architecture, (str, nn.Module)):
        raise InputError(f"give a network or the name of an architecture, not {architecture!r}")
    channels = data.train.pixels.shape[1]
    model = build(architecture, data.classes, channels) if isinstance(architecture, str) else architecture
    load_state(model, read_state(checkpoint), str(checkpoint))
    model.eval()
    index = torch.arange(min(2, len(data.test)), device=data.test.pixels.device)
    check_model(model, data.test.batch(index)[0], data.classes)
    return model
