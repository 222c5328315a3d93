"""The one hash that tells an exported model from all others, be it a file or a folder."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from pwoa.storage.reading import open_file


def identity(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of an artefact: of a file, of its content; of a folder, of the names and hashes of its files.

    Example: `identity("runs/mine/export/model.onnx")`.
    """
    path = Path(path)
    if not path.is_dir():
        return _digest(path)
    whole = hashlib.sha256()
    for file in sorted(files_in(path)):
        whole.update(f"{_digest(path / file)}  {file}\n".encode())
    return whole.hexdigest()


def files_in(folder: Path) -> Iterator[str]:
    """Give the files of a folder by their names in it; hidden ones are not a part of the artefact."""
    for file in folder.rglob("*"):
        inside = file.relative_to(folder)
        if file.is_file() and not any(part.startswith(".") for part in inside.parts):
            yield inside.as_posix()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as content:
        while piece := content.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
