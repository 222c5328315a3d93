"""Checkpoints in and out. Nothing in a file is ever executed: safetensors, or torch's tensors-only loader."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from pwoa.errors import InputError, first_line

CONTAINERS = ("state_dict", "model_state_dict", "model", "net")
PREFIXES = ("module.", "model.")


def read_state(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file by name, in float32, without container and wrapper prefixes."""
    if str(path) == "embedded":
        file = resources.files("pwoa") / "models" / "embedded" / "lenet-mnist-linf-0.3.safetensors"
        return _float32(load_safetensors(file.read_bytes()))
    path = Path(path)
    if not path.is_file():
        raise InputError(f"checkpoint {path} does not exist" if not path.exists() else f"{path} is not a file")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for name in CONTAINERS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not _is_state(content):
        raise InputError(
            f"{path} holds no state dict (found {_describe(content)}); save it with torch.save(model.state_dict(), …)"
        )
    state = dict(content)
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return _float32(state)


def load_state(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Put every tensor of `state` into the model; anything missing, left over or of other shape is an error."""
    own = model.state_dict()
    for prefix in PREFIXES:  # a wrapper's prefix that `read_state` took off may be the model's own
        if all(key.startswith(prefix) for key in own) and not any(key.startswith(prefix) for key in state):
            state = {prefix + key: value for key, value in state.items()}
    problems = []
    if missing := [key for key in own if key not in state]:
        problems.append(f"missing {_some(missing)}")
    if unexpected := [key for key in state if key not in own]:
        problems.append(f"unexpected {_some(unexpected)}")
    for key in own:
        if key in state and own[key].shape != state[key].shape:
            problems.append(f"{key} is {_shape(state[key])}, the model wants {_shape(own[key])}")
            break
    if problems:
        raise InputError(f"{source} does not fit {type(model).__name__}: {'; '.join(problems)}")
    if bad := [key for key, value in state.items() if not bool(torch.isfinite(value).all())]:
        raise InputError(f"{source} holds NaN or infinite weights in {_some(bad)}")
    model.load_state_dict(dict(state))


def fingerprint(model: nn.Module) -> str:
    """A SHA-256 of all weights and buffers, the same on every device."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read_safetensors(path: Path) -> Any:
    try:
        return load_safetensors(path.read_bytes())
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from None


def _read_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Unsupported" in str(error) or "GLOBAL" in str(error) or "weights_only" in str(error).lower():
            raise InputError(
                f"{path} is refused: it is not a plain file of tensors (a pickle with code in it, or no checkpoint "
                "at all); convert it where you trust it: torch.save(model.state_dict(), …)"
            ) from None
        raise InputError(f"{path} is not a checkpoint: {error}") from None
    except Exception as error:  # torch raises anything on a damaged file
        raise InputError(f"{path} is not a checkpoint: {first_line(error)}") from None


def _is_state(content: Any) -> bool:
    return (
        isinstance(content, Mapping)
        and len(content) > 0
        and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items())
    )


def _float32(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.float() if value.is_floating_point() else value for key, value in state.items()}


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shape(value: Tensor) -> str:
    return "×".join(map(str, value.shape)) or "a number"


def _describe(content: Any) -> str:
    if isinstance(content, Mapping):
        return "the keys " + _some([str(key) for key in content]) if content else "nothing"
    return f"a {type(content).__name__}"
