"""A model as a person names it: a run or model folder, one on the hub, a checkpoint, a Python factory, or ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from pwoa.data import Data
from pwoa.errors import InputError
from pwoa.models import from_pretrained, load_model, normalisation
from pwoa.models.folder import CONFIG
from pwoa.models.hub import PREFIX
from pwoa.models.onnx import OnnxModel
from pwoa.models.source import is_factory, load_factory
from pwoa.run import load_run


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
