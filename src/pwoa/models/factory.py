"""Networks of a user's own code, named as `package.module:function` or `folder/file.py:Net`."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from torch import nn

from pwoa.errors import InputError, did_you_mean
from pwoa.models.architectures.registry import MADE_BY
from pwoa.recipe.settings import is_factory


def load_factory(text: str) -> nn.Module:
    """Return the network that a factory makes when it is called without arguments, in eval mode.

    text: `package.module:function`, found from the current directory too, or `folder/file.py:function`, which may
    import the files beside it; a class will do as well. Example: `load_factory("nets.py:Net")`.
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
    vars(model)[MADE_BY] = text  # by which it can be made again; its class may need arguments
    return model.eval()


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules of the folder be imported while inside, before all others, as `python -m` does."""
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
    """Turn whatever a user's code raises into one line, also when it is a script that exits."""
    try:
        yield
    except (Exception, SystemExit) as error:
        lines = [type(error).__name__, *str(error).strip().splitlines()]
        raise InputError(f"{failure}: {': '.join(lines[:2])}") from error


def _import_file(file: Path) -> ModuleType:
    """Run the file as a module that is called as the user wrote it, so that it takes no other module's name."""
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
    """Say what may have been meant: a public function or class the module defines, or else one it imports."""
    public = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    defined = [name for name, value in public.items() if getattr(value, "__module__", None) == module.__name__]
    known = defined or list(public)
    return did_you_mean(name, known) if known else "it defines no function or class"
