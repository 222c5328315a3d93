"""Files are put in place as a whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pwoa.errors import InputError, Terminated


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to; it becomes `path` when all is written, and is dropped when something goes wrong."""
    temporary = path.with_name(f".{path.name}.part")
    with naming(path.parent):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException as error:
            with suppress(OSError):
                temporary.unlink()
            hidden = error.__context__  # torch.save hides a full disk, Ctrl-C or SIGTERM behind its own error
            if not isinstance(error, InputError) and isinstance(hidden, (OSError, KeyboardInterrupt, Terminated)):
                raise hidden from None
            raise


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that names the folder and the way out."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot write to {folder}: {reason}; free it or choose another folder") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what cannot be read into an error that names it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Flat rows as JSON, a line each."""
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def load_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none if it is not there yet."""
    if not path.exists():
        return []
    with reading(path):
        text = path.read_bytes()
    try:
        rows = json.loads(text)
    except ValueError:
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row for row in rows):
        raise InputError(f"{path} holds no rows; mend it or choose another file")
    return rows


def save_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as a file of their own; its folder is made if it is not there."""
    with naming(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(rows_text(rows).encode())
