from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pwoa.data.cifar import read_cifar10_binary, read_cifar10_python, read_cifar100_binary, read_cifar100_python
from pwoa.data.formats import Blob
from pwoa.errors import InputError

SHAPE = (3, 2, 2)
HASHED_ALIKE = 2**61 - 1
PIXELS = np.arange(4 * 12, dtype=np.uint8).reshape(4, 3, 2, 2)
ROWS = PIXELS.reshape(4, 12)


def blobs(*contents: bytes) -> list[Blob]:
    return [Blob(f"batch {i}", content) for i, content in enumerate(contents)]


def batch(rows: Any = ROWS, key: str = "labels", labels: Any = (3, 1, 4, 1)) -> bytes:
    return pickle.dumps({"data": rows, key: list(labels)}, protocol=4)


def test_binary_records_have_one_label_byte_in_cifar10() -> None:
    first = bytes([9, *ROWS[0], 8, *ROWS[1]])
    second = bytes([7, *ROWS[2], 6, *ROWS[3]])
    split = read_cifar10_binary(blobs(first, second), SHAPE, 4)
    assert np.array_equal(split.pixels, PIXELS)
    assert split.labels.tolist() == [9, 8, 7, 6]


def test_binary_records_have_a_coarse_and_a_fine_label_in_cifar100() -> None:
    content = b"".join(bytes([1, 90 + i, *row]) for i, row in enumerate(ROWS))
    split = read_cifar100_binary(blobs(content), SHAPE, 4)
    assert np.array_equal(split.pixels, PIXELS)
    assert split.labels.tolist() == [90, 91, 92, 93]


def test_truncated_binary_file() -> None:
    with pytest.raises(InputError, match="batch 0 is truncated: 50 bytes found, 52 expected"):
        read_cifar10_binary(blobs(bytes(50)), SHAPE, 4)


@pytest.mark.parametrize("read", [read_cifar10_binary, read_cifar10_python])
def test_web_page(read: Callable[..., object]) -> None:
    with pytest.raises(InputError, match="batch 0 is a web page, not a CIFAR"):
        read(blobs(b"<html>moved</html>"), SHAPE, 4)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_pickled_batches_of_python3(protocol: int, order: Any) -> None:
    rows = np.array(ROWS, order=order)
    if protocol == 2:  # bytes are then a call of a codec, which no published file has
        with pytest.raises(InputError, match="contains code"):
            read_cifar10_python(blobs(pickle.dumps({"data": rows}, protocol=2)), SHAPE, 4)
        return
    content = pickle.dumps({"data": rows, "labels": [3, 1, 4, 1]}, protocol=protocol)
    split = read_cifar10_python(blobs(content), SHAPE, 4)
    assert np.array_equal(split.pixels, PIXELS)
    assert split.labels.tolist() == [3, 1, 4, 1]


def test_cifar100_takes_fine_labels() -> None:
    content = pickle.dumps({"data": ROWS, "coarse_labels": [0, 0, 0, 0], "fine_labels": [99, 1, 2, 3]}, protocol=4)
    assert read_cifar100_python(blobs(content), SHAPE, 4).labels.tolist() == [99, 1, 2, 3]


class Command:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    content = pickle.dumps({"data": ROWS, "labels": Command(tmp_path / "ran")}, protocol=4)
    with pytest.raises(InputError, match=r"batch 0 was refused because it contains code \(.*mkdir\)"):
        read_cifar10_python(blobs(content), SHAPE, 4)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (batch()[:-20], r"batch 0 is truncated: the pickle goes on after the \d+ bytes found"),
        (b"", "batch 0 is truncated"),
        (b"not a pickle", "batch 0 is not a CIFAR batch"),
        (pickle.dumps([1, 2]), "batch 0 is not a CIFAR batch: it has no `data` and `labels`"),
        (batch(key="fine_labels"), "it has no `data` and `labels`"),
        (batch(rows=ROWS[:3]), r"`data` is \(3, 12\), expected a table of bytes of shape \(4, 12\)"),
        (batch(rows=ROWS.astype(np.float32)), "batch 0 is not a CIFAR batch: numbers of type 'f4'"),
        (batch(rows=[1, 2]), "`data` is list, expected a table"),
        (batch(labels=(1, 2, 3)), "not a list of 4 integers"),
        (batch(labels=(1, 2, 3, "4")), "not a list of 4 integers"),
    ],
)
def test_what_is_wrong_with_a_pickle_is_said(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_cifar10_python(blobs(content), SHAPE, 4)


def test_an_array_that_lies_about_its_size_is_refused() -> None:
    content = batch().replace(bytes(ROWS), bytes(ROWS[:, :-1]) + b"xxxx")
    lying = content.replace(b"K\x04K\x0c", b"K\x04K\x7f")
    assert lying != content
    with pytest.raises(InputError, match=r"an array of shape \(4, 127\) with 48 bytes"):
        read_cifar10_python(blobs(lying), SHAPE, 4)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02}(" + b")" + b"\x85" * 200_000 + b"K\x01u.",  # to hash such a key overflows the stack
        b"\x80\x02}()" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(200)) + b"K\x01u.",  # one of 2^200 parts
        b"\x80\x02}(" + b"".join(b"\x8a\x20%sN" % (i * HASHED_ALIKE).to_bytes(32, "little") for i in range(99)) + b"u.",
        b"\x80\x02K\x01r\xff\xff\xff\xff.",  # a memo of 2^32 places
        b"\x80\x02]" + b"]" * 2_000_000 + b".",
        b"\x80\x02]q\x00h\x00a.",
        b"\x80\x02}(U\x04dataB\xff\xff\xff\xffxu.",
        batch(labels=(1, 2, 3, 2**70)),
        batch(labels=(1, 2, 3, True)),
        batch().replace(b"K\x04K\x0c", b"\x8a\x09" + b"\xff" * 8 + b"\x7fK\x00"),
    ],
    ids=["marks", "deep", "exponential", "colliding", "memo", "many", "itself", "size", "labels", "boolean", "shape"],
)
def test_a_hostile_pickle_is_refused_in_a_line_and_soon(content: bytes) -> None:
    start = time.process_time()
    with pytest.raises(InputError, match=r"^batch 0[^\n]{1,200}$"):
        read_cifar10_python(blobs(content), SHAPE, 4)
    assert time.process_time() - start < 5
