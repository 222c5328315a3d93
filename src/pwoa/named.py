"""A model as a person names it: a run folder, a checkpoint, a Python factory, or an ONNX file."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from pwoa.data import Data
from pwoa.errors import InputError
from pwoa.models import load_model
from pwoa.models.onnx import OnnxModel
from pwoa.models.source import is_factory, load_factory
from pwoa.run import load_run


def is_run(name: str) -> bool:
    return (Path(name) / "recipe.toml").is_file()


def named_model(name: str, data: Data, *, architecture: str | None = None, checkpoint: Path | None = None) -> nn.Module:
    """The model that `name` stands for.

    architecture: of a checkpoint: a registered one, or a factory. checkpoint: the weights for what a factory makes.
    """
    path = Path(name)
    kind = "run" if is_run(name) else "onnx" if path.suffix == ".onnx" else "factory" if is_factory(name) else "file"
    if architecture is not None and kind != "file":
        raise InputError(f"{name} knows its architecture; leave out --arch")
    if checkpoint is not None and kind != "factory":
        raise InputError(f"--checkpoint goes with a factory MODULE:FUNCTION; {name} has its own weights")
    if kind == "run":
        return load_run(path)
    if kind == "onnx":
        return OnnxModel(path, data.classes)
    if kind == "factory":
        return load_factory(name, checkpoint)
    if not path.exists() and name != "embedded":
        raise InputError(f"{name} does not exist; give a run folder, a checkpoint, MODULE:FUNCTION or an .onnx file")
    if path.is_dir():
        raise InputError(f"{name} is not a run folder: it has no recipe.toml")
    if architecture is None:
        raise InputError(f"{name}: to load a checkpoint give --arch NAME, or --arch MODULE:FUNCTION for your own")
    return load_model(load_factory(architecture) if is_factory(architecture) else architecture, name, data)
