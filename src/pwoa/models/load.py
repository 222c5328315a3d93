"""One door for models: a run, a model folder, the hub, a checkpoint, Python code, or ONNX."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, NoneType

import torch
from torch import nn

from pwoa.data.images import Data
from pwoa.errors import InputError, did_you_mean
from pwoa.models.architectures.registry import build
from pwoa.models.border import (
    Normalisation,
    Normalised,
    check_model,
    normalisation,
    normalised,
)
from pwoa.models.checkpoints.contents import unpacked
from pwoa.models.checkpoints.files import load_state, open_checkpoint
from pwoa.models.checkpoints.fitting import fill, recognised
from pwoa.models.checkpoints.folder import CONFIG, Held, find_folder, read_folder
from pwoa.models.checkpoints.hub import PREFIX
from pwoa.models.onnx import OnnxModel


def load_model(
    architecture: str | nn.Module | None,
    checkpoint: str | Path,
    data: Data,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    *,
    kept: float | None = None,
) -> nn.Module:
    """A model with the weights of a checkpoint, in eval mode, checked on an image of `data`.

    architecture: a registered name; `auto` or None for the one the file is of; `module:function` of your own code; or
    a network of your own, which is filled. Every tensor must fit, and the classes must be those of the data.
    checkpoint: a file; a folder that `save_pretrained` or a run wrote; or `hf:owner/name` on the Hugging Face hub.
    mean, std: how the images are normalised, a number a channel, if that was done outside the network; a normalisation
    in the file is found. Either way the model takes images in [0, 1] and is a `Normalised`.
    kept: for a file with HYDRA's or HARP's scores, the part of the weights they keep; 1 for a dense network.
    """
    if not isinstance(architecture, (str, nn.Module, NoneType)):
        raise InputError(f"give a network or the name of an architecture, not {architecture!r}")
    if not isinstance(data, Data):
        raise InputError(f"the data must be what pwoa.load_data gives, not {data!r}")
    channels = data.train.pixels.shape[1]
    given = normalisation(mean, std, channels)
    opened = open_checkpoint(checkpoint)
    if isinstance(architecture, nn.Module):
        network = architecture
    elif architecture is None or architecture == "auto":
        network = recognised(unpacked(opened, str(checkpoint), kept), data.classes, channels)
    elif is_factory(architecture):
        network = load_factory(architecture)
    else:
        network = build(architecture, data.classes, channels)
    model = fill(network, opened, str(checkpoint), given, kept, channels).eval()
    index = torch.arange(min(2, len(data.test)), device=data.test.pixels.device)
    check_model(model, data.test.batch(index)[0], data.classes)
    return model


def from_pretrained(name: str | Path, revision: str | None = None, *, model: nn.Module | None = None) -> nn.Module:
    """The model that `save_pretrained` wrote into a folder, or `push_to_hub` put on the hub, in eval mode.

    name: a folder; else `owner/name` on the hub, also written `hf:owner/name` or `owner/name@revision`.
    revision: a branch, tag or commit there. model: for an architecture of your own, a fresh network, which is filled.
    Every tensor must fit, the weights must be those of the folder's fingerprint, and nothing in a file is executed.
    """
    return rebuilt(read_folder(find_folder(name, revision), str(name)), model, str(name))


def rebuilt(held: Held, model: nn.Module | None, source: str) -> nn.Module:
    """The network that a folder holds, in eval mode: a new one of its architecture, or `model`, filled."""
    about = held.about
    if model is None:
        model = _new(about["architecture"], about.get("classes"), about.get("channels"), about.get("width"), source)
    if (numbers := about.get("normalisation")) and not isinstance(model, Normalised):
        model = Normalised(model, numbers["mean"], numbers["std"])
    load_state(model, held.tensors, source)
    return model.eval()


def _new(architecture: str, classes: int | None, channels: int | None, width: float | None, source: str) -> nn.Module:
    if ":" in architecture:
        raise InputError(
            f"{source} holds a {architecture}, which only your own code can build: give a fresh one as model=…"
            " (on the command line --arch MODULE:FUNCTION)"
        )
    if classes is None or channels is None:
        raise InputError(f"{source} does not say its classes and channels")
    return build(architecture, classes, channels, width)


def is_factory(text: str) -> bool:
    """Whether the text names a factory, and not a path: `C:net` is on a drive, `c.py:net` is a factory."""
    source, _, name = text.rpartition(":")
    drive = len(source) == 1 and source.isalpha()
    return bool(source) and not drive and name.isidentifier()


def load_factory(text: str, checkpoint: Path | None = None, normalisation: Normalisation | None = None) -> nn.Module:
    """The network a factory returns when called without arguments, in eval mode.

    `text` is `package.module:function`, found from the current directory too, or `folder/file.py:function`, which
    may import the files beside it; a class will do as well. Every weight of a `checkpoint` must fit the network. It
    stands behind the checkpoint's normalisation, or the one given.
    """
    if not is_factory(text):
        raise InputError(f"{text!r} names no Python factory; give MODULE:FUNCTION or FILE.py:FUNCTION")
    source, _, name = text.rpartition(":")
    file = Path(source) if source.endswith(".py") else None
    if file is not None and not file.is_file():
        raise InputError(f"{text}: {file} does not exist" if not file.exists() else f"{text}: {file} is not a file")
    with _importable(file.parent if file else Path()):
        with _blaming(f"{text} cannot be imported"):
            module = _import_file(file) if file else importlib.import_module(source)
            factory = getattr(module, name, None)
        if factory is None:
            raise InputError(f"{source} has no {name!r} ({_hint(module, name)})")
        if isinstance(factory, nn.Module) or not callable(factory):
            raise InputError(f"{text} is a {type(factory).__name__}, not a function or class that makes a network")
        with _blaming(f"{text}() failed"):
            model = factory()
    if not isinstance(model, nn.Module):
        raise InputError(f"{text}() returned a {type(model).__name__}; let it return a torch.nn.Module")
    if checkpoint is not None:
        return fill(model, open_checkpoint(checkpoint), str(checkpoint), normalisation).eval()
    return normalised(model, normalisation).eval()


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """While inside, modules of the folder can be imported, before all others, as `python -m` has it."""
    entry = str(folder.absolute())
    importlib.invalidate_caches()
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


@contextmanager
def _blaming(failure: str) -> Iterator[None]:
    """Turn whatever a user's code raises into one line; a script that exits is no reason for us to."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise InputError(f"{failure}: {_said(error)}") from error


