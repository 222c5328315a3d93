"""Which other files an ONNX graph asks for, and what it says of itself, found in its protobuf without running it."""

import os
from collections.abc import Iterator
from pathlib import Path

from pwoa.errors import InputError
from pwoa.storage.reading import read_bytes

LARGEST_GRAPH = 2 << 30
"""Bytes of an .onnx file: protobuf allows no more."""
_DEPTH = 64
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""By message of ONNX, the numbers of the fields that may hold tensors, and what they are."""
_METADATA = 14
"""The number of the field of a model that holds what it says of itself."""
_KEY, _VALUE = 1, 2


def external_files(path: Path) -> list[Path]:
    """Return the files with weights that a graph names, sorted; one outside the graph's folder is refused."""
    content = _content(path)
    try:
        names = sorted(set(_locations(content, "model", 0)))
    except (IndexError, ValueError):
        raise InputError(f"{path} is not an ONNX model that onnxruntime can run: its protobuf is damaged") from None
    folder = path.parent.resolve()
    files = [path.parent / os.fsdecode(name) for name in names]
    for name, file in zip(names, files, strict=True):
        if b"\0" in name or not file.resolve().is_relative_to(folder):
            raise InputError(f"{path} asks for weights in {os.fsdecode(name)!r}, which is outside its folder")
    return [file for file in files if file.is_file()]


def read_metadata(path: Path) -> dict[str, str]:
    """Return what an ONNX file says of itself, by name."""
    try:
        entries = [dict(_fields(entry)) for number, entry in _fields(_content(path)) if number == _METADATA]
        return {_text(entry, _KEY): _text(entry, _VALUE) for entry in entries}
    except (IndexError, ValueError):
        raise InputError(f"{path} is not an ONNX model: its protobuf is damaged") from None


def _text(entry: dict[int, memoryview], number: int) -> str:
    return bytes(entry.get(number, b"")).decode("utf-8")


def _content(path: Path) -> memoryview:
    return memoryview(read_bytes(path, LARGEST_GRAPH))


def _locations(message: memoryview, kind: str, depth: int) -> Iterator[bytes]:
    """Give the names of files in a message of this kind and in those inside it."""
    if depth > _DEPTH:
        raise ValueError("it is nested too deeply")
    for number, content in _fields(message):
        inner = _INSIDE[kind].get(number)
        if inner == "entry":
            entry = [(key, bytes(value)) for key, value in _fields(content)]
            if (_KEY, b"location") in entry:
                yield from (value for key, value in entry if key == _VALUE)
        elif inner:
            yield from _locations(content, inner, depth + 1)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Give the number and content of each field with a length in a protobuf message; others are passed over."""
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        if tag & 7 == 2:
            length, at = _number(message, at)
            if at + length > len(message):
                raise ValueError("it ends too early")
            yield tag >> 3, message[at : at + length]
            at += length
        elif tag & 7 in (1, 5):
            at += 8 if tag & 7 == 1 else 4
        elif tag & 7 == 0:
            _, at = _number(message, at)
        else:
            raise ValueError("it has groups, which ONNX does not use")


def _number(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number in it does not end")
