"""A run in pieces, for machines between which only small files can be carried.

The run folder as a tar file, cut into pieces of the same size. A list beside them has the SHA-256 of every piece and of
the whole, so that nothing but the very same run comes out at the other end.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from pwoa.errors import InputError, first_line
from pwoa.files import naming, reading, replacing
from pwoa.lock import LOCK
from pwoa.run import Run, as_json
from pwoa.words import counted

LIST = "pieces.json"
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def pack(run: str | Path, folder: str | Path, size: int | str = "16MB") -> list[Path]:
    """Write a run, finished or not, as pieces of at most `size` bytes into a new folder, and give the files there."""
    source, most = Path(run), bytes_in(size)
    if not Run(source).started:
        raise InputError(f"{run} is not a run folder: it has no recipe.toml")
    if source.resolve() in Path(folder).resolve().parents:
        raise InputError(f"{folder} is inside of the run; choose a folder beside it")
    with _new_folder(Path(folder)) as temporary:
        pieces = _Pieces(temporary, most)
        with tarfile.open(fileobj=pieces, mode="w|") as tar:
            for path in _files(source):
                _add(tar, path, path.relative_to(source).as_posix())
        about = pieces.finished()
        with replacing(temporary / LIST) as file:
            file.write(as_json(about).encode())
    return [Path(folder) / name for name in (LIST, *(piece["name"] for piece in about["pieces"]))]


def unpack(folder: str | Path, run: str | Path) -> Path:
    """Put a run together again from its pieces; the command that started it then resumes it."""
    pieces = _checked(Path(folder))
    with _new_folder(Path(run)) as temporary:
        try:
            with tarfile.open(fileobj=_Joined(_contents(Path(folder), pieces)), mode="r|") as tar:
                for member in tar:
                    _extract(tar, member, temporary)
        except tarfile.TarError as error:
            raise InputError(f"the pieces in {folder} hold no run ({first_line(error)})") from None
        if not Run(temporary).started:
            raise InputError(f"the pieces in {folder} hold no run: there is no recipe.toml")
    return Path(run)


def bytes_in(size: int | str) -> int:
    """A number of bytes, as in 16MB, 500 kB or 1GiB."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", str(size).strip().lower())
    if not found or found[2] not in _UNITS or not int(found[1]):
        raise InputError(f"{size!r} is not a size; write for example 16MB")
    return int(found[1]) * _UNITS[found[2]]


class _Pieces(io.RawIOBase):
    """A file to write to, which is cut up."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size
        self._left = bytearray()
        self._whole = hashlib.sha256()
        self._list: list[dict[str, Any]] = []

    def write(self, data: Any) -> int:
        self._left += data
        while len(self._left) >= self._size:
            self._cut()
        return len(data)

    def finished(self) -> dict[str, Any]:
        """The list of the pieces, when all is written."""
        if self._left:
            self._cut()
        return {"sha256": self._whole.hexdigest(), "pieces": self._list}

    def _cut(self) -> None:
        content = bytes(self._left[: self._size])
        del self._left[: self._size]
        name = f"piece-{len(self._list) + 1:04}"
        with replacing(self._folder / name) as file:
            file.write(content)
        self._whole.update(content)
        self._list.append({"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})


class _Joined(io.RawIOBase):
    """The pieces as one file to read from."""

    def __init__(self, contents: Iterator[bytes]) -> None:
        self._contents, self._open = contents, io.BytesIO()

    def read(self, size: int = -1) -> bytes:
        while not (data := self._open.read(size)) and (content := next(self._contents, None)) is not None:
            self._open = io.BytesIO(content)
        return data


def _files(run: Path) -> list[Path]:
    """The files of a run, without its lock and what a kill left half written.

    The checkpoint comes before the metrics: of a run that goes on meanwhile, the metrics then are at least as new.
    """
    passing = re.compile(rf"\..*\.part|{re.escape(LOCK)}")
    return sorted(path for path in run.rglob("*") if path.is_file() and not passing.fullmatch(path.name))


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file without its owner and its time."""
    with reading(path):
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise InputError(f"{path} went away while it was packed, as the run goes on; pack it again") from None
        with file:
            entry = tarfile.TarInfo(name)
            entry.size = os.fstat(file.fileno()).st_size
            tar.addfile(entry, file)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a file into the folder, and refuse one that would land elsewhere, or is no file."""
    path, content = PurePosixPath(member.name), tar.extractfile(member) if member.isfile() else None
    if content is None or path.is_absolute() or ".." in path.parts:
        raise InputError(f"the pieces hold {member.name!r}, which is no file of a run")
    with naming(folder):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder / path) as file:
        shutil.copyfileobj(content, file)


def _checked(folder: Path) -> list[dict[str, Any]]:
    """The list of the pieces in a folder, all there and each the one that was written."""
    about = _read_list(folder)
    if missing := [piece["name"] for piece in about["pieces"] if not (folder / piece["name"]).is_file()]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"{folder} lacks {missing[0]}{more} of its {counted(len(about['pieces']), 'piece')}; carry them over"
        )
    whole = hashlib.sha256()
    for content in _contents(folder, about["pieces"]):
        whole.update(content)
    if whole.hexdigest() != about["sha256"]:
        raise InputError(f"{folder / LIST} does not go with the pieces beside it; carry it over again")
    pieces: list[dict[str, Any]] = about["pieces"]
    return pieces


def _contents(folder: Path, pieces: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """What is in each piece, one after the other, checked as it is read."""
    names = {piece["sha256"]: piece["name"] for piece in pieces}
    for piece in pieces:
        path = folder / piece["name"]
        with reading(path):
            content = path.read_bytes()
        if (found := hashlib.sha256(content).hexdigest()) != piece["sha256"]:
            known = names.get(found)
            wrong = f"is {known} by another name" if known else "is damaged, or a piece of something else"
            raise InputError(f"{path} {wrong}; carry it over again")
        yield content


def _read_list(folder: Path) -> dict[str, Any]:
    path = folder / LIST
    if not path.is_file():
        raise InputError(f"{folder} holds no packed run: it has no {LIST}")
    with reading(path):
        text = path.read_bytes()
    try:
        about: dict[str, Any] = json.loads(text)
        whole = bool(about["sha256"]) and all(re.fullmatch(r"piece-\d+", piece["name"]) for piece in about["pieces"])
        if not whole or any("sha256" not in piece for piece in about["pieces"]):
            raise ValueError("it names no pieces")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({first_line(error)}); carry it over again") from None
    return about


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill; when all is in it, it becomes `folder`, and is dropped when something goes wrong."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; choose another folder")
    folder = folder.resolve()
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    with naming(folder.parent):
        temporary.mkdir(parents=True)
    try:
        yield temporary
        with naming(folder.parent):
            if folder.exists():
                folder.rmdir()
            os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
