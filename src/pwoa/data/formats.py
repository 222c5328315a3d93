"""What official files are made of: bytes with a name, compression, archives, and MNIST's idx format.

Nothing in a file is trusted: every reader checks what it was given and says what is wrong with which file.
"""

import lzma
import math
import struct
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pwoa.errors import InputError

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
WEB_PAGE = (b"<!doctype", b"<html", b"<head", b"<?xml")
UNSIGNED_BYTES = 0x08

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


def decompress(blob: Blob) -> Blob:
    """Unpack a .gz or .xz file, which its first bytes tell; anything else is returned as it is.

    A compressed file that ends early gives what can be read, for the reader to say how much is missing.
    """
    try:
        if blob.content.startswith(GZIP):
            return Blob(blob.name, zlib.decompressobj(wbits=31).decompress(blob.content))
        if blob.content.startswith(XZ):
            return Blob(blob.name, lzma.LZMADecompressor().decompress(blob.content))
    except (zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{blob.name} is damaged and cannot be decompressed ({error}); fetch it again") from None
    return blob


def read_idx(blob: Blob, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read the unsigned bytes of an idx file, which must have the given shape."""
    blob = decompress(blob)
    kind = f"an idx file of {'images' if len(shape) > 1 else 'labels'}"
    check_not_web_page(blob, kind)
    start, magic = blob.content[:4], bytes([0, 0, UNSIGNED_BYTES, len(shape)])
    if not magic.startswith(start):  # a shorter file is truncated, which its length tells
        raise InputError(f"{blob.name} is not {kind}: it starts with {start.hex()}, expected {magic.hex()}")
    header = 4 + 4 * len(shape)
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
    """Read the files `folder/name` of the archive, by name, in one pass."""
    wanted = {f"{folder}/{name}": name for name in names}
    members: dict[str, Blob] = {}
    with archive.open("rb") as file:
        check_not_web_page(Blob(str(archive), file.read(256)), "an archive")
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = wanted.get(member.name)
                content = tar.extractfile(member) if name and member.isfile() else None
                if name and content:
                    members[name] = Blob(f"{archive}:{member.name}", content.read())
                if len(members) == len(wanted):
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        size = archive.stat().st_size
        raise InputError(f"{archive} is truncated or damaged: {size} bytes found ({error}); fetch it again") from None
    if missing := sorted(path for path, name in wanted.items() if name not in members):
        raise InputError(f"{archive} does not hold {', '.join(missing)}")
    return members
