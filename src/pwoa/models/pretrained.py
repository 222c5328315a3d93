"""A model from a folder or from the Hugging Face hub, built again and filled."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from pwoa.errors import InputError
from pwoa.models.checkpoint import load_state
from pwoa.models.folder import Held, find_folder, read_folder
from pwoa.models.normalise import Normalised
from pwoa.models.registry import build


def from_pretrained(name: str | Path, revision: str | None = None, *, model: nn.Module | None = None) -> nn.Module:
    """The model that `save_pretrained` wrote into a folder, or `push_to_hub` put on the hub, in eval mode.

    name: a folder; else `owner/name` on the hub, also written `hf:owner/name` or `owner/name@revision`.
    revision: a branch, tag or commit there. model: for an architecture of your own, a fresh network, which is filled.
    Every tensor must fit, the weights must be those of the folder's fingerprint, and nothing in a file is executed.
    """
    return rebuilt(read_folder(find_folder(name, revision), str(name)), model, str(name))


def rebuilt(held: Held, model: nn.Module | None, source: str) -> nn.Module:
    """The network that a folder holds, in eval mode: a new one of its architecture, or `model`, filled."""
    about = held.about
    if model is None:
        model = _new(about["architecture"], about.get("classes"), about.get("channels"), about.get("width"), source)
    if (numbers := about.get("normalisation")) and not isinstance(model, Normalised):
        model = Normalised(model, numbers["mean"], numbers["std"])
    load_state(model, held.tensors, source)
    return model.eval()


def _new(architecture: str, classes: int | None, channels: int | None, width: float | None, source: str) -> nn.Module:
    if ":" in architecture:
        raise InputError(
            f"{source} holds a {architecture}, which only your own code can build: give a fresh one as model=…"
            " (on the command line --arch MODULE:FUNCTION)"
        )
    if classes is None or channels is None:
        raise InputError(f"{source} does not say its classes and channels")
    return build(architecture, classes, channels, width)
