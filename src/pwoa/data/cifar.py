"""CIFAR-10 and CIFAR-100 as published: the binary version, and the Python version, read without running anything.

A pickle names functions and calls them. Here a name is looked up in a table of three, the ones that a
pickled numpy array of bytes needs, and stands for an inert class of this file: not even numpy's own
unpickling, which trusts its input, is called. Any other name is refused.
"""

import io
import math
import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from pwoa.data.formats import Blob, Shape, Split, check_length, check_not_web_page
from pwoa.errors import InputError


class ByteType:
    """The element type of unsigned bytes."""

    def __init__(self, code: object, *_: object) -> None:
        if code != "u1":
            raise ValueError(f"numbers of type {code!r} instead of bytes")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and the like: bytes have none."""


class ByteTable:
    """A pickled numpy array of unsigned bytes."""

    shape: tuple[int, ...] = ()
    content: bytes = b""
    columns_first: bool = False

    def __init__(self, *_: object) -> None:
        """Take what numpy's `_reconstruct` is given, all of which the state repeats."""

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, shape, kind, columns_first, content = state
        if isinstance(content, str):  # how Python 3 reads the byte strings of Python 2
            content = content.encode("latin1")
        if not isinstance(content, bytes) or not isinstance(kind, ByteType) or not _is_shape(shape):
            raise ValueError("an array of something other than bytes")
        if len(content) != math.prod(shape):
            raise ValueError(f"an array of shape {shape} with {len(content)} bytes")
        self.shape, self.content, self.columns_first = shape, content, bool(columns_first)

    def array(self) -> NDArray[np.uint8]:
        """Return the table as a numpy array."""
        flat = np.frombuffer(self.content, np.uint8)
        return flat.reshape(self.shape, order="F" if self.columns_first else "C")


def _is_shape(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(size) is int and size >= 0 for size in value)


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): ByteTable,
    ("numpy", "dtype"): ByteType,
    ("numpy.core.multiarray", "_reconstruct"): ByteTable,
    ("numpy._core.multiarray", "_reconstruct"): ByteTable,  # the same in numpy 2
}


class _Reader(pickle.Unpickler):
    def __init__(self, blob: Blob) -> None:
        super().__init__(io.BytesIO(blob.content), encoding="latin1")
        self.name = blob.name

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise InputError(f"{self.name} was refused because it contains code ({module}.{name})")
        return ALLOWED[module, name]


def unpickle(blob: Blob) -> object:
    """Read a pickle of plain values and arrays of bytes, the latter as `ByteTable`."""
    try:
        return _Reader(blob).load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        if isinstance(error, EOFError) or "truncated" in str(error):
            size = len(blob.content)
            raise InputError(f"{blob.name} is truncated: the pickle goes on after the {size} bytes found") from None
        raise InputError(f"{blob.name} is not a CIFAR batch: {error}") from None


def read_binary(blobs: Sequence[Blob], shape: Shape, count: int, label_bytes: int) -> Split:
    """Read records of label bytes, the last of which is the (fine) label, followed by the planes of the image."""
    each, size = count // len(blobs), label_bytes + math.prod(shape)
    for blob in blobs:
        check_not_web_page(blob, "a CIFAR binary file")
        check_length(blob, each * size)
    records = np.concatenate([np.frombuffer(blob.content, np.uint8).reshape(each, size) for blob in blobs])
    pixels = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, *shape)
    return Split(pixels, records[:, label_bytes - 1].astype(np.int64))


def read_python(blobs: Sequence[Blob], shape: Shape, count: int, label_key: str) -> Split:
    """Read pickled dictionaries of `data` (one image a row) and a list of labels."""
    form = count // len(blobs), math.prod(shape)
    batches = [_read_batch(blob, form, label_key) for blob in blobs]
    rows, labels = zip(*batches, strict=True)
    return Split(np.concatenate(rows).reshape(-1, *shape), np.concatenate(labels))


def _read_batch(blob: Blob, shape: tuple[int, int], label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    check_not_web_page(blob, "a CIFAR batch")
    batch = unpickle(blob)
    if not isinstance(batch, dict) or not {"data", label_key} <= batch.keys():
        raise InputError(f"{blob.name} is not a CIFAR batch: it has no `data` and `{label_key}`")
    data, labels = batch["data"], batch[label_key]
    actual = data.shape if isinstance(data, ByteTable) else type(data).__name__
    if actual != shape:
        raise InputError(f"{blob.name}: `data` is {actual}, expected a table of bytes of shape {shape}")
    if not isinstance(labels, list) or len(labels) != shape[0] or not all(type(y) is int for y in labels):
        raise InputError(f"{blob.name}: the labels are not a list of {shape[0]} integers")
    return data.array(), np.array(labels, np.int64)


read_cifar10_binary = partial(read_binary, label_bytes=1)
read_cifar100_binary = partial(read_binary, label_bytes=2)
read_cifar10_python = partial(read_python, label_key="labels")
read_cifar100_python = partial(read_python, label_key="fine_labels")
