"""The packed form of weights: of a pruned tensor a bit mask and the kept values, in a plain safetensors file.

docs/packed-format.md describes it. A file is read strictly: every size in it is checked against the others before
anything is made, so that the tensors that come out have at most 32 times the bytes of the file.
"""

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from pwoa.errors import InputError, did_you_mean, first_line
from pwoa.models.border import is_finite
from pwoa.models.checkpoints.folder import Held, check_description, state_fingerprint
from pwoa.models.graphs import read_metadata
from pwoa.storage import reading
from pwoa.storage.folder import sealed, unsealed
from pwoa.storage.reading import parse_json

KEY = "pwoa"
"""Of the metadata of a file: the description of the model, as JSON with a checksum."""
MASK, VALUES, SCALE = ":mask", ":values", ":scale"
"""What follows the name of a packed tensor in the names of its parts."""
PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
"""How kept values can be stored; float32 loses nothing."""
_LARGEST_INT8 = 127
_ENTRY = 128
"""About the bytes that one more part takes in the header of a file."""
_LARGEST_SHARE = 1024
"""How many times the bytes of a file its tensors can have, those that are shared counted at each name."""


def check_precision(values: str) -> None:
    """Refuse what kept values cannot be stored as."""
    if values not in PRECISIONS:
        raise InputError(
            f"values are kept as {', '.join(PRECISIONS)}, not {values!r} ({did_you_mean(values, PRECISIONS)})"
        )


