"""Settings: how text and trees become the values of a recipe, each converted and checked, and values become TOML."""

import dataclasses
import json
import math
import tomllib
import typing
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from types import NoneType
from typing import Any

from pwoa.errors import InputError, brief, did_you_mean

OWN, GIVEN = "own", "given"
"""The fields of a recipe that are no sections: the settings of the method itself, and the names of what was given."""
LARGEST = 2**63 - 1
"""What 64 bits hold, as the seeds of torch do."""


def setting(default: Any, about: str) -> Any:
    """Declare a setting, with what it means in a few words."""
    return dataclasses.field(default=default, metadata={"about": about})


def number(default: float, about: str = "", *, low: float = -math.inf, high: float = math.inf) -> Any:
    """Declare a setting that is a number within limits."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "about": about})


def choice(default: str, *options: str, about: str = "") -> Any:
    """Declare a setting that is one of a few words."""
    return dataclasses.field(default=default, metadata={"options": options, "about": about})


def allowed_text(allowed: Mapping[str, Any]) -> str:
    """Write what a setting may be, as its field's metadata have it; nothing if anything may be given."""
    if "options" in allowed:
        return ", ".join(allowed["options"])
    low, high = allowed.get("low", -math.inf), allowed.get("high", math.inf)
    if math.isinf(low):
        return ""
    return f"at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"


def is_factory(text: str) -> bool:
    """Tell whether a text names a factory, and not a path: `C:net` is on a drive, `c.py:net` is a factory."""
    source, _, name = text.rpartition(":")
    drive = len(source) == 1 and source.isalpha()
    return bool(source) and not drive and name.isidentifier()


def numbers(text: str, name: str) -> tuple[float, ...]:
    """Return the numbers in a text such as `0.49,0.48,0.45` or `125/255`; none in an empty one."""
    try:
        return tuple(_number_in(part) for part in text.split(",")) if text.strip() else ()
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{name} = {text!r} is not a list of numbers; write for example 0.49,0.48,0.45") from None


def _number_in(text: str) -> float:
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def parse_setting(text: str) -> tuple[str, Any]:
    path, equals, raw = text.partition("=")
    if not equals or not path.strip():
        raise InputError(f"setting {text!r} is not of the form section.key=value")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        value = raw.strip()  # a bare word, as people type it in a shell
    return path.strip(), value


def merge(settings: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Add to settings those that were given by a name of their own, if they were; all as `{"section.key": value}`.

    Settings may also come as `{"section": {"key": value}}`.
    """
    if not isinstance(settings, (Mapping, NoneType)):
        raise InputError(f"settings must be as {{'training.seed': 1}}, not {settings!r}")
    changes: dict[str, Any] = {}
    for name, value in (settings or {}).items():
        changes |= {f"{name}.{key}": own for key, own in value.items()} if isinstance(value, Mapping) else {name: value}
    own = {key: value for key, value in given.items() if value is not None}
    for key in own.keys() & changes.keys():
        if own[key] != changes[key]:
            raise InputError(f"{key} is given twice, as {brief(own[key])} and as {brief(changes[key])}; leave one out")
    return changes | own


def key_hint(key: str, known: Iterable[str]) -> str:
    """Return which settings an unknown key may stand for: those that end with it, or the nearest."""
    keys = list(known)
    if inner := [repr(one) for one in keys if one.rpartition(".")[2] == key]:
        *others, last = inner
        return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
    section, dot, name = key.rpartition(".")
    own = [one.removeprefix(section + dot) for one in keys if one.startswith(section + dot)] if dot else keys
    return did_you_mean(name, own, section + dot) if own else did_you_mean(key, keys)


def replace(target: Any, tree: Mapping[str, Any], where: str, prefix: str) -> Any:
    """Return a copy of a (section of a) recipe with the values of `tree`, each checked."""
    fields = {f.name: f for f in dataclasses.fields(target) if f.name not in (OWN, GIVEN)}
    types = typing.get_type_hints(type(target))
    changes = {}
    for key, value in tree.items():
        path = prefix + key
        if key not in fields:
            raise InputError(f"{where}: unknown key {path!r} ({key_hint(path, _keys_of(target, prefix))})")
        current = getattr(target, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise InputError(f"{where}: {path!r} is a section; give {path}.KEY a value")
            changes[key] = replace(current, value, where, prefix=f"{path}.")
        else:
            changes[key] = _check(_convert(value, types[key], path, where), fields[key].metadata, path, where)
    try:
        return dataclasses.replace(target, **changes)
    except InputError as error:  # from a section that checks its values against each other
        raise InputError(f"{where}: {error}") from None


def _keys_of(section: Any, prefix: str) -> list[str]:
    """Return the keys of a recipe or a section of it, and those of its sections."""
    names = [f.name for f in dataclasses.fields(section) if f.name not in (OWN, GIVEN)]
    inner = {name: getattr(section, name) for name in names if dataclasses.is_dataclass(getattr(section, name))}
    own = [prefix + name for name in names]
    return [*own, *(key for name, part in inner.items() for key in _keys_of(part, f"{prefix}{name}."))]


def _convert(value: Any, kind: Any, path: str, where: str) -> Any:
    """Return the value as the field's type, or an error that says what was given and what is wanted."""
    if isinstance(value, Integral) and abs(int(value)) > LARGEST:
        raise InputError(f"{where}: {path} is too large; allowed: whole numbers up to {LARGEST}")
    if kind is float and isinstance(value, str):
        try:
            return _number_in(value)
        except (ValueError, ZeroDivisionError):
            pass
    if kind in (float, int) and isinstance(value, Real if kind is float else Integral) and not isinstance(value, bool):
        return kind(value)
    if typing.get_origin(kind) is tuple:
        return _convert_list(value, typing.get_args(kind)[0], path, where)
    if type(value) is kind:
        return value
    names = {float: "a number", int: "a whole number", str: "a word", bool: "true or false"}
    raise InputError(f"{where}: {path} = {value!r} is not {names[kind]}")


def _convert_list(value: Any, kind: Any, path: str, where: str) -> tuple[Any, ...]:
    """Return a list, or its items in a text with commas between them."""
    items = [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value
    if kind is float and isinstance(items, Iterable):
        return tuple(_convert(item, float, path, where) for item in items)
    if isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items):
        return tuple(item.strip() for item in items if item.strip())
    raise InputError(f"{where}: {path} = {value!r} is not a list of {'numbers' if kind is float else 'words'}")


def _check(value: Any, allowed: Mapping[str, Any], path: str, where: str) -> Any:
    if "options" in allowed and value not in allowed["options"]:
        raise InputError(f"{where}: {path} = {value!r}; allowed: {allowed_text(allowed)}")
    if "low" in allowed and not (math.isfinite(value) and allowed["low"] <= value <= allowed["high"]):
        raise InputError(f"{where}: {path} = {value}; allowed: {allowed_text(allowed)}")
    return value


def toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # DEL, which JSON lets pass
    return str(value).lower() if isinstance(value, bool) else repr(value)
