"""One door for models: a run, a model folder, the hub, a checkpoint, Python code, or ONNX."""

import os
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import NoneType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from pwoa.models.border import Normalised, check_model, check_normalisation, normalise
from pwoa.models.checkpoints.contents import unpack
from pwoa.models.checkpoints.files import EMBEDDED, load_state, open_checkpoint
from pwoa.models.checkpoints.fitting import fill, recognise
from pwoa.models.checkpoints.folder import (
    CONFIG,
    DESCRIPTION,
    WEIGHTS,
    find_folder,
    holds_model,
    read_description,
    read_weights,
    recorded_threat,
)
from pwoa.models.checkpoints.hub import PREFIX
from pwoa.models.checkpoints.inspection import guess_architecture, likeness
from pwoa.models.checkpoints.packed import is_packed, read_packed
from pwoa.models.compiled import CModel, is_c
from pwoa.models.factory import load_factory
from pwoa.models.onnx import OnnxModel
from pwoa.models.twins import said_of
from pwoa.recipe import RECIPE, records_recipe
from pwoa.recipe.settings import is_factory
from pwoa.threat import Threat

AUTO = "auto"
"""The architecture that a checkpoint is of, which its names and shapes tell."""
EMBEDDED_THREAT = Threat("linf", 0.3, 0.01)

EXPORTED = ("packed", "onnx", "c")
"""The kinds of files and folders that `export` writes."""

Source = str | os.PathLike[str] | nn.Module
Kind = Literal["network", "folder", "packed", "onnx", "c", "factory", "file"]


def load_model(
    source: Source,
    data: Data | None = None,
    *,
    architecture: str | nn.Module | None = None,
    checkpoint: str | Path | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    kept: float | None = None,
    revision: str | None = None,
) -> nn.Module:
    """Load a model, in eval mode. Example: `load_model("trades.pt", load_data("cifar10"))`.

    source: a run folder, or what `prune` returns; a model folder; a packed file that `export` wrote; `hf:owner/name` or
    `hf:owner/name@revision` on the Hugging Face hub; a checkpoint file; `embedded`, the LeNet that comes with the
    package; `file.py:Net` or `module:function` of your own code; an .onnx file; a folder of C that `export` wrote; or a
    network, which is returned as it is. Nothing in a file is executed but Python code and C code.
    data: the images that the model is for. Its classes and channels must be theirs, and it is tried on two of them.
    architecture: of a checkpoint, a registered name, or None or `auto` for the one the file is of. For a network of
    your own, also in a run or a model folder: `file.py:Net`, `module:function`, or a fresh network, which is filled.
    checkpoint: the weights for what `file.py:Net` makes; every tensor must fit.
    mean, std: how the images are normalised, a number for each channel, if that was done outside the network; a
    normalisation in the file is found. Either way the model takes images in [0, 1]; all but ONNX is a `Normalised`.
    kept: for a file with HYDRA's or HARP's scores, the part of the weights they keep; 1 for a dense network.
    revision: a branch, tag or commit on the hub.
    """
    _check_types(source, data, architecture)
    architecture = None if isinstance(architecture, str) and architecture == AUTO else architecture
    name = f"a {type(source).__name__}" if isinstance(source, nn.Module) else os.fspath(source)
    kind = kind_of(source)
    classes, channels = (None, None) if data is None else (data.classes, data.train.pixels.shape[1])
    fresh = isinstance(architecture, nn.Module) or (architecture is not None and is_factory(architecture))
    described = kind in ("folder", "packed")
    if architecture is not None and kind != "file" and not (described and fresh):
        raise InputError(f"{name} knows its architecture; leave out --arch")
    if checkpoint is not None and kind != "factory":
        raise InputError(f"--checkpoint goes with a factory MODULE:FUNCTION; {name} has its own weights")
    if (mean or std) and (described or kind == "c"):
        raise InputError(f"{name} knows its normalisation; leave out --mean and --std")
    if kept is not None and kind != "file" and checkpoint is None:
        raise InputError(f"kept={kept!r} goes with a checkpoint file that has scores; leave it out for {name}")
    if revision is not None and not name.startswith(PREFIX):
        raise InputError(f"{name} is not on the hub, and has no revisions; leave out revision={revision!r}")
    if isinstance(source, nn.Module):
        model = normalise(source, check_normalisation(mean, std, channels))
    elif kind == "folder":
        model = _from_folder(name, _fresh_network(architecture), revision)
    elif kind == "packed":
        about, tensors = read_packed(Path(name))
        model = _described(about, tensors, _fresh_network(architecture), name)
    elif kind == "onnx":
        model = OnnxModel(name, classes, check_normalisation(mean, std, channels))
    elif kind == "c":
        model = CModel(name)
    elif kind == "factory":
        by, model = check_normalisation(mean, std, channels), load_factory(name)
        if checkpoint is None:
            model = normalise(model, by)
        else:
            model = fill(model, open_checkpoint(checkpoint), str(checkpoint), by, kept, channels)
    else:
        model = _from_file(name, architecture, classes, channels, mean, std, kept)
    model.eval()
    if data is not None:
        index = torch.arange(min(2, len(data.test)), device=data.test.pixels.device)
        check_model(model, data.test.batch(index)[0], data.classes, logits_only=False)  # probabilities can be measured
    return model


