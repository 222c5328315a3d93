"""The one way to read a file that may come from a stranger: a plain file of bounded size, parsed to bounded depth."""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import IO, Any

from pwoa.errors import InputError, first_line

TEXT_LIMIT = 64 << 20  # bytes of a JSON, TOML or Markdown file; ours are of a few megabytes at most


def open_file(path: Path) -> IO[bytes]:
    """Open a plain file for reading; a pipe or a device is refused, for it could block or never end.

    Example: `with open_file(Path("weights.pt")) as file: head = file.read(4)`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:  # a null byte in the name
        raise InputError(f"cannot read {str(path)!r}: the name is not valid") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"cannot read {path}: it is not a plain file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a whole plain file of at most so many bytes."""
    with open_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"cannot read {path}: it is larger than {limit:,} bytes")
    return content


def read_text(path: Path) -> str:
    """Read a text file in UTF-8."""
    try:
        return read_bytes(path, TEXT_LIMIT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: it is not text in UTF-8 ({first_line(error)})") from None


def read_json(path: Path) -> Any:
    """Read a JSON file; what cannot be parsed is an error that names the file."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str | bytes, name: str) -> Any:
    """Parse JSON; the name is for the message when it is damaged."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and nesting without end
        raise InputError(f"{name} is damaged ({_reason(error)})") from None


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parse TOML; the name is for the message when it is damaged."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not valid TOML ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else first_line(error)
