"""Tensors by name, in a safetensors file, and the fingerprint of a model."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.models.onnx import OnnxModel


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file, which holds nothing that could be executed."""
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from None


def to_safetensors(state: Mapping[str, Tensor]) -> bytes:
    """Write the tensors as the content of a safetensors file; those that share memory are written each."""
    copies = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in state.items()}
    return save(copies, {"format": "pt"})


def fingerprint(model: nn.Module) -> str:
    """Return a SHA-256 of all weights and buffers, the same on every device; of an ONNX model, of its file."""
    if isinstance(model, OnnxModel):
        return model.fingerprint
    return state_fingerprint(model.state_dict())


def state_fingerprint(state: Mapping[str, Tensor]) -> str:
    """Return the fingerprint of a model that has these weights and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
