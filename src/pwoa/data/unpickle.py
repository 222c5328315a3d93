"""Reading a pickle without running anything.

A pickle names functions and calls them. Here a name is looked up in a table of three, the ones that a
pickled numpy array of bytes needs, and stands for an inert class of this file: not even numpy's own
unpickling, which trusts its input, is called. Any other name is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from pwoa.data.formats import Blob
from pwoa.errors import InputError


class ByteTable:
    """A pickled numpy array of unsigned bytes."""

    shape: tuple[int, ...] = ()
    content: bytes = b""
    columns_first: bool = False

    def __init__(self, *_: object) -> None:
        """Takes what numpy's `_reconstruct` is given, all of which is said again in the state."""

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
        flat = np.frombuffer(self.content, np.uint8)
        return flat.reshape(self.shape, order="F" if self.columns_first else "C")


class ByteType:
    """The element type of unsigned bytes."""

    def __init__(self, code: object, *_: object) -> None:
        if code != "u1":
            raise ValueError(f"numbers of type {code!r} instead of bytes")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: bytes have none."""


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
    """The value in a pickle of plain values and arrays of bytes, the latter as `ByteTable`."""
    try:
        return _Reader(blob).load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        if isinstance(error, EOFError) or "truncated" in str(error):
            found = len(blob.content)
            raise InputError(f"{blob.name} is truncated: the pickle goes on after the {found} bytes found") from None
        raise InputError(f"{blob.name} is not a CIFAR batch: {error}") from None
