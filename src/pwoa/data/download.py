"""Downloading one file: resumed where it broke off, checked before it gets its name."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import cast

from pwoa.data.formats import is_web_page
from pwoa.errors import InputError

TIMEOUT = 10.0  # seconds to connect, and between two pieces of an answer
ATTEMPTS = 5
CHUNK = 1 << 18

Progress = Callable[[str, int, int], None]
"""Called with the file's name, the bytes there are, and the bytes there will be (0: not known)."""


def file_md5(path: Path) -> str:
    """Return the MD5 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(url: str, target: Path, md5: str, limit: int, progress: Progress | None = None) -> None:
    """Make `target` the file at `url`, of at most `limit` bytes; what breaks off leaves `target`.part to go on from."""
    if target.exists() and file_md5(target) == md5:
        return
    part = target.with_name(target.name + ".part")
    if not (part.exists() and file_md5(part) == md5):
        _transfer_all(url, part, limit, progress)
        if (actual := file_md5(part)) != md5:
            part.unlink()  # it is of no use to resume from
            raise InputError(f"{url} has the wrong checksum: MD5 {actual}, expected {md5}")
    os.replace(part, target)


def _transfer_all(url: str, part: Path, limit: int, progress: Progress | None) -> None:
    for _ in range(ATTEMPTS):
        before = _size(part)
        with _connect(url, before) as answer:
            total = _save(answer, url, part, limit, progress)
        if _size(part) >= total:
            return
        if _size(part) <= before:
            break
    raise InputError(f"{url} broke off: {_size(part)} of {total} bytes came; run again to go on from there")


def _connect(url: str, start: int) -> http.client.HTTPResponse:
    """Ask for the file from byte `start` on; a server may answer with the whole of it."""
    headers = {"User-Agent": "pwoa"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(url, headers=headers)
    try:
        return cast(http.client.HTTPResponse, urllib.request.urlopen(request, timeout=TIMEOUT))
    except urllib.error.HTTPError as error:
        error.close()
        if start and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _connect(url, 0)
        raise InputError(f"{url} answered HTTP {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from None


def _save(answer: http.client.HTTPResponse, url: str, part: Path, limit: int, progress: Progress | None) -> int:
    """Write an answer to `part` as far as it comes; return the size of the whole file (0: not known)."""
    resumed = answer.status == http.client.PARTIAL_CONTENT
    done = _size(part) if resumed else 0
    length = answer.headers.get("Content-Length") or "0"
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise InputError(f"{url} says that it has {length[:40]!r} bytes, which is no number")
    total = done + int(length) if int(length) else 0
    _check_size(total, limit, url, part)
    chunk = _read(answer)
    if is_web_page(chunk):
        raise InputError(f"{url} is a web page, not a data file")
    with part.open("ab" if resumed else "wb") as file:
        while chunk:
            file.write(chunk)
            done += len(chunk)
            _check_size(done, limit, url, part)
            if progress:
                progress(part.name.removesuffix(".part"), done, total)
            chunk = _read(answer)
    return total


def _check_size(size: int, limit: int, url: str, part: Path) -> None:
    if size > limit:
        part.unlink(missing_ok=True)  # it is of no use to resume from
        raise InputError(f"{url} has more than {limit:,} bytes, which the data set has not")


def _read(answer: http.client.HTTPResponse) -> bytes:
    """Return the next piece; a connection that breaks reads like an early end, which the size then tells."""
    try:
        return answer.read(CHUNK)
    except (OSError, http.client.HTTPException):
        return b""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
