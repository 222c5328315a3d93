"""Pickles as inert values: what is read, what is refused, and that nothing in them is looked up."""

import pickle
from collections import OrderedDict
from typing import Any

import pytest

from pwoa.storage.pickles import (
    LARGEST_DEPTH,
    CodeError,
    Name,
    Node,
    PickleError,
    TruncatedError,
    read_pickle,
)


def read(content: bytes) -> Any:
    return read_pickle(content, {"collections.OrderedDict"}.__contains__)[0]


def plain(value: Any) -> Any:
    """Return inert containers as those of Python."""
    if not isinstance(value, Node):
        return value
    values = [plain(item) for item in value.items]
    if value.kind == "dict":
        return dict(zip(values[::2], values[1::2], strict=True))
    return tuple(values) if value.kind == "tuple" else values


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, 255, 65_535, -1, 2**31, -(2**100), 1.5, "", "∞", "x" * 300, [], (), {}, (1,) * 5),
        [1, (2, [3])],
        {"a": {1: 2.5, None: (4, 5)}, "b": list(range(3000))},
        {(1, "a"): 2},
    ],
)
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    content = pickle.dumps(value, protocol)
    found, end = read_pickle(content + b"rest", lambda name: False)
    assert plain(found) == value
    assert end == len(content)


def test_a_call_is_kept_and_not_made() -> None:
    call = read(pickle.dumps(OrderedDict(a=1, b=2), 2))
    assert call.kind == "call"
    assert call.items[0] == Name("collections.OrderedDict")
    assert call.items[2:] == ["a", 1, "b", 2]


def test_a_name_that_the_reader_does_not_know_is_refused() -> None:
    with pytest.raises(CodeError, match=r"^builtins\.print$|^__builtin__\.print$"):
        read(pickle.dumps(print, 2))


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_is_cut_off_is_truncated_or_refused(protocol: int) -> None:
    content = pickle.dumps({"a": [1, 2.5, "text"], 7: (300, 70_000)}, protocol)
    for end in range(len(content)):
        with pytest.raises(PickleError):
            read(content[:end])
    with pytest.raises(TruncatedError):
        read(content[:-1])


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_depth_has_a_limit() -> None:
    read(pickle.dumps(nested(LARGEST_DEPTH), 2))
    with pytest.raises(PickleError, match="nested more than"):
        read(pickle.dumps(nested(LARGEST_DEPTH + 1), 2))


def test_what_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append([value])
    with pytest.raises(PickleError, match="changed after its use"):
        read(pickle.dumps(value, 2))
