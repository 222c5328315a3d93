"""Files and folders: written as a whole or not at all, read back checked, and one process at a time in a folder."""

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, ClassVar

from pwoa.errors import InputError, Terminated, first_line

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
RESULT = "result.json"


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write to; it becomes `path` when all is written, and is dropped when something goes wrong.

    Example: `with replacing(Path("rows.json")) as file: file.write(b"[]")`.
    """
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
    """Turn what the file system refuses to write into an error that names the folder and the way out."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot write to {folder}: {reason}; free it or choose another folder") from None


def to_json(value: Any) -> str:
    """Write JSON for people to read."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


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
    that a folder with the last of them is complete.
    """

    kind: ClassVar[str]
    marks: ClassVar[tuple[str, ...]] = ()

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

    def _is_blank(self) -> bool:
        """Tell whether there is nothing, or only what a process that was killed while it began leaves behind."""
        leftovers = {LOCK, *self.marks[:-1], *(f".{name}.part" for name in self.marks)}
        return self.path.is_dir() and {path.name for path in self.path.iterdir()} <= leftovers

    def held(self) -> AbstractContextManager[None]:
        """Keep every other process out while inside; it is refused in one line."""
        return held(self.path)

    def make(self) -> None:
        """Create the folder."""
        with naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def write_text(self, name: str, text: str) -> None:
        """Write a file, atomically."""
        with replacing(self.path / name) as file:
            file.write(text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file, atomically."""
        self.write_text(name, to_json(value))

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON object; anything else is an error that names the file."""
        return self.parse((self.path / name).read_bytes(), name)

    def parse(self, text: bytes, name: str) -> dict[str, Any]:
        """Read a JSON object out of (a line of) the file of that name."""
        try:
            value = json.loads(text)
            if not isinstance(value, dict) or not value:
                raise ValueError(f"it says {value!r}")
        except ValueError as error:
            damage = f"{self.path / name} is damaged ({first_line(error)})"
            raise InputError(f"{damage}; choose another folder for the {self.kind}") from None
        return value


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
        file = (folder / LOCK).open("wb")
        try:
            _lock(file, folder, wait)
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(folder / LOCK)):
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
