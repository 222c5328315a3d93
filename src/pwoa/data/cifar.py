"""CIFAR-10 and CIFAR-100 as published: the binary version, and the Python version, read without running anything.

A pickle names functions and calls them. Here it is read as inert values, in which the call that makes a numpy array of
bytes is recognised by its three names; any other name is refused.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pwoa.data.formats import Blob, Shape, Split, check_length, check_not_web_page
from pwoa.errors import InputError
from pwoa.storage.pickles import CodeError, Name, Node, PickleError, TruncatedError, read_pickle

_MAKES_ARRAY = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")  # of numpy 1, of numpy 2
_KNOWN = frozenset({*_MAKES_ARRAY, "numpy.ndarray", "numpy.dtype"})


def unpickle(blob: Blob) -> Any:
    """Read a pickle of plain values and arrays of bytes as inert values."""
    try:
        return read_pickle(blob.content, _KNOWN.__contains__)[0]
    except CodeError as error:
        raise InputError(f"{blob.name} was refused because it contains code ({error})") from None
    except TruncatedError:
        size = len(blob.content)
        raise InputError(f"{blob.name} is truncated: the pickle goes on after the {size} bytes found") from None
    except PickleError as error:
        raise InputError(f"{blob.name} is not a CIFAR batch: {error}") from None


def read_binary(blobs: Sequence[Blob], shape: Shape, count: int, label_bytes: int) -> Split:
    """Read records of label bytes, the last of which is the (fine) label, followed by the planes of the image."""
    each, size = count // len(blobs), label_bytes + math.prod(shape)
    for blob in blobs:
        check_not_web_page(blob, "a CIFAR binary file")
        check_length(blob, each * size)
    parts = [np.frombuffer(blob.content, np.uint8).reshape(each, size) for blob in blobs]
    pixels = np.concatenate([records[:, label_bytes:] for records in parts])
    labels = np.concatenate([records[:, label_bytes - 1] for records in parts])
    return Split(pixels.reshape(-1, *shape), labels.astype(np.int64))


def read_python(blobs: Sequence[Blob], shape: Shape, count: int, label_key: str) -> Split:
    """Read pickled dictionaries of `data` (one image a row) and a list of labels."""
    form = count // len(blobs), math.prod(shape)
    batches = [_read_batch(blob, form, label_key) for blob in blobs]
    rows, labels = zip(*batches, strict=True)
    return Split(np.concatenate(rows).reshape(-1, *shape), np.concatenate(labels))


def _read_batch(blob: Blob, shape: tuple[int, int], label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    check_not_web_page(blob, "a CIFAR batch")
    batch = unpickle(blob)
    pairs = batch.items if _is(batch, "dict") else []
    content = {_text(key): value for key, value in zip(pairs[::2], pairs[1::2], strict=True)}
    if not {"data", label_key} <= content.keys():
        raise InputError(f"{blob.name} is not a CIFAR batch: it has no `data` and `{label_key}`")
    data, labels = content["data"], content[label_key]
    if not _is(data, "call"):
        kind = data.kind if type(data) is Node else type(data).__name__
        raise InputError(f"{blob.name}: `data` is {kind}, expected a table of bytes of shape {shape}")
    if not _is(labels, "list") or len(labels.items) != shape[0] or not all(map(_is_label, labels.items)):
        raise InputError(f"{blob.name}: the labels are not a list of {shape[0]} integers")
    return _table(data, shape, blob.name), np.array(labels.items, np.int64)


def _table(array: Node, shape: tuple[int, int], name: str) -> NDArray[np.uint8]:
    """Return a pickled numpy array of unsigned bytes, which must have the given shape."""
    state = array.state.items if _is(array.state, "tuple") else []
    if array.items[0] not in map(Name, _MAKES_ARRAY) or len(state) != 5:
        raise InputError(f"{name} is not a CIFAR batch: `data` is no numpy array")
    _, sizes, kind, columns_first, content = state
    if (code := _type_code(kind)) != "u1":
        raise InputError(f"{name} is not a CIFAR batch: numbers of type {code!r} instead of bytes")
    if (
        not _is(sizes, "tuple")
        or len(sizes.items) > 8
        or not all(map(_is_label, sizes.items))
        or type(content) is not bytes
    ):
        raise InputError(f"{name} is not a CIFAR batch: an array of something other than bytes")
    if len(content) != math.prod(sizes.items):
        raise InputError(
            f"{name} is not a CIFAR batch: an array of shape {tuple(sizes.items)} with {len(content)} bytes"
        )
    if tuple(sizes.items) != shape:
        raise InputError(f"{name}: `data` is {tuple(sizes.items)}, expected a table of bytes of shape {shape}")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if columns_first is True else "C")


def _type_code(kind: Any) -> str:
    """Return what a pickled numpy dtype says it is, such as u1; nothing if it is none."""
    if not _is(kind, "call") or kind.items[0] != Name("numpy.dtype") or not _is(kind.items[1], "tuple"):
        return ""
    return _text(next(iter(kind.items[1].items), ""))


def _is(value: Any, kind: str) -> bool:
    return type(value) is Node and value.kind == kind


def _is_label(value: Any) -> bool:
    """Tell whether it is a whole number from 0 up, of at most 32 bits."""
    return type(value) is int and 0 <= value < 2**32


def _text(value: Any) -> str:
    """Return a text, also one of Python 2; nothing for anything else, or for what no key is as long as."""
    return value[:100].decode("latin1") if type(value) is bytes else value[:100] if type(value) is str else ""


read_cifar10_binary = partial(read_binary, label_bytes=1)
read_cifar100_binary = partial(read_binary, label_bytes=2)
read_cifar10_python = partial(read_python, label_key="labels")
read_cifar100_python = partial(read_python, label_key="fine_labels")
