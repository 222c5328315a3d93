"""A folder that holds a model: model.safetensors, and beside it what is needed to build the network again.

A run says it in model.json, a folder in the convention of the Hugging Face hub in config.json, with the same keys.
Nothing in a folder is ever executed.
"""

import hashlib
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from pwoa import __version__
from pwoa.errors import InputError, brief, first_line
from pwoa.models.architectures.registry import architecture_name
from pwoa.models.border import Normalised
from pwoa.models.checkpoints.hub import PREFIX, fetch
from pwoa.models.compiled import CModel
from pwoa.models.onnx import OnnxModel
from pwoa.storage import reading
from pwoa.storage.folder import unsealed
from pwoa.storage.reading import read_json
from pwoa.threat import Threat

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
DESCRIPTION = "model.json"
"""What config.json is called in a run."""
FORMAT = 1
"""Of config.json; a higher one is of a later version."""


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file, which holds nothing that could be executed."""
    content, _ = reading.read_safetensors(path)
    try:
        return load(content)
    except Exception as error:  # what torch makes of a type or a shape
        raise InputError(f"{path} is not a safetensors file: {first_line(error)}") from None


def to_safetensors(state: Mapping[str, Tensor]) -> bytes:
    """Write the tensors as the content of a safetensors file; those that share memory are written each."""
    copies = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in state.items()}
    return save(copies, {"format": "pt"})


def fingerprint(model: nn.Module) -> str:
    """Return a SHA-256 of all weights and buffers, the same on every device; of an exported model, of its files."""
    if isinstance(model, (OnnxModel, CModel)):
        return model.fingerprint
    return state_fingerprint(model.state_dict())


def state_fingerprint(state: Mapping[str, Tensor]) -> str:
    """Return the fingerprint of a model that has these weights and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
        about = read_json(folder / CONFIG)
    except InputError:
        return False
    return isinstance(about, dict) and {"format", "architecture", "fingerprint", "versions"} <= about.keys()


def find_folder(name: str | Path, revision: str | None = None) -> Path:
    """Return the folder of that name here, or fetch `hf:owner/name` from the hub."""
    return fetch(str(name), revision, [WEIGHTS, CONFIG, CARD]) if str(name).startswith(PREFIX) else Path(name)


def recorded_threat(folder: Path, source: str) -> Threat | None:
    """Return the attacker that the model of a folder was made to resist, if the folder says it."""
    threat = read_description(folder, source).get("threat") if _description_file(folder) else None
    return None if threat is None else Threat(**threat)


def _description_file(folder: Path) -> Path | None:
    return next((folder / name for name in (CONFIG, DESCRIPTION) if (folder / name).is_file()), None)


def read_folder(folder: Path, source: str) -> Held:
    """Read and check what a model folder holds; `source` is its name in errors."""
    about = read_description(folder, source)
    return Held(about, read_weights(folder, about, source))


def read_weights(folder: Path, about: Mapping[str, Any], source: str) -> dict[str, Tensor]:
    """Read the weights of a model folder, and check that they are those that it describes."""
    tensors = read_safetensors(folder / WEIGHTS)
    if about.get("fingerprint") not in (None, state_fingerprint(tensors)):  # a run of version 0.2 or 0.3 has none
        known = CONFIG if (folder / CONFIG).is_file() else DESCRIPTION
        raise InputError(f"{source}: {WEIGHTS} is not the one that {known} was written for (another fingerprint)")
    return tensors


def read_description(folder: Path, source: str) -> dict[str, Any]:
    """Read and check what a model folder says about its model."""
    file = _description_file(folder)
    if file is None or not (folder / WEIGHTS).is_file():
        raise InputError(f"{source} is no model folder: it has no {WEIGHTS if file else CONFIG}")
    about = read_json(file)
    needed = ("architecture", "fingerprint") if file.name == CONFIG else ("architecture",)
    if not isinstance(about, dict) or any(key not in about for key in needed):
        raise InputError(f"{source}: {file.name} has no {' or '.join(needed)}; it is not of a model that pwoa saved")
    about = unsealed(about, str(file))
    check_description(about, source, file.name)
    return about


def check_description(about: Mapping[str, Any], source: str, where: str) -> None:
    """Refuse a description of a model with a value that cannot be; `where` it stands is for the error."""
    for key, (allowed, wanted) in _FIELDS.items():
        unknown = key not in about or (about[key] is None and key in _NULLABLE)
        if not unknown and not allowed(about[key]):
            raise InputError(f"{source}: {key} in {where} must be {wanted}, not {brief(about[key])}")
    if about.get("format", FORMAT) > FORMAT:
        raise InputError(f"{source} was saved by a later version of pwoa; upgrade it")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30  # not NaN, and not thousands of digits


def _is_normalisation(value: Any) -> bool:
    rows = [value.get("mean"), value.get("std")] if isinstance(value, dict) else [None]
    return all(isinstance(row, list) and all(map(_is_number, row)) for row in rows)


def _is_threat(value: Any) -> bool:
    complete = isinstance(value, dict) and value.keys() == {"norm", "radius", "step"}
    return complete and value["norm"] in ("linf", "l2") and _is_number(value["radius"]) and _is_number(value["step"])


def _is_sparsity(value: Any) -> bool:
    rows = value if isinstance(value, list) and value else [None]
    return all(
        isinstance(row, dict) and "layer" in row and all(_is_whole(row.get(key)) for key in ("total", "kept"))
        for row in rows
    )


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_accuracy(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _is_left_out(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "format": (_is_count, "a whole number"),
    "architecture": (_is_text, "a name"),
    "width": (_is_number, "a number"),
    "classes": (_is_count, "a whole number above 0"),
    "channels": (_is_count, "a whole number above 0"),
    "normalisation": (_is_normalisation, "lists of numbers, mean and std"),
    "threat": (_is_threat, "norm, radius and step"),
    "sparsity": (_is_sparsity, "the total and kept weights of each layer"),
    "accuracy": (_is_accuracy, "numbers by attack"),
    "parameters": (_is_count, "a whole number above 0"),
    "nonzero": (_is_whole, "a whole number"),
    "left_out": (_is_left_out, "names with the reasons why they are not pruned"),
    "fingerprint": (_is_text, "a SHA-256"),
}
_NULLABLE = ("classes", "channels", "normalisation", "threat", "sparsity")
