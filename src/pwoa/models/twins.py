"""Where an exported model comes from: the run that it lies in, whose network is its twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pwoa.errors import InputError
from pwoa.models.checkpoints.folder import holds_model, read_description
from pwoa.models.checkpoints.packed import KEY, describe_packed, is_packed
from pwoa.models.compiled import ARTEFACT
from pwoa.models.onnx import OnnxModel
from pwoa.recipe import records_recipe
from pwoa.storage.reading import parse_json, read_json, read_safetensors_metadata

_ABOVE = 2
"""How far above an artefact its run may be: it lies in RUN/export."""


def twin_of(artefact: str | Path) -> Path | None:
    """Return the run that an exported model lies in, if the run's model is the one that it was made from.

    Example: `twin_of("runs/mine/export/model.onnx")`. A file cannot name its twin: a name in it could be of anything.
    """
    path = Path(artefact)
    if path.suffix != ".onnx" and not (path / ARTEFACT).is_file() and not is_packed(path):
        return None
    for folder in path.resolve().parents[:_ABOVE]:
        if records_recipe(folder) and holds_model(folder):
            own = read_description(folder, str(folder)).get("fingerprint")
            return folder if own is not None and said_of(path).get("model") == own else None
    return None


def said_of(path: Path) -> dict[str, Any]:
    """Return what an artefact says of itself; nothing if that is not ours."""
    try:
        if is_packed(path):
            return describe_packed(read_safetensors_metadata(path), str(path))
        said = (
            read_json(path / ARTEFACT) if path.is_dir() else parse_json(OnnxModel(path).metadata().get(KEY, "{}"), "")
        )
    except InputError:
        return {}
    return said if isinstance(said, dict) else {}