def trained_threat(source: Source) -> Threat | None:
    """Return the attacker that a model was made to resist, as its run or model folder says; None if nothing says it.

    Example: `trained_threat("embedded")` is l∞ 0.3.
    """
    if isinstance(source, nn.Module) or not os.fspath(source):
        return None
    if (name := os.fspath(source)) == EMBEDDED:
        return EMBEDDED_THREAT
    if about := said_of(Path(name)):
        return Threat(**about["threat"]) if about.get("threat") else None
    beside = name if holds_model(name) else str(Path(name).parent) if Path(name).name == WEIGHTS else ""
    return recorded_threat(find_folder(beside), name) if beside else None


def kind_of(source: Source) -> Kind:
    """Tell what a model is given as; a folder is one with a model or a run, here or on the hub."""
    if isinstance(source, nn.Module):
        return "network"
    name = os.fspath(source)
    if name == EMBEDDED:
        return "file"
    if records_recipe(name) or holds_model(name):
        return "folder"
    if Path(name).suffix == ".onnx":
        return "onnx"
    if is_c(name):
        return "c"
    return "packed" if is_packed(name) else "factory" if is_factory(name) else "file"


def lacks_architecture(source: Source) -> bool:
    """Tell whether a model takes an `architecture`: a checkpoint file, or what only the user's own code can build."""
    kind = kind_of(source)
    if isinstance(source, nn.Module) or kind not in ("folder", "packed"):
        return kind == "file" and source != EMBEDDED
    name = os.fspath(source)
    if kind == "folder" and not holds_model(name):  # a run that has not finished, which is said when it is loaded
        return False
    about = read_description(find_folder(name), name) if kind == "folder" else read_packed(Path(name)).about
    return ":" in about["architecture"]


def refuse_exported(checkpoint: str) -> None:
    """Refuse to train what has no weights to train; C code, which a recipe cannot ask to run, is not even opened."""
    if kind_of(checkpoint) == "c":
        raise InputError(
            f"{checkpoint} is C code, which cannot be trained or pruned; give the run it was exported from"
        )


def refuse_missing(source: Source) -> None:
    """Refuse the name of a file or a folder that is not there."""
    if isinstance(source, nn.Module) or ":" in (name := os.fspath(source)) or name == EMBEDDED:
        return
    if not Path(name).exists():
        raise InputError(f"{name} does not exist")


def _check_types(source: Any, data: Any, architecture: Any) -> None:
    if not isinstance(source, (str, os.PathLike, nn.Module)):
        raise InputError(f"a model is given by a path, a name or an nn.Module, not by a {type(source).__name__}")
    if not isinstance(data, (Data, NoneType)):
        raise InputError(f"the data must be what pwoa.load_data gives, not {data!r}")
    if not isinstance(architecture, (str, nn.Module, NoneType)):
        raise InputError(f"give a network or the name of an architecture, not {architecture!r}")