def _import_file(file: Path) -> ModuleType:
    """The file as a module called as the user wrote it: no other module's name is taken, and it runs anew each time."""
    name = str(file)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _hint(module: ModuleType, name: str) -> str:
    """What may have been meant: a public function or class the module defines, or else one it has from elsewhere."""
    public = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    own = [name for name, value in public.items() if getattr(value, "__module__", None) == module.__name__]
    known = own or list(public)
    return did_you_mean(name, known) if known else "it defines no function or class"


def _said(error: BaseException) -> str:
    """The type of an error and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def is_run(name: str) -> bool:
    return (Path(name) / "recipe.toml").is_file()


def _kind(name: str) -> str:
    path = Path(name)
    if is_run(name):
        return "run"
    if name.startswith(PREFIX) or (path / CONFIG).is_file():
        return "pretrained"
    return "onnx" if path.suffix == ".onnx" else "factory" if is_factory(name) else "file"


def named_model(
    name: str,
    data: Data,
    *,
    architecture: str | None = None,
    checkpoint: Path | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """The model that `name` stands for.

    architecture: of a checkpoint: a registered one, `auto`, or a factory; of a run, a model folder or a model on the
    hub (`hf:owner/name`): the factory of a network of your own. checkpoint: the weights for what a factory makes.
    mean, std: the normalisation of a checkpoint's or a factory's images, if it is not in the network.
    """
    path, kind = Path(name), _kind(name)
    own = kind in ("run", "pretrained") and architecture is not None and is_factory(architecture)
    if architecture is not None and kind != "file" and not own:
        raise InputError(f"{name} knows its architecture; leave out --arch")
    if checkpoint is not None and kind != "factory":
        raise InputError(f"--checkpoint goes with a factory MODULE:FUNCTION; {name} has its own weights")
    if (mean or std) and kind in ("run", "pretrained", "onnx"):
        raise InputError(f"{name} knows its normalisation; leave out --mean and --std")
    fresh = load_factory(architecture) if own and architecture else None
    if kind == "run":
        return load_run(path, fresh)
    if kind == "pretrained":
        return from_pretrained(name, model=fresh)
    if kind == "onnx":
        return OnnxModel(path, data.classes)
    if kind == "factory":
        return load_factory(name, checkpoint, normalisation(mean, std, data.train.pixels.shape[1]))
    if not path.exists() and name != "embedded":
        raise InputError(f"{name} does not exist; give a run folder, a checkpoint, MODULE:FUNCTION or an .onnx file")
    if path.is_dir():
        raise InputError(f"{name} is neither a run nor a model folder: it has no recipe.toml or {CONFIG}")
    if architecture is None:
        raise InputError(
            f"{name}: to load a checkpoint give --arch NAME, or --arch MODULE:FUNCTION for your own; "
            "--arch auto recognises those that `pwoa models list` shows"
        )
    return load_model(architecture, name, data, mean, std)
