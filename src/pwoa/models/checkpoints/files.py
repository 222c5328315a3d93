"""Checkpoint files. Nothing in a file is ever executed: safetensors, or torch's tensors-only loader."""

import warnings
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pwoa.errors import InputError, first_line
from pwoa.models.border import is_finite
from pwoa.models.checkpoints.archive import check_torch_file
from pwoa.models.checkpoints.folder import find_folder, holds_model, read_folder, read_safetensors
from pwoa.models.checkpoints.packed import is_packed, read_packed
from pwoa.recipe import records_recipe
from pwoa.storage.reading import open_file

EMBEDDED = "embedded"
"""The name of the checkpoint that comes with the package."""

CONTAINERS = ("state_dict", "model_state_dict", "rmodel", "model", "net", "last", "best")
"""The keys under which people keep a state dict; of two in one file, the first is taken."""

WRAPPERS = ("module.", "model.", "_orig_mod.", "basic_model.")
"""What the wrappers of a network put before the names of its tensors."""

_USUAL = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool}
_USUAL |= {getattr(torch, f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_USUAL |= {getattr(torch, f"float8_{kind}") for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")}

COUNTER = "num_batches_tracked"
"""The end of a name that old files lack and no forward pass in eval mode uses."""


class Opened(NamedTuple):
    """A file as it was saved, but for its container: the tensors, the container's name, numbers beside it, remarks."""

    tensors: dict[str, Tensor]
    container: str
    numbers: dict[str, float]
    remarks: tuple[str, ...]


def open_checkpoint(path: str | Path) -> Opened:
    """Read the tensors of a checkpoint file or a model folder, with the names and precision they were saved with."""
    if str(path) == EMBEDDED:
        file = resources.files("pwoa") / "models" / "embedded" / "lenet-mnist-linf-0.3.safetensors"
        return Opened(load_safetensors(file.read_bytes()), "", {}, ())
    if not isinstance(path, (str, Path)):
        raise InputError(f"a checkpoint is the path of a file or a folder, not a {type(path).__name__}")
    if holds_model(path):
        return Opened(read_folder(find_folder(path), str(path)).tensors, "", {}, ())
    path = Path(path)
    if records_recipe(path):
        raise InputError(f"{path} has not finished yet; start it again to resume")
    if not path.is_file():
        raise InputError(f"checkpoint {path} does not exist" if not path.exists() else f"{path} is not a file")
    if is_packed(path):
        return Opened(read_packed(path).tensors, "", {}, ())
    content: Any = read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    names: list[str] = []
    numbers: dict[str, float] = {}
    remarks: list[str] = []
    while not _is_state(content):
        if _is_single(content):
            names.append("0")
            content = content[0]
            continue
        if _is_cascade(content):
            raise InputError(
                f"{path} holds {len(content)} networks one after the other (a cascade, as convex_adversarial saves "
                "it), not one; save the one you want with torch.save(state_dict[0], …)"
            )
        keys = [name for name in CONTAINERS if isinstance(content, Mapping) and name in content]
        inner = {name: content[name] for name in keys}
        known = [
            key for key, value in inner.items() if isinstance(value, Mapping) or _is_cascade(value) or _is_single(value)
        ]
        if not known:
            raise InputError(
                f"{path} holds no state dict (found {_describe(content)}); "
                "save it with torch.save(model.state_dict(), …)"
            )
        name = next((name for name in known if _leads_to_state(content[name])), known[0])
        names.append(name)
        beside = {key: value for key, value in content.items() if type(value) in (int, float)}
        numbers |= {key: float(value) for key, value in beside.items() if abs(value) < 1e300}  # as a float has
        remarks += _rivals(content, name)
        content = content[name]
    if odd := [key for key, value in content.items() if not _is_usual(value)]:
        raise InputError(f"{path} has sparse, quantised or empty tensors ({some(odd)}); save dense tensors of floats")
    return Opened(dict(content), ".".join(names), numbers, tuple(remarks))


def _wrappers(names: Collection[str]) -> str:
    """Return the wrappers' prefix that all names share."""
    prefix = ""
    while names and (wrapper := next((w for w in WRAPPERS if all(key.startswith(prefix + w) for key in names)), "")):
        prefix += wrapper
    return prefix


def rename_for(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under a model's names: with its wrappers, and counters if and only if the model has them.

    A file from before torch counted batches lacks the counters; a forward pass in eval mode does not use them.
    wanted: the model's own tensors.
    """
    prefix, foreign = _wrappers(wanted), _wrappers(state)
    renamed = {prefix + key.removeprefix(foreign): value for key, value in state.items()}
    for key in wanted:
        if key.endswith(COUNTER) and key.removesuffix(COUNTER) + "running_mean" in renamed:
            renamed.setdefault(key, wanted[key])
    return {key: value for key, value in renamed.items() if key in wanted or not key.endswith("." + COUNTER)}


def misfit(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Say in a few words in what the tensors are not those of the model; nothing if every one fits."""
    wanted = model.state_dict()
    return _misfit(wanted, rename_for(wanted, state))


def _misfit(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    problems = []
    if missing := [key for key in wanted if key not in state]:
        problems.append(f"missing {some(missing)}")
    if unexpected := [key for key in state if key not in wanted]:
        problems.append(f"unexpected {some(unexpected)}")
    for key, value in wanted.items():
        given = state.get(key, value)
        if is_lazy(value):  # it takes any shape
            continue
        if value.shape != given.shape:
            problems.append(f"{key} is {_shape(given)}, the model wants {_shape(value)}")
            break
        if value.is_floating_point() and not given.is_floating_point():
            problems.append(f"{key} is of {given.dtype}, the model wants floats")
            break
    return "; ".join(problems)


def load_state(model: nn.Module, state: Mapping[str, Tensor], source: str, hint: str = "") -> None:
    """Put every tensor of `state` into the model; anything missing, left over or of other shape is an error.

    hint: what else the error says.
    """
    wanted = model.state_dict()
    renamed = rename_for(wanted, state)
    if problems := _misfit(wanted, renamed):
        raise InputError(f"{source} does not fit {type(model).__name__}: {problems}{hint and '; '}{hint}")
    if bad := [key for key, value in state.items() if not is_finite(value)]:
        raise InputError(f"{source} holds NaN or infinite weights in {some(bad)}")
    model.load_state_dict(renamed)


def float32(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with every floating one in float32."""
    return {key: value.float() if value.is_floating_point() else value for key, value in state.items()}


def _read_torch(path: Path) -> Any:
    with open_file(path) as file:
        check_torch_file(file, str(path))
        try:
            with warnings.catch_warnings(action="ignore"):
                return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises anything on a damaged file
            reason = f" ({first_line(error)[:200]})" if isinstance(error, (RuntimeError, OSError)) else ""
            raise InputError(f"{path} is not a checkpoint, of torch or safetensors{reason}") from None


def _is_usual(value: Tensor) -> bool:
    """Tell whether torch can compute with a tensor: dense, with content, and of numbers of whole bytes."""
    return value.layout == torch.strided and not value.is_meta and value.dtype in _USUAL and not value.is_quantized


def _is_state(content: Any) -> bool:
    if not isinstance(content, Mapping) or not content:
        return False
    return all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items())


def _leads_to_state(content: Any) -> bool:
    if _is_state(content) or _is_cascade(content):
        return True
    if _is_single(content):
        return _leads_to_state(content[0])
    return isinstance(content, Mapping) and any(_leads_to_state(content.get(name)) for name in CONTAINERS)


def _is_cascade(content: Any) -> bool:
    return isinstance(content, (list, tuple)) and len(content) > 0 and all(map(_is_state, content))


def _is_single(content: Any) -> bool:
    return isinstance(content, (list, tuple)) and len(content) == 1 and isinstance(content[0], Mapping)


def _rivals(content: Mapping[Any, Any], taken: str) -> list[str]:
    """Return a remark on each other network in a container, such as averaged weights."""
    chosen = content[taken]
    rivals = [key for key, value in content.items() if key != taken and isinstance(value, Mapping) and value]
    same = [key for key in rivals if isinstance(chosen, Mapping) and content[key].keys() == chosen.keys()]
    return [f"the file holds {key!r} too; {taken!r} is taken" for key in same]


def some(names: list[str]) -> str:
    """Write the first three of some names, and how many more there are."""
    shown = [name if name.isprintable() else ascii(name) for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shape(value: Tensor) -> str:
    return "×".join(map(str, value.shape)) or "a number"


def _describe(content: Any) -> str:
    if isinstance(content, Mapping):
        return "the keys " + some([str(key) for key in content]) if content else "nothing"
    return f"a {type(content).__name__}"
