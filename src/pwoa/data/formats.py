"""What official files are made of: bytes with a name, compression, archives, and MNIST's idx format.

Nothing in a file is trusted: every reader checks what it was given and says what is wrong with which file.
"""

import gzip
import lzma
import math
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from pwoa.errors import InputError
from pwoa.storage.reading import open_file

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
WEB_PAGE = (b"<!doctype", b"<html", b"<head", b"<?xml")
UNSIGNED_BYTES = 0x08
TAR_BLOCK, MEMBERS = 512, 1_000
LARGEST = 256 << 20
"""Bytes of an official file or of all that is in an archive; CIFAR's have 186 million."""

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Blob:
    """The content of one file, and the name that messages call it by."""

    name: str
    content: bytes


class Split(NamedTuple):
    """One split as it was read: pixels [N, C, H, W] and labels [N]."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


def is_web_page(head: bytes) -> bool:
    """Tell whether a file that begins so is a web page."""
    return head[:256].lstrip().lower().startswith(WEB_PAGE)


def check_not_web_page(blob: Blob, kind: str) -> None:
    """Refuse a web page in the place of a file of some kind."""
    if is_web_page(blob.content):
        raise InputError(f"{blob.name} is a web page, not {kind}: download the file itself")


def check_length(blob: Blob, expected: int) -> None:
    """Refuse a file that has not exactly so many bytes."""
    size = len(blob.content)
    if size < expected:
        raise InputError(f"{blob.name} is truncated: {size} bytes found, {expected} expected; fetch the file again")
    if size > expected:
        raise InputError(f"{blob.name} is too long: {size} bytes found, {expected} expected")


def decompress(blob: Blob, limit: int) -> Blob:
    """Unpack a .gz or .xz file, which its first bytes tell; anything else is returned as it is.

    A compressed file that ends early gives what can be read, for the reader to say how much is missing; of one with
    more than `limit` bytes inside comes one byte more than that.
    """
    try:
        if blob.content.startswith(GZIP):
            return Blob(blob.name, zlib.decompressobj(wbits=31).decompress(blob.content, limit + 1))
        if blob.content.startswith(XZ):
            unpacker = lzma.LZMADecompressor(memlimit=LARGEST)
            return Blob(blob.name, unpacker.decompress(blob.content, limit + 1))
    except (zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{blob.name} is damaged and cannot be decompressed ({error}); fetch it again") from None
    return blob


def read_idx(blob: Blob, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read the unsigned bytes of an idx file, which must have the given shape."""
    header = 4 + 4 * len(shape)
    blob = decompress(blob, header + math.prod(shape))
    kind = f"an idx file of {'images' if len(shape) > 1 else 'labels'}"
    check_not_web_page(blob, kind)
    start, magic = blob.content[:4], bytes([0, 0, UNSIGNED_BYTES, len(shape)])
    if not magic.startswith(start):  # a shorter file is truncated, which its length tells
        raise InputError(f"{blob.name} is not {kind}: it starts with {start.hex()}, expected {magic.hex()}")
    if len(blob.content) < header:
        check_length(blob, header + math.prod(shape))
    actual = struct.unpack(f">{len(shape)}I", blob.content[4:header])
    if actual != shape:
        raise InputError(f"{blob.name} holds data of shape {actual}, expected {shape}")
    check_length(blob, header + math.prod(shape))
    return np.frombuffer(blob.content, np.uint8, offset=header).reshape(shape)


def read_idx_split(blobs: Sequence[Blob], shape: Shape, count: int) -> Split:
    """Read a split from two idx files, images and labels; idx images are grey, [N, H, W]."""
    images, labels = blobs
    pixels = read_idx(images, (count, *shape[1:]))
    return Split(pixels[:, None].copy(), read_idx(labels, (count,)).astype(np.int64))


def read_members(archive: Path, folder: str, names: Iterable[str]) -> dict[str, Blob]:
    """Read the files `folder/name` of a .tar or .tar.gz archive, by name, in one pass.

    Only plain files are read; whatever else tar knows (links, holes, longer names) is passed over.
    """
    wanted = {f"{folder}/{name}": name for name in names}
    members: dict[str, Blob] = {}
    with open_file(archive) as file:
        start = file.read(256)
        check_not_web_page(Blob(str(archive), start), "an archive")
        file.seek(0)
        try:
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if start.startswith(GZIP) else file
            for path, content in _tar_files(stream, wanted):
                members[wanted[path]] = Blob(f"{archive}:{path}", content)
                if len(members) == len(wanted):
                    break
        except (ValueError, EOFError, zlib.error, OSError) as error:
            size = archive.stat().st_size
            raise InputError(
                f"{archive} is truncated or damaged: {size} bytes found ({error}); fetch it again"
            ) from None
    if missing := sorted(path for path, name in wanted.items() if name not in members):
        raise InputError(f"{archive} does not hold {', '.join(missing)}")
    return members


def _tar_files(stream: IO[bytes], wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Give the path and content of the wanted plain files in a tar archive, up to its end."""
    left = LARGEST
    for _ in range(MEMBERS):
        header = stream.read(TAR_BLOCK)
        if not any(header):  # the end is marked by zeros
            return
        checksum = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
        if len(header) < TAR_BLOCK or _octal(header[148:156]) != checksum:
            raise ValueError("a header in it is damaged")
        size, prefix = _octal(header[124:136]), header[345:500] if header[257:262] == b"ustar" else b""
        left -= size + TAR_BLOCK
        if left < 0:
            raise ValueError(f"there are more than {LARGEST:,} bytes inside")
        path = b"/".join(part for part in (_until_null(prefix), _until_null(header[:100])) if part).decode("latin1")
        content = stream.read(size + -size % TAR_BLOCK)
        if len(content) < size:
            raise EOFError("it ends too early")
        if header[156:157] in (b"0", b"\0") and path in wanted:
            yield path, content[:size]


def _octal(field: bytes) -> int:
    digits = _until_null(field).strip()
    if not digits.isdigit():
        raise ValueError("a header in it is damaged")
    return int(digits, 8)


def _until_null(field: bytes) -> bytes:
    return field.partition(b"\0")[0]
