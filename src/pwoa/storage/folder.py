"""Files and folders: written as a whole or not at all, read back checked, and one process at a time in a folder."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, ClassVar

from pwoa.errors import InputError, Terminated
from pwoa.storage.reading import TEXT_LIMIT, parse_json, read_bytes

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
RESULT = "result.json"
_PART = re.compile(r"\.([0-9a-f]{16}|[\w-]+\.(toml|jsonl?|pt|safetensors))\.part")
"""A file that is being written, or that a killed process left: `.RANDOM.part`, up to version 0.3 `.NAME.part`."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""A symbolic link in a folder that somebody sent could lead anywhere, so that none is followed when writing."""


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write to; it becomes `path` when all is written, and is dropped when something goes wrong.

    Example: `with replacing(Path("rows.json")) as file: file.write(b"[]")`.
    """
    temporary = path.with_name(f".{os.urandom(8).hex()}.part")
    with naming(path.parent):
        try:
            with os.fdopen(os.open(temporary, _NEW | _PLAIN, 0o666), "wb") as file:
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


def appending(path: Path) -> IO[bytes]:
    """Open a plain file to add to its end; a symbolic link is refused. Example: `with appending(Path("a.log")): …`."""
    with naming(path.parent):
        return os.fdopen(os.open(path, _APPEND | _PLAIN, 0o666), "ab")


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed while they wrote left in a folder; only who holds it may do so."""
    with suppress(OSError):
        for path in folder.iterdir():
            if _PART.fullmatch(path.name) and not path.is_dir():
                path.unlink()


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses to write into an error that names the folder and the way out."""
    try:
        yield
    except OSError as error:
        loop = error.errno == errno.ELOOP
        reason = "it has a symbolic link where a file is written" if loop else error.strerror or str(error)
        raise InputError(f"cannot write to {folder}: {reason}; free it or choose another folder") from None


def to_json(value: Any) -> str:
    """Write JSON for people to read."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


