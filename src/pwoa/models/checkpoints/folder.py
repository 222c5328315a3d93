"""A folder that holds a model: model.safetensors, and beside it what is needed to build the network again.

A run says it in model.json, a folder in the convention of the Hugging Face hub in config.json, with the same keys.
Nothing in a folder is ever executed.
"""

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pwoa import __version__
from pwoa.errors import InputError
from pwoa.models.architectures.registry import architecture_name
from pwoa.models.border import Normalised
from pwoa.models.checkpoints.hub import PREFIX, fetch
from pwoa.models.checkpoints.tensors import read_safetensors, state_fingerprint

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
DESCRIPTION = "model.json"
"""What config.json is called in a run."""
FORMAT = 1
"""Of config.json; a higher one is of a later version."""


def describe_model(model: nn.Module, classes: int | None = None, channels: int | None = None) -> dict[str, Any]:
    """Return what model.json says about any model; its classes and input channels as far as they are known."""
    return {
        "architecture": architecture_name(model),
        "classes": classes,
        "channels": channels,
        **({"normalisation": model.numbers._asdict()} if isinstance(model, Normalised) else {}),
        "versions": {"pwoa": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


class Held(NamedTuple):
    """What a folder says about its model, checked, and the model's tensors."""

    about: dict[str, Any]
    tensors: dict[str, Tensor]


def holds_model(name: str | Path) -> bool:
    """Tell whether the name is that of a folder with a model: here, or `hf:owner/name` on the hub."""
    return str(name).startswith(PREFIX) or any((Path(name) / file).is_file() for file in (CONFIG, DESCRIPTION))


def is_ours(folder: Path) -> bool:
    """Tell whether the folder has a config.json that `save_pretrained` wrote."""
    try:
        about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and {"format", "architecture", "fingerprint", "versions"} <= about.keys()


def find_folder(name: str | Path, revision: str | None = None) -> Path:
    """Return the folder of that name here, or fetch `hf:owner/name` from the hub."""
    return fetch(str(name), revision, [WEIGHTS, CONFIG, CARD]) if str(name).startswith(PREFIX) else Path(name)


def read_folder(folder: Path, source: str) -> Held:
    """Read and check what a model folder holds; `source` is its name in errors."""
    file = next((folder / name for name in (CONFIG, DESCRIPTION) if (folder / name).is_file()), None)
    if file is None or not (folder / WEIGHTS).is_file():
        raise InputError(f"{source} is no model folder: it has no {WEIGHTS if file else CONFIG}")
    about = _checked(file, source)
    tensors = read_safetensors(folder / WEIGHTS)
    if about.get("fingerprint") not in (None, state_fingerprint(tensors)):
        raise InputError(f"{source}: {WEIGHTS} is not the one that {file.name} was written for (another fingerprint)")
    return Held(about, tensors)


def _checked(file: Path, source: str) -> dict[str, Any]:
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{source}: {file.name} is not valid JSON") from None
    needed = ("architecture", "fingerprint") if file.name == CONFIG else ("architecture",)
    if not isinstance(about, dict) or any(key not in about for key in needed):
        raise InputError(f"{source}: {file.name} has no {' or '.join(needed)}; it is not of a model that pwoa saved")
    for key, (allowed, wanted) in _FIELDS.items():
        if key in about and not allowed(about[key]):
            raise InputError(f"{source}: {key} in {file.name} must be {wanted}, not {about[key]!r}")
    if about.get("format", FORMAT) > FORMAT:
        raise InputError(f"{source} was saved by a later version of pwoa; upgrade it")
    return about


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_normalisation(value: Any) -> bool:
    rows = [value.get("mean"), value.get("std")] if isinstance(value, dict) else [None]
    return all(isinstance(row, list) and all(isinstance(number, (int, float)) for number in row) for row in rows)


def _is_threat(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"norm", "radius", "step"}
        and value["norm"] in ("linf", "l2")
        and all(type(value[key]) in (int, float) for key in ("radius", "step"))
    )


def _is_sparsity(value: Any) -> bool:
    rows = value if isinstance(value, list) and value else [None]
    return all(isinstance(row, dict) and all(type(row.get(key)) is int for key in ("total", "kept")) for row in rows)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "format": (_is_count, "a whole number"),
    "architecture": (lambda value: isinstance(value, str), "a name"),
    "width": (lambda value: type(value) in (int, float), "a number"),
    "classes": (lambda value: value is None or _is_count(value), "a whole number above 0"),
    "channels": (lambda value: value is None or _is_count(value), "a whole number above 0"),
    "normalisation": (lambda value: value is None or _is_normalisation(value), "lists of numbers, mean and std"),
    "threat": (lambda value: value is None or _is_threat(value), "norm, radius and step"),
    "sparsity": (lambda value: value is None or _is_sparsity(value), "the total and kept weights of each layer"),
    "fingerprint": (lambda value: isinstance(value, str), "a SHA-256"),
}
