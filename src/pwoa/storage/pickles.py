"""A pickle read as inert values: no name in it is looked up, and nothing is called.

What it would call is kept as a `Node` of kind `call`, for the reader to judge. Depth, count and size are limited, a
container is never changed once another holds it, so that nothing contains itself, and whatever is not among the
opcodes below is refused.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LARGEST_COUNT = 1_000_000
"""Opcodes in a pickle; the largest we know, of CIFAR-100, has 300,000."""
LARGEST_DEPTH = 64
LARGEST_WEIGHT = 4 * LARGEST_COUNT
"""Values under one another, those that are shared counted at each place: whoever walks through them comes to an end."""
LARGEST_KEY = 32
LARGEST_INTEGER = 2**63
_COMPOUND_KEYS = 10_000
"""Keys that are tuples, whose hashes can be made to collide, in a whole pickle."""


class PickleError(ValueError):
    """Why a pickle is refused, in one line."""


class TruncatedError(PickleError):
    """The pickle goes on after the end of the content."""


class CodeError(PickleError):
    """The pickle names something that its reader does not know."""


@dataclass(frozen=True, slots=True)
class Name:
    """What a pickle calls by name, such as `collections.OrderedDict`."""

    text: str


class Node:
    """A list, a tuple, a set, a dict (keys and values in turn), a call, or a persistent id.

    A call has the function, its arguments, and then the keys and values that its result is filled with in turn;
    `state` is what the result is given last, if anything. depth, weight: of all that is under it.
    """

    __slots__ = ("closed", "depth", "items", "kind", "state", "weight")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.items: list[Any] = []
        self.state: Any = None
        self.depth = 1
        self.weight = 1
        self.closed = False

    def add(self, values: list[Any]) -> None:
        """Put values in, which from then on stay as they are."""
        self.hold(values)
        self.items += values

    def hold(self, values: list[Any]) -> None:
        """Take values into account that are under this one, from then on as they are."""
        for value in values:
            if type(value) is Node:
                value.closed = True
                self.depth = max(self.depth, value.depth + 1)
                self.weight += value.weight
        if self.closed:
            raise PickleError("a container in it is changed after its use")
        self.weight += len(values)
        if self.depth > LARGEST_DEPTH:
            raise PickleError(f"it is nested more than {LARGEST_DEPTH} deep")
        if self.weight > LARGEST_WEIGHT:
            raise PickleError(f"it holds more than {LARGEST_WEIGHT:,} values, counted where they are used")


def read_pickle(content: bytes, known: Callable[[str], bool], start: int = 0) -> tuple[Any, int]:
    """Read the pickle that begins at `start`; return its value, and where it ends.

    Example: `read_pickle(pickle.dumps(3), {"numpy.ndarray"}.__contains__)` is `(3, 5)`. Strings of Python 2 are bytes.
    known: tells whether the pickle may name this; anything else is a CodeError.
    """
    machine, steps = _Machine(content, known, start), _STEPS
    try:
        for _ in range(LARGEST_COUNT):
            code = content[machine.at]
            machine.at += 1
            if code == _STOP:
                return machine.result(), machine.at
            steps[code](machine)
    except KeyError:
        raise PickleError(f"an opcode in it, {bytes([code])!r}, is not one of plain values") from None
    except struct.error:
        raise TruncatedError("it ends too early") from None
    except IndexError:
        if machine.at >= len(content):
            raise TruncatedError("it ends too early") from None
        raise PickleError("its stack is empty where a value is used") from None
    raise PickleError(f"it has more than {LARGEST_COUNT:,} opcodes")


_STOP = ord(".")
_BYTE, _SHORT, _INTEGER, _SIGNED, _FLOAT = map(struct.Struct, ("<B", "<H", "<I", "<i", ">d"))


class _Machine:
    """The stack and the memo of a pickle, and what each opcode does to them."""

    def __init__(self, content: bytes, known: Callable[[str], bool], start: int) -> None:
        self.content, self.known, self.at = content, known, start
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.compound_keys = 0

    def result(self) -> Any:
        """Return the value of the pickle, under which everything else in it must be."""
        if self.marks or len(self.stack) != 1:
            raise PickleError("it has values beside its result")
        return self.stack[0]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def skip(self, size: int) -> None:
        self.at += size

    def number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self.content, self.at)
        self.at += form.size
        return value

    def take(self, form: struct.Struct) -> bytes:
        size = self.number(form)
        piece = self.content[self.at : self.at + size]
        self.at += size
        if len(piece) < size:
            raise TruncatedError("it ends too early")
        return piece

    def line(self) -> bytes:
        end = self.content.find(b"\n", self.at, self.at + 1_000)
        if end < 0:
            raise PickleError("a name in it does not end")
        line = self.content[self.at : end]
        self.at = end + 1
        return line

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []
        if len(self.marks) > 2 * LARGEST_DEPTH:
            raise PickleError(f"it is nested more than {LARGEST_DEPTH} deep")

    def since_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.marks.pop()
        return values

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise PickleError("its stack is empty where a value is used")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def gather(self, kind: str, values: list[Any]) -> None:
        node = Node(kind)
        if values:
            node.add(values)
        self.stack.append(node)

    def extend(self, kind: str, values: list[Any]) -> None:
        target = self.stack[-1]
        fits = type(target) is Node and (target.kind == kind or (kind == "dict" and target.kind == "call"))
        if not fits or (kind == "dict" and len(values) % 2):
            raise PickleError(f"values in it are for a {kind} that is not there")
        if kind == "dict":
            for key in values[::2]:
                self._check_key(key)
        target.add(values)

    def _check_key(self, key: Any) -> None:
        """Refuse keys that are slow to hash, or whose hashes may have been made to collide."""
        if type(key) is Node:
            self.compound_keys += 1
            fits = key.kind == "tuple" and key.weight <= LARGEST_KEY and self.compound_keys <= _COMPOUND_KEYS
        else:
            fits = type(key) is not int or abs(key) <= LARGEST_INTEGER
        if not fits:
            raise PickleError("a key in it is not text or a number of usual size")

    def name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise PickleError("a name in it is not text")
        text = f"{module}.{name}"
        if not self.known(text):
            raise CodeError(text if text.isprintable() else ascii(text))
        self.stack.append(Name(text))

    def build(self) -> None:
        (state,) = self.pop(1)
        target = self.stack[-1]
        if type(target) is not Node or target.kind != "call" or target.state is not None:
            raise PickleError("it gives attributes to what has none")
        target.hold([state])
        target.state = state

    def keep(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def recall(self, place: int) -> None:
        if place not in self.memo:
            raise PickleError("it recalls a value that it never kept")
        self.stack.append(self.memo[place])


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise PickleError("a text in it is not in UTF-8") from None


_OPCODES: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": lambda m: m.skip(1),  # PROTO
    b"\x95": lambda m: m.skip(8),  # FRAME
    b"(": _Machine.mark,
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number(_BYTE)),
    b"M": lambda m: m.push(m.number(_SHORT)),
    b"J": lambda m: m.push(m.number(_SIGNED)),
    b"G": lambda m: m.push(m.number(_FLOAT)),
    b"\x8a": lambda m: m.push(int.from_bytes(m.take(_BYTE), "little", signed=True)),  # LONG1
    b"X": lambda m: m.push(_text(m.take(_INTEGER))),
    b"\x8c": lambda m: m.push(_text(m.take(_BYTE))),
    b"T": lambda m: m.push(m.take(_INTEGER)),
    b"U": lambda m: m.push(m.take(_BYTE)),
    b"B": lambda m: m.push(m.take(_INTEGER)),
    b"C": lambda m: m.push(m.take(_BYTE)),
    b")": lambda m: m.gather("tuple", []),
    b"]": lambda m: m.gather("list", []),
    b"}": lambda m: m.gather("dict", []),
    b"\x8f": lambda m: m.gather("set", []),
    b"t": lambda m: m.gather("tuple", m.since_mark()),
    b"\x85": lambda m: m.gather("tuple", m.pop(1)),
    b"\x86": lambda m: m.gather("tuple", m.pop(2)),
    b"\x87": lambda m: m.gather("tuple", m.pop(3)),
    b"a": lambda m: m.extend("list", m.pop(1)),
    b"e": lambda m: m.extend("list", m.since_mark()),
    b"s": lambda m: m.extend("dict", m.pop(2)),
    b"u": lambda m: m.extend("dict", m.since_mark()),
    b"c": lambda m: m.name(_text(m.line()), _text(m.line())),
    b"\x93": lambda m: m.name(*m.pop(2)),  # STACK_GLOBAL
    b"R": lambda m: m.gather("call", m.pop(2)),
    b"\x81": lambda m: m.gather("call", m.pop(2)),  # NEWOBJ
    b"b": _Machine.build,
    b"Q": lambda m: m.gather("persistent", m.pop(1)),
    b"h": lambda m: m.recall(m.number(_BYTE)),
    b"j": lambda m: m.recall(m.number(_INTEGER)),
    b"q": lambda m: m.keep(m.number(_BYTE)),
    b"r": lambda m: m.keep(m.number(_INTEGER)),
    b"\x94": lambda m: m.keep(len(m.memo)),  # MEMOIZE
}
_STEPS = {ord(code): step for code, step in _OPCODES.items()}