CHECKSUM = "checksum"
"""The key in a JSON object of ours that holds the SHA-256 of all others."""


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum."""
    return {**value, CHECKSUM: _checksum(value)}


def unsealed(value: Any, name: str) -> dict[str, Any]:
    """Return a JSON object without its checksum, if it is right; one of before version 0.4 has none."""
    if not isinstance(value, dict) or not value:
        raise InputError(f"{name} is damaged (it is no JSON object that says anything)")
    rest = {key: item for key, item in value.items() if key != CHECKSUM}
    if CHECKSUM in value and value[CHECKSUM] != _checksum(rest):
        raise InputError(f"{name} is damaged (its checksum is wrong)")
    return rest


def _checksum(value: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(value))  # as it is read back
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write flat rows as JSON, one on each line."""
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def save_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON, one on each line; the folder is made if it is not there."""
    with naming(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(rows_text(rows).encode())


class Folder:
    """A folder that holds one thing of its kind, and that only one process works in. Opening it writes nothing.

    kind: what it holds, for messages. marks: the files that make it one, in the order in which they are written, so
    that a folder with the last of them is complete. passing: what only one needs that is not finished.
    """

    kind: ClassVar[str]
    marks: ClassVar[tuple[str, ...]] = ()
    passing: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def started(self) -> bool:
        """Whether the folder holds what it is for, finished or not."""
        return bool(self.marks) and all((self.path / name).is_file() for name in self.marks)

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return (self.path / RESULT).is_file()

    def check(self, differences: Mapping[str, tuple[Any, Any]]) -> None:
        """Refuse a folder that cannot be written, or that holds something else.

        differences: in what a started one is not what is asked for: what it has there, and what is asked for now.
        """
        if self.started:
            if differences:
                raise InputError(
                    f"{self.path} holds another {self.kind} ({differences_text(differences)}); "
                    "choose another folder, or give the same again to resume it"
                )
        elif self.path.exists() and not self._is_blank():
            raise InputError(f"{self.path} exists and holds no {self.kind}; choose another folder")
        if not self.finished:
            self.check_writable()

    def check_writable(self) -> None:
        """Refuse a folder that cannot be written or made."""
        parent = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not os.access(parent, os.W_OK):
            raise InputError(f"cannot write to {parent}; choose another folder with --out (in Python: folder=)")
        inside = self.path.iterdir() if self.path.is_dir() else ()
        if links := sorted(path.name for path in inside if path.is_symlink()):
            raise InputError(
                f"{self.path} has a symbolic link in it ({links[0]}), through which nothing is written; "
                "replace it by what it leads to, or choose another folder"
            )

    def _is_blank(self) -> bool:
        """Tell whether there is nothing, or only what a process that was killed while it began leaves behind."""
        if not self.path.is_dir():
            return False
        names = [path.name for path in self.path.iterdir()]
        return all(name in (LOCK, *self.marks[:-1]) or _PART.fullmatch(name) for name in names)

    def held(self) -> AbstractContextManager[None]:
        """Keep every other process out while inside; it is refused in one line."""
        return held(self.path)

    def tidy(self) -> None:
        """Drop what a finished one does not need; also what a process left that was killed before it could."""
        for path in (self.path / name for name in self.passing):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)  # which follows no symbolic link
            else:
                with suppress(OSError):
                    path.unlink()

    def tidy_finished(self) -> None:
        """Drop what is left of a process that was killed just after it had finished, unless another one is at it."""
        with suppress(OSError, InputError):
            names = {path.name for path in self.path.iterdir()}
            if names & {LOCK, *self.passing} or any(map(_PART.fullmatch, names)):
                with self.held():
                    self.tidy()

    def make(self) -> None:
        """Create the folder."""
        with naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def write_text(self, name: str, text: str) -> None:
        """Write a file, atomically."""
        try:
            content = text.encode()
        except UnicodeEncodeError:  # a name in bytes that are no text
            raise InputError(f"cannot write {name}: a name in it is not valid Unicode; rename what it names") from None
        with replacing(self.path / name) as file:
            file.write(content)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON object with its checksum, atomically."""
        self.write_text(name, to_json(sealed(value)))

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON object; anything else, or one that was changed, is an error that names the file."""
        return self.parse(read_bytes(self.path / name, TEXT_LIMIT), name)

    def parse(self, text: bytes, name: str) -> dict[str, Any]:
        """Read a JSON object out of (a line of) the file of that name."""
        where = str(self.path / name)
        try:
            return unsealed(parse_json(text, where), where)
        except InputError as error:
            raise InputError(f"{error}; choose another folder for the {self.kind}") from None


def differences_text(differences: Mapping[str, tuple[Any, Any]], most: int = 5) -> str:
    """Tell what differs, for a handful of settings at most: what is there, and what is asked for now."""
    items = [f"{key}: there {_shown(there)}, now {_shown(now)}" for key, (there, now) in differences.items()]
    return "; ".join([*items[:most], *([f"and {len(items) - most} more"] if len(items) > most else [])])


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def held(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Refuse every other process that asks for the same folder while inside, or let it wait for its turn.

    The folder is made if it is not there. At the end the lock's file goes away, and so does a new folder in which
    there is nothing else. The system gives the lock back when its process ends, however it ends. Where the file system
    or the machine knows no locks, all are let in.
    """
    if fcntl is None:
        yield
        return
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    with naming(folder):
        file = _locked(folder, wait)
    remove_leftovers(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink()
        file.close()
        with suppress(OSError):
            for path in new:
                path.rmdir()


def _locked(folder: Path, wait: bool, tries: int = 100) -> IO[bytes]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(folder / LOCK, _APPEND | _PLAIN, 0o666), "ab")
        try:
            _lock(file, folder, wait)
            if not os.path.samestat(os.fstat(file.fileno()), os.lstat(folder / LOCK)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        except BaseException:
            file.close()
            raise
    except (FileNotFoundError, FileExistsError):  # who had the lock has just removed its file, or the folder
        if not tries:
            raise
    else:
        return file
    return _locked(folder, wait, tries - 1)


def _lock(file: IO[bytes], folder: Path, wait: bool) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"another process is working on {folder}; wait for it or stop it") from None
    except OSError:
        pass  # a file system without locks
