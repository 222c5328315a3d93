"""A model for others: a folder in the convention of the Hugging Face hub, and a push to it."""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.models.border import Normalised
from pwoa.models.checkpoints import hub
from pwoa.models.checkpoints.folder import (
    CARD,
    CONFIG,
    FORMAT,
    WEIGHTS,
    describe_model,
    is_ours,
    read_folder,
    state_fingerprint,
    to_safetensors,
)
from pwoa.models.checkpoints.inspection import guess_architecture
from pwoa.recipe import Recipe, recorded_recipe
from pwoa.runs.folder import Result, Run
from pwoa.share.card import addressed, model_card, without_place
from pwoa.sparsity import DEFAULT, describe_size
from pwoa.storage.folder import naming, replacing, sealed, to_json
from pwoa.storage.reading import read_text

Source = nn.Module | Result | Run | str | Path
"""What can be shared: a model; or a finished run, which comes with its measurements."""
_FILES = (CONFIG, WEIGHTS, CARD)
"""In the order in which they are written: the first says that the folder is ours, also if a kill comes next."""


def save_pretrained(model_or_run: Source, folder: str | Path) -> Path:
    """Write model.safetensors, config.json and a model card (README.md) into a folder for `load_model`.

    model_or_run: what `prune` and `pretrain` return, a run folder, or any nn.Module, whose card has no measurements.
    folder: a new one, or one that this function wrote.
    """
    shared, folder = _shared(model_or_run), Path(folder)
    if Run(folder).started:
        raise InputError(f"{folder} is a run folder; choose another one for the model")
    if not is_ours(folder) and (strange := [name for name in _FILES if (folder / name).exists()]):
        raise InputError(f"{folder} holds a {strange[0]} that pwoa did not write; choose another folder")
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    contents = to_json(sealed(shared.config)).encode(), to_safetensors(shared.tensors), shared.card.encode()
    for name, content in zip(_FILES, contents, strict=True):
        with replacing(folder / name) as file:
            file.write(content)
    return folder


def push_to_hub(
    model_or_run: Source,
    repo: str,
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
    message: str = "A model by pwoa",
) -> str:
    """Put a model on the Hugging Face hub, in one commit, and give its address there.

    model_or_run: as for `save_pretrained`, or a folder that it wrote. repo: `owner/name`, made if it is not there.
    private: only for a new one. revision: a branch. token: else that of `hf auth login` or HF_TOKEN.
    message: of the commit.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = _written(model_or_run) or save_pretrained(model_or_run, temporary)
        files: dict[str, Path | bytes] = {name: folder / name for name in (WEIGHTS, CONFIG)}
        if (folder / CARD).is_file():
            files[CARD] = addressed(read_text(folder / CARD), repo).encode()
        return hub.push(files, repo, private=private, revision=revision, token=token, message=message)


def card_of(model_or_run: Source) -> str:
    """Return the model card that `save_pretrained` would write."""
    return _shared(model_or_run).card


@dataclass(frozen=True)
class _Shared:
    """A model as it goes into a folder."""

    config: dict[str, Any]
    tensors: Mapping[str, Tensor]
    card: str


def _written(source: Source) -> Path | None:
    """Return the folder itself, whole and sound, if it is one that `save_pretrained` wrote."""
    if not isinstance(source, (str, Path)) or not (Path(source) / CONFIG).is_file():
        return None
    read_folder(Path(source), str(source))
    return Path(source)


def _shared(source: Source) -> _Shared:
    return _of_model(source) if isinstance(source, nn.Module) else _of_run(source)


def _of_run(source: Result | Run | str | Path) -> _Shared:
    run = Run(Path(source.folder if isinstance(source, Result) else source))
    if not run.finished:
        state = "has not finished yet; start it again to resume" if run.started else "is not a run folder"
        raise InputError(f"{run.path} {state}")
    about, tensors = read_folder(run.path, str(run.path))
    return _packed(about, tensors, run.result(), recorded_recipe(run.path))


def _of_model(model: nn.Module) -> _Shared:
    network = model.model if isinstance(model, Normalised) else model
    guess = guess_architecture(network.state_dict())
    about = describe_model(model, guess.classes, guess.channels) if guess else describe_model(model)
    return _packed(about | _size(model), model.state_dict())


def _size(model: nn.Module) -> dict[str, Any]:
    """Return how much is left of the model, if any of its weights are pruned."""
    try:
        size = describe_size(model, DEFAULT)
    except InputError:  # nothing there that could be pruned
        return {}
    layers = [{key: row[key] for key in ("layer", "total", "kept")} for row in size["sparsity"]]
    return size | {"sparsity": layers} if size["rate"] > 1 else {}


def _packed(
    about: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    result: Mapping[str, Any] | None = None,
    recipe: Recipe | None = None,
) -> _Shared:
    architecture = without_place(about["architecture"])
    name, _, width = (architecture, "", "") if ":" in architecture else architecture.partition("@")
    if width and not re.fullmatch(r"\d{1,9}(\.\d{1,20})?", width, re.ASCII):
        raise InputError(f"{architecture!r} is no architecture with a width, as resnet18@0.5 is")
    config = {
        "format": FORMAT,
        "architecture": name,
        "width": float(width or 1),
        **{key: about.get(key) for key in ("classes", "channels", "normalisation", "threat", "sparsity")},
        **{key: about[key] for key in ("parameters", "nonzero", "left_out") if key in about},
        "fingerprint": state_fingerprint(tensors),
        "versions": about.get("versions", {}),
    }
    return _Shared(config, tensors, model_card(config, result, recipe))
