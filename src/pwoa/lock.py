"""One process at a time in a folder. The system gives the lock back when its process ends, however it ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pwoa.errors import InputError
from pwoa.files import naming

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def held(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Inside, another process that asks for the same folder is refused at once, or waits for its turn.

    The folder is made if it is not there. At the end the lock's file goes away, and so does a new folder in which
    there is nothing else. Where the file system or the machine knows no locks, all are let in.
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
