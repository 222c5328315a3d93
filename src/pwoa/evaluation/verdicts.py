"""The verdicts of an evaluation, image by image, in one small file: a bit an image and attack."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from pwoa.errors import InputError, first_line
from pwoa.files import replacing

FILE = "verdicts.safetensors"
"""What the file is called in the folder of an evaluation."""


def save_verdicts(path: str | Path, right: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write, atomically, which images are right under each attack, and what was measured.

    right: by the attack's name a bool tensor [n], on any device; the order of the attacks is kept.
    about: a JSON object (fingerprint of the data, threat, model, …).
    """
    n = _length(right)
    bits = {name: np.packbits(verdicts.cpu().numpy()) for name, verdicts in right.items()}
    text = json.dumps(dict(about), ensure_ascii=False)
    layout = {"n": n, "attacks": list(bits), "sha256": _digest(n, bits, text)}
    with replacing(Path(path)) as file:
        file.write(save(bits, {"about": text, "verdicts": json.dumps(layout, ensure_ascii=False)}))


def load_verdicts(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_verdicts` was given; a file that is damaged or something else is an InputError."""
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist" if not Path(path).exists() else f"{path} is not a file")
    try:
        return _load(Path(path))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged or no file of verdicts ({first_line(error)}); evaluate again") from None


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
        if not {"about", "verdicts"} <= metadata.keys():
            raise ValueError("it names no attacks")
        layout = json.loads(metadata["verdicts"])
        bits = {name: file.get_tensor(name) for name in layout["attacks"]}
    n = int(layout["n"])
    if _digest(n, bits, metadata["about"]) != layout["sha256"]:
        raise ValueError("its checksum is wrong")
    right = {name: torch.from_numpy(np.unpackbits(packed, count=n).astype(bool)) for name, packed in bits.items()}
    return right, dict(json.loads(metadata["about"]))


def _length(right: Mapping[str, Tensor]) -> int:
    lengths = {len(verdicts) for verdicts in right.values()}
    if len(lengths) != 1 or any(verdicts.dtype != torch.bool for verdicts in right.values()):
        found = ", ".join(f"{name}: {len(verdicts)} {verdicts.dtype}" for name, verdicts in right.items())
        raise InputError(f"verdicts must be bool tensors of one length, one an attack; found {found or 'none'}")
    return lengths.pop()


def _digest(n: int, bits: Mapping[str, Any], about: str) -> str:
    digest = hashlib.sha256(f"{n}\0{about}".encode())
    for name, packed in bits.items():
        digest.update(name.encode() + b"\0" + packed.tobytes())
    return digest.hexdigest()
