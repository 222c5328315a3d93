"""CIFAR-10 and CIFAR-100 as published: the binary version and the Python version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pwoa.data.formats import Blob, Shape, Split, check_length, check_not_web_page
from pwoa.data.unpickle import ByteTable, unpickle
from pwoa.errors import InputError


def read_binary(blobs: Sequence[Blob], shape: Shape, count: int, label_bytes: int) -> Split:
    """Records of label bytes, the last of which is the (fine) label, followed by the planes of the image."""
    each, size = count // len(blobs), label_bytes + math.prod(shape)
    records = np.concatenate([_records(blob, each, size) for blob in blobs])
    pixels = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, *shape)
    return Split(pixels, records[:, label_bytes - 1].astype(np.int64))


def _records(blob: Blob, count: int, size: int) -> NDArray[np.uint8]:
    check_not_web_page(blob, "a CIFAR binary file")
    check_length(blob, count * size)
    return np.frombuffer(blob.content, np.uint8).reshape(count, size)


def read_python(blobs: Sequence[Blob], shape: Shape, count: int, label_key: str) -> Split:
    """Pickled dictionaries of `data` (one image a row) and a list of labels."""
    each, size = count // len(blobs), math.prod(shape)
    batches = [_batch(blob, label_key) for blob in blobs]
    rows = [_rows(blob, data, (each, size)) for blob, (data, _) in zip(blobs, batches, strict=True)]
    labels = [_labels(blob, found, each) for blob, (_, found) in zip(blobs, batches, strict=True)]
    return Split(np.concatenate(rows).reshape(-1, *shape), np.concatenate(labels))


def _batch(blob: Blob, label_key: str) -> tuple[object, object]:
    check_not_web_page(blob, "a CIFAR batch")
    batch = unpickle(blob)
    if not isinstance(batch, dict) or not {"data", label_key} <= batch.keys():
        raise InputError(f"{blob.name} is not a CIFAR batch: it has no `data` and `{label_key}`")
    return batch["data"], batch[label_key]


def _rows(blob: Blob, data: object, shape: tuple[int, int]) -> NDArray[np.uint8]:
    found = data.shape if isinstance(data, ByteTable) else type(data).__name__
    if not isinstance(data, ByteTable) or found != shape:
        raise InputError(f"{blob.name}: `data` is {found}, expected a table of bytes of shape {shape}")
    return data.array()


def _labels(blob: Blob, labels: object, count: int) -> NDArray[np.int64]:
    if not isinstance(labels, list) or len(labels) != count or not all(type(y) is int for y in labels):
        raise InputError(f"{blob.name}: the labels are not a list of {count} integers")
    return np.array(labels, np.int64)


read_cifar10_binary = partial(read_binary, label_bytes=1)
read_cifar100_binary = partial(read_binary, label_bytes=2)
read_cifar10_python = partial(read_python, label_key="labels")
read_cifar100_python = partial(read_python, label_key="fine_labels")
