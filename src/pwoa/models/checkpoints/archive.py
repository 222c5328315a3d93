"""A file of torch.save, walked before torch loads it: the directory of the archive, and the opcodes of its pickles.

torch's tensors-only loader runs no code, but trusts sizes: a kilobyte can make it take gigabytes or crash. Here every
storage must be in the file with the size that is claimed, every tensor must lie in its storage, and a call that is not
understood is refused. The weights themselves are not read.
"""

import os
import struct
from typing import IO

from pwoa.errors import InputError
from pwoa.models.checkpoints.calls import Walk, text_of
from pwoa.storage.pickles import CodeError, Node, PickleError, TruncatedError, read_pickle

PICKLE_LIMIT = 32 << 20
"""Bytes of a pickle without its tensors."""
_HEADS = (1 << 16, 1 << 20, PICKLE_LIMIT)
"""Bytes of the older form that are read first, and more if they are not enough: most pickles are short."""
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001


def check_torch_file(file: IO[bytes], name: str) -> None:
    """Refuse a file that torch.load should not see; `name` is for the message. The file is left at its beginning."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        head = file.read(4)
        if head == b"PK\x03\x04":
            _check_zip(file, size)
        else:
            _check_legacy(file, size)
    except CodeError as error:
        dill = ", with the model as Madry's robustness loads it" if str(error).startswith("dill.") else ""
        raise InputError(
            f"{name} is refused: it is not a plain file of tensors (a pickle with code in it, {error}, or no "
            f"checkpoint at all); convert it where you trust it: torch.save(model.state_dict(), …){dill}"
        ) from None
    except TruncatedError:
        raise InputError(f"{name} is not a checkpoint, or not all of it: it ends too early; fetch it again") from None
    except PickleError as error:
        raise InputError(f"{name} is not a checkpoint, of torch or safetensors: {error}") from None
    file.seek(0)


def _check_zip(file: IO[bytes], size: int) -> None:
    """Walk the form that torch has written since version 1.6: an archive of a pickle, and a record a storage."""
    records = _directory(file, size)
    if "constants.pkl" in records:
        raise PickleError("it is TorchScript; save the network's state_dict with torch.save")
    if "data.pkl" not in records:
        raise PickleError("the archive has no data.pkl")
    start, length = records["data.pkl"]
    if length > PICKLE_LIMIT:
        raise PickleError(f"its pickle is larger than {PICKLE_LIMIT:,} bytes")
    walk = Walk()
    walk.check(read_pickle(_record(file, start, length, size), walk.knows)[0])
    for key, claimed in walk.storages.items():
        if records.get(f"data/{key}".lower(), (0, -1))[1] < claimed:
            raise PickleError("a storage in it is not there, or smaller than is claimed")


def _directory(file: IO[bytes], size: int) -> dict[str, tuple[int, int]]:
    """Return where the local header of each record is, and the record's size, by its name in lower case.

    Read strictly, so that there is no second way to read it: nothing after the directory, nothing compressed, no name
    twice, all in one folder, and together no more than the file.
    """
    end = _at(file, size - 22, 22)
    count, length, offset, comment = struct.unpack("<10xHIIH", end)
    last = size - 22
    if end[:4] != b"PK\x05\x06" or comment:
        raise TruncatedError
    locator = _at(file, size - 42, 20)
    if locator[:4] == b"PK\x06\x07":
        last = size - 98
        wide = _at(file, last, 56)
        if wide[:4] != b"PK\x06\x06" or struct.unpack("<8xQ4x", locator)[0] != last:
            raise PickleError("the directory of the archive is damaged")
        count, length, offset = struct.unpack("<32xQQQ", wide)
    if offset + length != last or length > PICKLE_LIMIT:
        raise PickleError("the directory of the archive is damaged")
    content, at, total, folder = _at(file, offset, length), 0, 0, ""
    records: dict[str, tuple[int, int]] = {}
    for _ in range(min(count, length)):
        if content[at : at + 4] != b"PK\x01\x02" or len(content) < at + 46:
            raise PickleError("the directory of the archive is damaged")
        flags, method, packed, unpacked, n_name, n_extra, n_comment, start = struct.unpack_from(
            "<8xHH8xIIHHH8xI", content, at
        )
        extra = content[at + 46 + n_name : at + 46 + n_name + n_extra]
        packed, unpacked, start = _wide(extra, unpacked, packed, start)
        top, _, name = content[at + 46 : at + 46 + n_name].decode("utf-8", "replace").partition("/")
        if method or flags & 1 or packed != unpacked:
            raise PickleError("a record in it is compressed, which torch.save does not do; save it again")
        folder, total, name = folder or top, total + unpacked, name.lower()
        if top != folder or name in records or start + 30 + unpacked > offset or total > size:
            raise PickleError("the records of the archive overlap or have the same name")
        records[name] = start, unpacked
        at += 46 + n_name + n_extra + n_comment
    if at != length:
        raise PickleError("the directory of the archive is damaged")
    return records


def _wide(extra: bytes, unpacked: int, packed: int, start: int) -> tuple[int, int, int]:
    """Return the sizes and the place of a record, from its field for large files where 32 bits were not enough."""
    values = [unpacked, packed, start]
    while len(extra) >= 4 and max(values) == 0xFFFFFFFF:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == 1:
            field = extra[4 : 4 + length]
            for place, value in enumerate(values):
                if value == 0xFFFFFFFF and len(field) >= 8:
                    values[place], field = struct.unpack_from("<Q", field)[0], field[8:]
            break
        extra = extra[4 + length :]
    return values[1], values[0], values[2]


def _record(file: IO[bytes], start: int, length: int, size: int) -> bytes:
    header = _at(file, start, 30)
    skipped = sum(struct.unpack("<26xHH", header))
    if header[:4] != b"PK\x03\x04" or start + 30 + skipped + length > size:
        raise PickleError("a record of the archive is damaged")
    return _at(file, start + 30 + skipped, length)


def _at(file: IO[bytes], start: int, length: int) -> bytes:
    if start < 0:
        raise TruncatedError
    file.seek(start)
    content = file.read(length)
    if len(content) < length:
        raise TruncatedError
    return content


def _check_legacy(file: IO[bytes], size: int) -> None:
    """Walk the form before: a number, a version, the system, the pickle, the keys of the storages, the storages."""
    for length in _HEADS:
        content = _at(file, 0, min(length, size))
        try:
            walk, keys, end = _read_legacy(content)
            break
        except TruncatedError:
            if len(content) in (size, PICKLE_LIMIT):
                raise
    if len(set(keys)) != len(keys) or set(keys) != set(walk.storages):
        raise PickleError("the storages are not those that its tensors use")
    if end + sum(walk.storages.values()) + 8 * len(keys) > size:
        raise TruncatedError


def _read_legacy(content: bytes) -> tuple[Walk, list[str], int]:
    if content[257:262] == b"ustar":
        raise PickleError("it is in the tar format of torch 0.1; save it again with a later torch")
    walk, at = Walk(), 0
    for expected in (_MAGIC, _VERSION, None):
        value, at = read_pickle(content, lambda name: False, at)
        if expected not in (None, value):
            raise PickleError("it does not begin as a file of torch.save does")
    value, at = read_pickle(content, walk.knows, at)
    walk.check(value)
    keys, at = read_pickle(content, lambda name: False, at)
    if type(keys) is not Node or keys.kind != "list":
        raise PickleError("it does not list its storages")
    return walk, [text_of(key) for key in keys.items], at
