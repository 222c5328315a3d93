"""What the calls in a pickle of torch.save would do: which storages they take, and what tensors they make of them."""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from pwoa.storage.pickles import LARGEST_INTEGER, Name, Node, PickleError

_DIMENSIONS = 64
_SHARED, _REPEATED = 8, 16 << 20
"""Tensors may overlap, as tied weights do: together they may be so many times their storages, and so many bytes."""
_SIZES = {
    **dict.fromkeys(("Untyped", "Byte", "Char", "Bool", "QInt8", "QUInt8", "QUInt4x2", "QUInt2x4"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int", "QInt32"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of an element of each kind of storage."""
_WIDEST = 16
_TYPES = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.Size")
_CODECS = ("latin1", "latin-1", "ascii", "utf-8", "utf8")


class Walk:
    """What the calls in a pickle would do: `storages` has the bytes that each is claimed to have, by key."""

    def __init__(self) -> None:
        self.storages: dict[str, int] = {}
        self.bytes = 0
        self.trusted = {_full_name(item) for item in torch.serialization.get_safe_globals()}
        self.kinds: dict[str, str] = {}
        self.rules: dict[str, Callable[[Node, list[Any]], None]] = {
            "collections.OrderedDict": self._ordered,
            "collections.Counter": self._counter,
            "builtins.set": self._set,
            "builtins.complex": self._plain,
            "builtins.bytearray": self._encoded,
            "_codecs.encode": self._encoded,
            "torch.Size": self._plain,
            "torch.device": self._plain,
            "torch.serialization._get_layout": self._plain,
            "torch.nn.parameter.Parameter": self._parameter,
            "torch._utils._rebuild_parameter": self._parameter,
            "torch._utils._rebuild_parameter_with_state": self._parameter,
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._tensor,
            "torch._utils._rebuild_qtensor": self._tensor,
            "torch._utils._rebuild_sparse_tensor": self._sparse,
            "torch._utils._rebuild_meta_tensor_no_storage": self._meta,
            "torch._utils._rebuild_device_tensor_from_cpu_tensor": self._moved,
            "torch._tensor._rebuild_from_type_v2": self._subclass,
        }

    def knows(self, name: str) -> bool:
        """Tell whether a pickle of tensors may have this name in it."""
        return _current(name) in self.rules or name in _TYPES or name in self.trusted or _is_value(name)

    def check(self, root: Any) -> None:
        """Refuse what a call under this value would do to memory, and what is not understood."""
        waiting, seen = [root], set[int]()
        while waiting:
            node = waiting.pop()
            if type(node) is not Node or id(node) in seen:
                continue
            seen.add(id(node))
            if node.kind == "call":
                self._check_call(node)
            elif node.kind == "persistent":
                self._storage(node)
            waiting += node.items
            waiting.append(node.state)
        if self.bytes > _SHARED * sum(self.storages.values()) + _REPEATED:
            raise PickleError("its tensors are many times larger than what the file holds for them")

    def _check_call(self, call: Node) -> None:
        function, args = call.items[:2]
        if type(function) is not Name or type(args) is not Node or args.kind != "tuple":
            raise PickleError("it calls something without a name")
        if function.text in self.trusted:
            return
        rule = self.rules.get(_current(function.text))
        if rule is None:
            raise PickleError(f"it calls {function.text[:100]}, which makes no tensor of the file")
        filled = rule in (self._ordered, self._counter)
        if (len(call.items) > 2 and not filled) or (call.state is not None and rule != self._ordered):
            raise PickleError(f"it fills what {function.text[:100]} makes")
        rule(call, args.items)

    def _plain(self, call: Node, args: list[Any]) -> None:
        """Let pass what is only made of its arguments."""

    def _ordered(self, call: Node, args: list[Any]) -> None:
        """Check an OrderedDict: empty, or of a list of pairs, as Python 2 wrote it; its attributes hide no method."""
        pairs = args[0].items if args and type(args[0]) is Node else []
        for pair in pairs:
            if type(pair) is not Node or len(pair.items) != 2 or type(pair.items[0]) not in (str, bytes):
                raise PickleError("an OrderedDict in it is not made of names and values")
        _check_attributes(call.state, OrderedDict)

    def _counter(self, call: Node, args: list[Any]) -> None:
        if args and not (type(args[0]) is Node and args[0].kind == "dict"):
            raise PickleError("a Counter in it is not made of a dict")

    def _set(self, call: Node, args: list[Any]) -> None:
        items = args[0].items if args and type(args[0]) is Node else []
        if any(type(item) is Node or (type(item) is int and abs(item) > LARGEST_INTEGER) for item in items):
            raise PickleError("a set in it is not of text or numbers")

    def _encoded(self, call: Node, args: list[Any]) -> None:
        """Check bytes, which Python 3 writes as text and its encoding."""
        content = args[0] if args else b""
        if type(content) is Node and content.kind == "call":
            content = next(iter(content.items[1].items), b"") if type(content.items[1]) is Node else 0
        if type(content) not in (str, bytes) or any(text not in _CODECS for text in map(text_of, args[1:])):
            raise PickleError("bytes in it are not made of text")
        self.bytes += 2 * len(content)

    def _storage(self, node: Node) -> None:
        """Note a storage: ("storage", its type, its key, its device, its elements), in old files with a view of it."""
        (parts,) = node.items
        values = parts.items if type(parts) is Node and parts.kind == "tuple" else []
        if len(values) not in (5, 6) or text_of(values[0]) != "storage" or type(values[1]) is not Name:
            raise PickleError("it refers to something other than a storage")
        kind, key, elements = values[1].text, text_of(values[2]), values[4]
        if not _is_storage(kind) or not _is_size(elements):
            raise PickleError(f"it has a storage of type {kind[:100]}")
        if self.storages.setdefault(key, elements * _element(kind)) != elements * _element(kind) or (
            self.kinds.setdefault(key, kind) != kind
        ):
            raise PickleError("a storage in it has two types or sizes")
        view = values[5] if len(values) == 6 else None
        if view is not None:
            _, offset, length = view.items if type(view) is Node and len(view.items) == 3 else (0, -1, -1)
            if not _is_size(offset) or not _is_size(length) or offset + length > elements:
                raise PickleError("a view in it is not inside its storage")

    def _tensor(self, call: Node, args: list[Any]) -> None:
        """Check that a tensor (storage, offset, sizes, strides, …) lies in its storage, and that it has no hooks."""
        storage, offset, sizes, strides = [*args, None, None, None, None][:4]
        if type(storage) is not Node or storage.kind != "persistent":
            raise PickleError("a tensor in it has no storage")
        self._storage(storage)
        values = storage.items[0].items
        elements, each = values[4], _element(values[1].text)
        if len(values) == 6 and values[5] is not None:
            elements = values[5].items[2]
        if _function(call) == "torch._utils._rebuild_tensor_v3":
            itemsize = _itemsize(args[6] if len(args) > 6 else None)
            elements, each = elements * each // itemsize, itemsize
        shape, steps = _sizes(sizes), _sizes(strides)
        if not _is_size(offset) or len(shape) != len(steps):
            raise PickleError("a tensor in it has no shape")
        count = math.prod(shape)
        reach = offset + sum((size - 1) * step for size, step in zip(shape, steps, strict=True)) + 1 if count else 0
        if reach > elements or math.prod(max(1, size) for size in shape) > LARGEST_INTEGER:
            raise PickleError("a tensor in it is larger than its storage")
        self.bytes += count * each
        hooks = 6 if _function(call) == "torch._utils._rebuild_qtensor" else 5
        _check_hooks(args[hooks] if len(args) > hooks else None)

    def _parameter(self, call: Node, args: list[Any]) -> None:
        if not args or _function(args[0]) not in self.rules or "tensor" not in _function(args[0]):
            raise PickleError("a parameter in it is not made of a tensor")
        _check_hooks(args[2] if len(args) > 2 else None)
        _check_attributes(args[3] if len(args) > 3 else None, torch.Tensor)

    def _sparse(self, call: Node, args: list[Any]) -> None:
        for value in args[1].items if len(args) == 2 and type(args[1]) is Node else [None]:
            if type(value) is not bool and "tensor" not in _function(value):
                _sizes(value)

    def _meta(self, call: Node, args: list[Any]) -> None:
        _sizes(args[1] if len(args) > 1 else None)
        _sizes(args[2] if len(args) > 2 else None)

    def _moved(self, call: Node, args: list[Any]) -> None:
        """Check a tensor of another device, which is made of one of the CPU with, it may be, wider numbers."""
        if not args or _function(args[0]) != "torch._utils._rebuild_tensor_v2" or len(args[0].items[1].items) < 3:
            raise PickleError("a tensor of another device in it is not made of a tensor")
        self.bytes += _WIDEST * math.prod(_sizes(args[0].items[1].items[2]))

    def _subclass(self, call: Node, args: list[Any]) -> None:
        """Check a tensor with attributes: (the function that makes it, its type, the function's arguments, them)."""
        function, kind, inner, state = [*args, None, None, None, None][:4]
        made = Node("call")
        made.items = [function, inner]
        if kind not in map(Name, _TYPES[:2]) or type(inner) is not Node or "tensor" not in _function(made):
            raise PickleError("a tensor in it is of a type of its own")
        self._check_call(made)
        _check_attributes(state, torch.Tensor)


def _check_attributes(state: Any, kind: type) -> None:
    """Refuse attributes that would take the place of what the type has itself."""
    if type(state) is Node and state.kind == "tuple":
        for part in state.items:
            _check_attributes(part, kind)
    elif state is not None:
        pairs = state.items if type(state) is Node and state.kind == "dict" else [None]
        if any(type(key) is not str or hasattr(kind, key) or key.startswith("__") for key in pairs[::2]):
            raise PickleError("an attribute in it would take the place of a method")


def _check_hooks(hooks: Any) -> None:
    """Refuse anything but the empty OrderedDict that torch saves for the hooks of a tensor."""
    empty = _function(hooks) == "collections.OrderedDict" and len(hooks.items) == 2 and not hooks.items[1].items
    if hooks is not None and not empty:
        raise PickleError("a tensor in it has hooks")


def _function(node: Any) -> str:
    """Return the name of what a call calls; nothing if it is no call."""
    if type(node) is not Node or node.kind != "call" or type(node.items[0]) is not Name:
        return ""
    return _current(node.items[0].text) if type(node.items[1]) is Node else ""


def _sizes(value: Any) -> list[int]:
    """Return sizes or strides, given as a tuple or a torch.Size."""
    if _function(value) == "torch.Size" and value.items[1].items:
        value = value.items[1].items[0]
    if type(value) is not Node or value.kind not in ("tuple", "list") or not all(map(_is_size, value.items)):
        raise PickleError("a tensor in it has no shape")
    if len(value.items) > _DIMENSIONS:
        raise PickleError(f"a tensor in it has more than {_DIMENSIONS} dimensions")
    return value.items


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST_INTEGER


def _is_value(name: str) -> bool:
    """Tell whether it is the name of a type of numbers, of a quantisation, or of a storage."""
    module, _, attribute = name.rpartition(".")
    value = getattr(torch, attribute, None) if module == "torch" else None
    return isinstance(value, (torch.dtype, torch.qscheme)) or _is_storage(name)


def _is_storage(name: str) -> bool:
    module, _, kind = name.rpartition(".")
    return module in ("torch", "torch.storage", "torch.cuda") and kind.removesuffix("Storage") in _SIZES


def _element(storage: str) -> int:
    return _SIZES[storage.rpartition(".")[2].removesuffix("Storage")]


def _itemsize(name: Any) -> int:
    dtype = getattr(torch, name.text.removeprefix("torch."), None) if type(name) is Name else None
    if not isinstance(dtype, torch.dtype):
        raise PickleError("a tensor in it has no type")
    return dtype.itemsize


def _current(name: str) -> str:
    """Return the name that Python 3 has for one of Python 2."""
    return name.replace("__builtin__.", "builtins.")


def _full_name(item: Any) -> str:
    """Return the name in pickles of what a user has let torch load."""
    return item[1] if isinstance(item, tuple) else f"{item.__module__}.{item.__qualname__}"


def text_of(value: Any) -> str:
    if type(value) is bytes:
        return value.decode("utf-8", "replace")
    if type(value) is not str:
        raise PickleError("a name in it is not text")
    return value
