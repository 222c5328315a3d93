"""The one way to read a file that may come from a stranger: a plain file of bounded size, parsed to bounded depth."""

import json
import math
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import IO, Any, cast

from pwoa.errors import InputError, first_line

TEXT_LIMIT = 16 << 20
"""Bytes of a JSON or Markdown file; ours have a few millions at most."""
TOML_LIMIT = 1 << 20
"""Bytes of a TOML file: the parser is slow, and ours have some thousands."""
LARGEST_DEPTH = 100
"""Of what is nested in JSON or TOML: then no walk through it is at the end of Python's stack."""
TENSORS_LIMIT = 16 << 20
"""Bytes of the header of a safetensors file."""
_DIMENSIONS = 64
_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Of a number, by the types that both safetensors and torch know."""
_BETWEEN_KEYS = re.compile(r"[^\w\"' \t.-]")


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


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """Read a text file in UTF-8, of at most so many bytes."""
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: it is not text in UTF-8 ({first_line(error)})") from None


def read_json(path: Path) -> Any:
    """Read a JSON file; what cannot be parsed is an error that names the file."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str | bytes, name: str) -> Any:
    """Parse JSON; the name is for the message when it is damaged."""
    try:
        return _shallow(json.loads(text))
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and nesting without end
        raise InputError(f"{name} is damaged ({_reason(error)})") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; what cannot be parsed is an error that names the file."""
    return parse_toml(read_text(path, TOML_LIMIT), str(path))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parse TOML; the name is for the message when it is damaged."""
    try:
        # The parser takes time by the square of the dots in a key: it does not get to see such a one.
        if max(part.count(".") for part in _BETWEEN_KEYS.split(text)) > LARGEST_DEPTH:
            raise RecursionError
        return cast(dict[str, Any], _shallow(tomllib.loads(text)))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not valid TOML ({_reason(error)})") from None


def read_safetensors(path: Path) -> tuple[bytes, dict[str, str]]:
    """Read a safetensors file, and what it says beside its tensors; its header is checked before the rest is read.

    Example: `content, metadata = read_safetensors(Path("model.safetensors"))`.
    """
    with open_file(path) as file:
        head, metadata = _read_header(file, path)
        return head + file.read(os.fstat(file.fileno()).st_size - len(head)), metadata


def read_safetensors_metadata(path: Path) -> dict[str, str]:
    """Read what a safetensors file says beside its tensors, and nothing but its header."""
    with open_file(path) as file:
        return _read_header(file, path)[1]


def _read_header(file: IO[bytes], path: Path) -> tuple[bytes, dict[str, str]]:
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, TENSORS_LIMIT):
        raise InputError(f"{path} is not a safetensors file: it has no header")
    head = file.read(length)
    try:
        table = parse_json(head.decode("utf-8"), "its header")
    except ValueError as error:  # also where it is no text
        raise InputError(f"{path} is not a safetensors file: {first_line(error)}") from None
    metadata: Any = table.pop("__metadata__", {}) if isinstance(table, dict) else None
    described = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if not described or not all(_is_tensor(entry, size - 8 - length) for entry in table.values()):
        raise InputError(f"{path} is not a safetensors file: its header has no usual types, shapes and places")
    return start + head, metadata


def _is_tensor(entry: Any, size: int) -> bool:
    """Tell whether it describes a tensor in so many bytes, of a type and shape that torch has."""
    if not isinstance(entry, dict) or str(entry.get("dtype")) not in _BYTES:
        return False
    shape, place = entry.get("shape", ()), entry.get("data_offsets", ())
    for numbers in (shape, place):
        if not isinstance(numbers, list) or not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            return False
    if len(shape) > _DIMENSIONS or len(place) != 2 or not place[0] <= place[1] <= size:
        return False
    whole = math.prod(max(number, 1) for number in shape)  # what strides are computed from, also of nothing
    return whole < 2**60 and bool(math.prod(shape) * _BYTES[entry["dtype"]] == place[1] - place[0])


def _shallow(value: Any) -> Any:
    """Return the value, or refuse it if it is nested too deeply."""
    level = [value]
    for _ in range(LARGEST_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise RecursionError


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else first_line(error)
