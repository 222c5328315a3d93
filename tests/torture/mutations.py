"""Damage done to valid files, the same for the same seed: to bytes, to JSON and TOML, to the opcodes of a pickle."""

import copy
import io
import json
import pickletools
import random
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**61 - 1, 2**62, 2**63 - 1, 2**64 - 1)
TOKENS = (
    *(b"[", b"{", b'"', b"\n", b"\0", b"]]", b"}}", b"=", b"..", b"../../x", b"\x1b[2J", b"\xff\xfe", b"\xed\xa0\x80"),
    *(b"NaN", b"Infinity", b"1e400", b"-1", b"9" * 5_000, b"[" * 2_000, b'{"a":' * 2_000, b"true", b"null", b"1e-400"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, -(10**400), 0.5, 1e308, 1e-320),
    *(float("nan"), float("inf"), "", "a", "\n", "\x1b[2J", "..", "x" * 10_000, "1/0", "1e999", "nan"),
    *([], {}, [[]], [0] * 1_000, {"a": {}}, [None], ["a", 1], {"": 0}),
)
OPCODES = (
    *(b"(", b")", b"]", b"}", b"N", b"\x88", b"\x89", b"t", b"a", b"e", b"s", b"u", b"R", b"b", b"Q", b"0", b"2", b"."),
    *(b"\x81", b"\x85", b"\x86", b"\x87", b"\x8f", b"h\0", b"h\1", b"q\0", b"q\1", b"j\xff\xff\xff\xff", b"K\xff"),
    *(
        b"M\xff\xff",
        b"J\xff\xff\xff\x7f",
        b"J\xff\xff\xff\xff",
        b"\x8a\x08" + b"\xff" * 7 + b"\x3f",
        b"G" + b"\x7f" * 8,
    ),
    *(b"X\x01\0\0\0a", b"U\x01a", b"cbuiltins\nset\n", b"ccollections\nOrderedDict\n", b"ctorch\nFloatStorage\n"),
    *(b"ctorch\nSize\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"cos\nsystem\n", b"ctorch\nfloat16\n"),
    *(b"ctorch\nFloatTensor\n", b"cbuiltins\nbytearray\n", b"ctorch._utils\n_rebuild_qtensor\n"),
)


def mutate(content: bytes, chance: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """Change a few of the bytes: overwrite, insert, remove, repeat, cut off, or mix with another file."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at, length = chance.randrange(len(changed) + 1), chance.choice((1, 2, 4, 8, 16, 100))
        kind = chance.randrange(9)
        if kind == 0 and changed:
            changed[at % len(changed)] ^= 1 << chance.randrange(8)
        elif kind == 1 and changed:
            changed[at % len(changed)] = chance.randrange(256)
        elif kind == 2:
            changed[at:at] = chance.randbytes(length)
        elif kind == 3:
            del changed[at : at + length]
        elif kind == 4:
            changed[at:at] = changed[at : at + length] * chance.choice((1, 2, 50))
        elif kind == 5:
            number = struct.pack(chance.choice((">", "<")) + "Q", chance.choice(NUMBERS))
            part = chance.choice((number, number[:4], number[4:], number[:2]))
            changed[at : at + len(part)] = part
        elif kind == 6:
            token = chance.choice(TOKENS)
            changed[at : at + chance.choice((0, len(token)))] = token
        elif kind == 7 and chance.random() < 0.3:
            del changed[at:]
        elif kind == 8 and others:
            other = chance.choice(others)
            start = chance.randrange(len(other))
            changed[at : at + length] = other[start : start + length]
    return bytes(changed)


def mutate_json(content: bytes, chance: random.Random) -> bytes:
    """Put another value in some place of a JSON document, or take the place out."""
    tree = json.loads(content)
    for _ in range(chance.choice((1, 1, 2, 3))):
        node = tree
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = chance.choice(keys)
            if not isinstance(node[key], (dict, list)) or not node[key] or chance.random() < 0.4:
                if isinstance(node, dict) and chance.random() < 0.1:
                    del node[key]
                else:
                    node[key] = copy.deepcopy(chance.choice(VALUES))
                break
            node = node[key]
    return json.dumps(tree).encode()


def mutate_toml(content: bytes, chance: random.Random) -> bytes:
    """Put another value behind some key of a TOML document, or change a line of it."""
    lines = content.decode().splitlines()
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(lines))
        key, equals, _ = lines[at].partition(" = ")
        if equals and chance.random() < 0.8:
            value = json.dumps(chance.choice(VALUES)).replace("NaN", "nan").replace("Infinity", "inf")
            lines[at] = f"{key} = {value.replace(': ', ' = ')}"
        else:
            lines[at] = mutate(lines[at].encode(), chance).decode("latin1")
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def mutate_pickle(content: bytes, chance: random.Random) -> bytes:
    """Remove, repeat, exchange or add some of the opcodes of a pickle."""
    places = [place for _, _, place in pickletools.genops(content) if place is not None]
    steps = [content[a:b] for a, b in zip(places, [*places[1:], len(content)], strict=True)]
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        at, other = chance.randrange(len(steps)), chance.randrange(len(steps))
        kind = chance.randrange(5)
        if kind == 0:
            steps[at : at + 1] = []
        elif kind == 1:
            steps[at:at] = [steps[other]] * chance.choice((1, 1, 2, 200))
        elif kind == 2:
            steps[at] = steps[other]
        elif kind == 3:
            steps[at] = chance.choice(OPCODES)
        else:
            steps[at:at] = [chance.choice(OPCODES)] * chance.choice((1, 1, 3, 5_000))
        steps = steps or [b"."]
    return b"".join(steps)


def mutate_archive(content: bytes, chance: random.Random) -> bytes:
    """Damage the pickle in a file of torch, and write the archive anew, so that its checksums are right."""
    return _archive(chance.choice((mutate_pickle, mutate))(_records(content)["archive/data.pkl"], chance), content)


def _records(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as source:
        return {name: source.read(name) for name in source.namelist()}


def _archive(pickled: bytes, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, record in _records(content).items():
            target.writestr(name, pickled if name == "archive/data.pkl" else record)
    return buffer.getvalue()


@dataclass(frozen=True)
class Part:
    """A reader, a valid file for it, the ways to damage that file, and how often it is drawn beside the others."""

    file: str
    valid: bytes
    read: Callable[[Path], object]
    ways: tuple[Callable[[bytes, random.Random], bytes], ...] = (mutate,)
    weight: int = 1

    def input(self, seed: int) -> bytes:
        """Return the damaged file of a seed."""
        chance = random.Random(seed)
        return chance.choice(self.ways)(self.valid, chance)
