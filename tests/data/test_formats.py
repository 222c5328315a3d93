from __future__ import annotations

import gzip
import lzma
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pwoa.data.formats import Blob, decompress, read_idx, read_idx_split, read_members
from pwoa.errors import InputError

PIXELS = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
PLAIN = struct.pack(">IIII", 2051, 2, 3, 4) + PIXELS.tobytes()  # MNIST's header, as its page defines it
LABELS = struct.pack(">II", 2049, 2) + bytes([7, 1])
WEB_PAGE = b"\n<!DOCTYPE html><html><body>Sign in</body></html>"


@pytest.mark.parametrize("content", [PLAIN, gzip.compress(PLAIN, mtime=0), lzma.compress(PLAIN)])
def test_compression_is_told_by_content(content: bytes) -> None:
    assert np.array_equal(read_idx(Blob("images", content), (2, 3, 4)), PIXELS)


def test_a_split_has_a_channel_and_integer_labels() -> None:
    split = read_idx_split([Blob("x", PLAIN), Blob("y", gzip.compress(LABELS, mtime=0))], (1, 3, 4), 2)
    assert np.array_equal(split.pixels, PIXELS[:, None])
    assert split.labels.tolist() == [7, 1]
    assert split.labels.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (PLAIN[:-5], "a/b is truncated: 35 bytes found, 40 expected"),
        (PLAIN[:7], "a/b is truncated: 7 bytes found, 40 expected"),
        (b"", "a/b is truncated: 0 bytes found, 40 expected"),
        (PLAIN + b"!", "a/b is too long: 41 bytes found, 40 expected"),
        (WEB_PAGE, "a/b is a web page, not an idx file of images"),
        (gzip.compress(WEB_PAGE, mtime=0), "a/b is a web page, not an idx file of images"),
        (LABELS, "a/b is not an idx file of images: it starts with 00000801, expected 00000803"),
        (gzip.compress(PLAIN, mtime=0)[:20] + b"damage" * 9, "a/b is damaged and cannot be decompressed"),
        (lzma.compress(PLAIN)[:20] + b"damage" * 9, "a/b is damaged and cannot be decompressed"),
        (struct.pack(">IIII", 2051, 9, 3, 4) + b"0" * 108, r"shape \(9, 3, 4\), expected \(2, 3, 4\)"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_idx(Blob("a/b", content), (2, 3, 4))


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_truncated_compressed_file_says_how_much_is_missing(compress: type) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (50, 40, 40), dtype=np.uint8)
    content = compress(struct.pack(">IIII", 2051, *noise.shape) + noise.tobytes())
    with pytest.raises(InputError, match=r"x is truncated: \d+ bytes found, 80016 expected"):
        read_idx(Blob("x", content[: len(content) // 2]), noise.shape)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_no_more_is_unpacked_than_the_data_set_has(compress: Callable[[bytes], bytes]) -> None:
    bomb = Blob("bomb", compress(PLAIN + bytes(300 << 20)))
    assert len(decompress(bomb, 100).content) == 101
    with pytest.raises(InputError, match="bomb is too long: 41 bytes found, 40 expected"):
        read_idx(bomb, (2, 3, 4))


def tar_header(name: str, size: int, kind: bytes = b"0") -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.USTAR_FORMAT)


SPARSE = tar_header("pax", 512, b"x") + b"27 GNU.sparse.size=9999999\n".ljust(512, b"\0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar_header("cifar/x", 1 << 32), "more than 268,435,456 bytes inside"),
        (b"".join(tar_header("cifar/x", 200 << 20) for _ in range(3)), "ends too early"),
        (tar_header("cifar/a", 5)[:148] + b"garbage!" + bytes(356), "a header in it is damaged"),
        (tar_header("cifar/b", 0) * 2_000, "does not hold cifar/a"),
        (tar_header("cifar/a", 9, b"S") + bytes(512), "does not hold cifar/a"),
        (tar_header("cifar/a", 9, b"1") + bytes(512), "does not hold cifar/a"),
        (bytes(10_000), "does not hold cifar/a"),
        (b"", "does not hold cifar/a"),
    ],
    ids=["size", "bomb", "checksum", "many", "sparse", "link", "zeros", "empty"],
)
def test_what_is_wrong_with_an_archive_is_said_in_a_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.tar.gz"
    for packed in (content, gzip.compress(content, mtime=0)):
        path.write_bytes(packed)
        with pytest.raises(InputError, match=message) as caught:
            read_members(path, "cifar", ["a"])
        assert "\n" not in str(caught.value)


def test_what_a_stranger_adds_to_an_archive_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(SPARSE + tar_header("cifar", 0, b"5") + tar_header("cifar/a", 3) + b"abc".ljust(512, b"\0"))
    assert read_members(path, "cifar", ["a"])["a"].content == b"abc"