def pack(
    state: Mapping[str, Tensor], weights: Collection[str] = (), values: str = "float32"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a packed file, and the table that says how to read them.

    weights: the names of the tensors whose values may be rounded to the precision `values`. All others stay as they
    are, or lose only their zeros if that makes the file smaller. Tensors that share memory are written once.
    """
    check_precision(values)
    parts: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    same: dict[str, str] = {}
    first: dict[Any, str] = {}
    for name, value in state.items():
        value = value.detach().cpu()
        if (twin := first.setdefault(_place(value, name), name)) != name:
            same[name] = twin
            continue
        precision = values if name in weights else "float32"
        made = _packed(value, precision, name) if value.dtype == torch.float32 else {}
        if made:
            shapes[name] = list(value.shape)
        for end, part in (made or {"": value.clone(memory_format=torch.contiguous_format)}).items():
            if name + end in state and end:
                raise InputError(f"the model has a tensor called {name + end}, a name that packed files use; rename it")
            parts[name + end] = part
    return parts, {"format": 1, "values": values, "shapes": shapes, "same": same}


def unpack(parts: Mapping[str, Tensor], table: Any, source: str) -> dict[str, Tensor]:
    """Return the tensors that `pack` was given, in the order of their names; anything that does not fit is refused."""
    shapes, same = _checked(table, source)
    left = dict(parts)
    state = {name: _unpacked(left, name, shape, source) for name, shape in shapes.items()}
    if twice := state.keys() & left.keys():
        raise InputError(f"{source} holds {min(twice)} twice")
    state |= left
    for name, twin in same.items():
        if name in state or twin not in state or twin in same:
            raise InputError(f"{source} says that {name!r} is {twin!r}, which cannot be")
        state[name] = state[twin]
    if sum(value.nbytes for value in state.values()) > _LARGEST_SHARE * sum(part.nbytes for part in parts.values()):
        raise InputError(f"{source} names the same tensors more often than any network does")
    return {name: state[name] for name in sorted(state)}


def to_packed(parts: Mapping[str, Tensor], table: Mapping[str, Any], about: Mapping[str, Any]) -> bytes:
    """Write the content of a packed file: the parts, and the description of the model with the table in it."""
    tensors = unpack(parts, table, "the packed model")
    whole = {**about, "packed": dict(table), "fingerprint": _fingerprint(tensors, table)}
    return save(dict(parts), {KEY: json.dumps(sealed(whole))})  # more keys would be in any order


def is_packed(path: str | Path) -> bool:
    """Tell whether it is a packed file, by what its header says."""
    path = Path(path)
    if path.suffix != ".safetensors" or not path.is_file():
        return False
    try:
        return "packed" in parse_json(reading.read_safetensors_metadata(path).get(KEY, "{}"), str(path))
    except (InputError, TypeError):
        return False


def read_packed(path: Path) -> Held:
    """Read a packed file: the description of the model, checked, and its tensors."""
    content, metadata = reading.read_safetensors(path)
    about = _description(metadata, str(path))
    try:
        parts = load(content)
    except Exception as error:  # what torch makes of a type or a shape
        raise InputError(f"{path} is not a safetensors file: {first_line(error)}") from None
    tensors = unpack(parts, about.get("packed"), str(path))
    if about.get("fingerprint") != _fingerprint(tensors, about["packed"]):
        raise InputError(f"{path} is damaged: its weights are not those that it describes (another fingerprint)")
    return Held(about, tensors)


def described_in(path: str | Path) -> dict[str, Any] | None:
    """Return the description of its model that a packed or an ONNX file of ours holds, checked; None of any other."""
    path = Path(path)
    if path.suffix == ".onnx" and path.is_file():
        metadata = read_metadata(path)
        return _description(metadata, str(path)) if KEY in metadata else None
    return _description(reading.read_safetensors_metadata(path), str(path)) if is_packed(path) else None


def _description(metadata: Mapping[str, str], source: str) -> dict[str, Any]:
    where = f"the description in {source}"
    about = unsealed(parse_json(metadata.get(KEY, ""), where), where)
    if "architecture" not in about:
        raise InputError(f"{source} has a description that names no architecture")
    check_description(about, source, "its description")
    return about


def _fingerprint(tensors: Mapping[str, Tensor], table: Mapping[str, Any]) -> str:
    """Return the fingerprint of the tensors of a file, those that are shared counted once."""
    return state_fingerprint({name: value for name, value in tensors.items() if name not in table["same"]})


def _place(value: Tensor, name: str) -> Any:
    """Return what is the same for two tensors that are one and the same numbers in memory."""
    if not value.numel():
        return name
    return value.data_ptr(), value.dtype, tuple(value.shape), value.stride()


def _packed(value: Tensor, precision: str, name: str) -> dict[str, Tensor]:
    """Return the parts of a float32 tensor by the ends of their names; none if it is as small as it is."""
    dtype = PRECISIONS[precision]
    kept = value != 0
    saved = int((~kept).sum()) * dtype.itemsize
    masked = saved > _mask_bytes(value.numel()) + _ENTRY
    if not value.numel() or (not masked and precision == "float32"):
        return {}
    parts = {MASK: _bits(kept)} if masked else {}
    chosen = kept if masked else torch.ones_like(kept)
    if precision == "int8":
        scale = value.reshape(len(value), -1).abs().amax(1) / _LARGEST_INT8
        steps = scale.view(-1, *(1,) * (value.dim() - 1)).expand_as(value)[chosen]
        rounded = (value[chosen] / steps).nan_to_num(0, 0, 0).round().clamp(-_LARGEST_INT8, _LARGEST_INT8)
        return parts | {VALUES: rounded.to(dtype), SCALE: scale}
    values = value[chosen].to(dtype)
    if not is_finite(values):
        raise InputError(f"{name} has weights too large for {precision}; keep values as float32")
    return parts | {VALUES: values}


def _unpacked(left: dict[str, Tensor], name: str, shape: list[int], source: str) -> Tensor:
    """Take the parts of a tensor out of what is left of a file, and return it."""
    values, bits, scale = (left.pop(name + end, None) for end in (VALUES, MASK, SCALE))
    numbers = math.prod(shape)
    wrong = f"{source}: the parts of {name!r} do not fit its shape {'×'.join(map(str, shape))}"
    if values is None or values.dim() != 1 or values.dtype not in PRECISIONS.values():
        raise InputError(f"{source} has no values of {name!r} that are a row of {', '.join(PRECISIONS)}")
    if (scale is None) == (values.dtype == torch.int8):
        raise InputError(f"{source}: values of int8, and no others, have a scale; those of {name!r} differ")
    if bits is None:
        if values.numel() != numbers:
            raise InputError(wrong)
        kept = torch.ones(numbers, dtype=torch.bool)
    else:
        if bits.dtype != torch.uint8 or bits.shape != (_mask_bytes(numbers),):
            raise InputError(wrong)
        kept = _booleans(bits)
        if bool(kept[numbers:].any()) or int(kept.sum()) != values.numel():
            raise InputError(wrong)
        kept = kept[:numbers]
    whole = torch.zeros(numbers)
    whole[kept] = values.float()
    whole = whole.view(shape)
    if scale is None:
        return whole
    if not shape or scale.dtype != torch.float32 or scale.shape != (shape[0],):
        raise InputError(wrong)
    return whole * scale.view(-1, *(1,) * (len(shape) - 1))


def _mask_bytes(numbers: int) -> int:
    return -(-numbers // 8)


_POWERS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


def _bits(kept: Tensor) -> Tensor:
    """Write booleans as bits, the first in the lowest bit of the first byte."""
    row = kept.flatten().to(torch.uint8)
    row = torch.nn.functional.pad(row, (0, -len(row) % 8))
    return (row.view(-1, 8) * _POWERS).sum(1, dtype=torch.uint8)


def _booleans(bits: Tensor) -> Tensor:
    return ((bits.unsqueeze(1) & _POWERS) != 0).flatten()


def _checked(table: Any, source: str) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return the shapes and the twins that a table holds, if it is one."""
    if not isinstance(table, dict) or type(table.get("format")) is not int:
        raise InputError(f"{source} is not a packed model: it has no table of its tensors")
    if table["format"] != 1:
        raise InputError(f"{source} is in the packed format {table['format']}, of a later version of pwoa; upgrade it")
    shapes, same = table.get("shapes"), table.get("same")
    if not isinstance(shapes, dict) or not all(map(_is_shape, shapes.values())):
        raise InputError(f"{source} is damaged: the shapes of its tensors are none")
    if not isinstance(same, dict) or not all(isinstance(twin, str) for twin in same.values()):
        raise InputError(f"{source} is damaged: it does not say which of its tensors are the same")
    return shapes, same


def _is_shape(value: Any) -> bool:
    whole = (
        isinstance(value, list)
        and len(value) <= 64
        and all(type(size) is int and 0 <= size < 1 << 31 for size in value)
    )
    return whole and math.prod(max(size, 1) for size in value) < 1 << 60
