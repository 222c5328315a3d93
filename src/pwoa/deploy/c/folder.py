"""Writing a network as a folder of C: model.c and model.h, the same for every network, and weights.bin, which is it."""

import copy
import hashlib
import os
import shutil
import struct
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pwoa.deploy.c.blob import pack
from pwoa.deploy.tracing import trace
from pwoa.errors import InputError
from pwoa.models.compiled import ARTEFACT, CODE, WEIGHTS
from pwoa.storage.folder import naming, sealed, to_json

VECTORS = "vectors.bin"
SOURCES = (*CODE, "weights.S", "check.c", "Makefile")
_TESTED = 8
"""Images that a folder keeps to be tested with."""


def write_c(
    model: nn.Module,
    sample: Tensor,
    folder: str | Path,
    about: Mapping[str, Any] | None = None,
    images: Tensor | None = None,
) -> None:
    """Write a network as C. Example: `write_c(model, images[:1], "lenet-c")`, then `make -C lenet-c test`.

    sample: a batch of one image or more, [N, channels, height, width], in float32. folder: a new or an empty one; it is
    there as a whole or not at all. about: what else artefact.json says. images: those that `make test` runs, at most 8.
    """
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; choose another folder")
    if images is not None and images.shape[1:] != sample.shape[1:]:
        raise InputError(f"the images are {list(images.shape[1:])}, the sample is {list(sample.shape[1:])}")
    graph = trace(model, sample)
    weights = pack(graph)
    shape, classes = graph.shapes[0], graph.shapes[graph.output][0]
    artefact = {
        "kind": "c",
        "about": dict(about or {}),
        "classes": classes,
        "shape": list(shape),
        "multiply_adds": graph.multiply_adds(),
        "bytes": len(weights),
        "hash": hashlib.sha256(weights).hexdigest(),
    }
    contents = {name: (files("pwoa.deploy.c") / name).read_bytes() for name in SOURCES}
    contents |= {WEIGHTS: weights, VECTORS: _vectors(model, (sample if images is None else images)[:_TESTED], classes)}
    _write(folder, contents | {ARTEFACT: to_json(sealed(artefact)).encode()})


def _vectors(model: nn.Module, images: Tensor, classes: int) -> bytes:
    """Return images and their logits by torch, as check.c reads them."""
    with torch.no_grad():
        logits = copy.deepcopy(model).cpu().float().eval()(images.cpu().float()).numpy()
    numbers = images.detach().cpu().float().numpy()
    header = struct.pack("<5I", *numbers.shape, classes)
    return header + np.ascontiguousarray(numbers, "<f4").tobytes() + np.ascontiguousarray(logits, "<f4").tobytes()


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    temporary = folder.absolute().with_name(f".{os.urandom(8).hex()}.part")
    with naming(folder.absolute().parent):
        try:
            temporary.mkdir(parents=True)
            for name, content in contents.items():
                (temporary / name).write_bytes(content)
            if folder.exists():
                folder.rmdir()
            os.rename(temporary, folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