def _fresh_network(architecture: str | nn.Module | None) -> nn.Module | None:
    """Return the network that is given, or that a factory makes; None for a registered name."""
    if isinstance(architecture, str):
        return load_factory(architecture) if is_factory(architecture) else None
    return architecture


def _from_folder(name: str, network: nn.Module | None, revision: str | None) -> nn.Module:
    """Load the model of a run or a model folder: into a new network of its architecture, or into the given one."""
    if records_recipe(name) and not (Path(name) / DESCRIPTION).is_file():
        raise InputError(f"{name} has not finished yet; start it again to resume")
    folder = find_folder(name, revision)
    about = read_description(folder, name)
    with ThreadPoolExecutor(1) as pool:  # the weights are read and hashed while the network is made
        reading = pool.submit(read_weights, folder, about, name)
        try:
            network = network or _new(about, name, (folder / WEIGHTS).stat().st_size)
        finally:
            tensors = reading.result()  # what is wrong with the weights is said first
    return _described(about, tensors, network, name)


def _described(about: dict[str, Any], tensors: dict[str, Tensor], network: nn.Module | None, name: str) -> nn.Module:
    """Fill a network, given or new, with the tensors of a model that is described."""
    network = network or _new(about, name, sum(value.nbytes for value in tensors.values()))
    if (numbers := about.get("normalisation")) and not isinstance(network, Normalised):
        network = Normalised(network, numbers["mean"], numbers["std"])
    load_state(network, tensors, name)
    return network


def _new(about: dict[str, Any], name: str, size: int) -> nn.Module:
    """Return a new network of the architecture that a folder describes, whose weights are a file of so many bytes."""
    architecture, classes, channels = about["architecture"], about.get("classes"), about.get("channels")
    if ":" in architecture:
        raise InputError(
            f"{name} holds a {architecture}, which only your own code can build, and no file can ask to run code; if "
            f"you trust it, give it yourself: --arch {_as_typed(architecture)} (in Python: architecture= of load_model)"
        )
    if classes is None or channels is None:
        raise InputError(f"{name} does not say its classes and channels")
    width = about.get("width")
    with torch.device("meta"):  # nothing is allocated
        numbers = sum(value.numel() for value in build(architecture, classes, channels, width).parameters())
    if numbers > size:
        raise InputError(f"{name} describes a network of {numbers:,} numbers, and its weights are {size:,} bytes")
    return build(architecture, classes, channels, width)


def _as_typed(architecture: str) -> str:
    """Return what to write for a network of the user's own; a script and torch's own classes cannot be imported."""
    home, _, name = architecture.rpartition(":")
    if is_factory(architecture) and home != "__main__" and not home.startswith("torch."):
        return shlex.quote(architecture)
    return f"FILE.py:{name if home == '__main__' and name.isidentifier() else 'CLASS'}"


def _from_file(
    name: str,
    architecture: str | nn.Module | None,
    classes: int | None,
    channels: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    kept: float | None,
) -> nn.Module:
    """Load a checkpoint file, which tells the classes and channels of a registered architecture where they are None."""
    if name != EMBEDDED and not Path(name).exists():
        kinds = "a run folder, a model folder, a checkpoint, FILE.py:CLASS, an .onnx file or hf:owner/name"
        raise InputError(f"{name} does not exist; give {kinds}")
    if name != EMBEDDED and Path(name).is_dir():
        raise InputError(f"{name} is neither a run nor a model folder: it has no {RECIPE} or {CONFIG}")
    opened, network = open_checkpoint(name), _fresh_network(architecture)
    if network is None and isinstance(architecture, str):
        if classes is None or channels is None:
            state = unpack(opened, name, kept).state
            guess = guess_architecture(state)
            if guess is None:
                near = likeness(state)
                raise InputError(
                    f"{name} does not tell the classes and channels of its {architecture}{near and f' ({near})'}; "
                    "give the data it is for"
                )
            _, classes, channels = guess
        network = build(architecture, classes, channels)
    elif network is None:
        guess = recognise(unpack(opened, name, kept), classes, channels)
        channels, network = guess.channels, build(*guess)
    return fill(network, opened, name, check_normalisation(mean, std, channels), kept, channels)
