"""A model from a user's own Python code, named as `module:function` or `file.py:function`.

Naming a factory runs that code, which is what the user asks for; a checkpoint given with it still runs none.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from torch import nn

from pwoa.errors import InputError, did_you_mean
from pwoa.models.checkpoint import open_checkpoint
from pwoa.models.filling import fill
from pwoa.models.normalise import Normalisation, normalised


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
