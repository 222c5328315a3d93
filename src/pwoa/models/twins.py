"""Where an exported model comes from: the run that it lies in, whose network is its twin."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pwoa.models.checkpoints.folder import check_description, holds_model, read_description
from pwoa.models.checkpoints.packed import described_in
from pwoa.models.compiled import ARTEFACT, is_c
from pwoa.recipe import records_recipe
from pwoa.storage.folder import unsealed
from pwoa.storage.reading import read_json

_ABOVE = 2
"""How far above an artefact its run may be: it lies in RUN/export."""


def twin_of(artefact: str | os.PathLike[str]) -> Path | None:
    """Return the run that an exported model lies in, if the run's model is the one that it was made from.

    Example: `twin_of("runs/mine/export/model.onnx")`. A file cannot name its twin: a name in it could be of anything.
    """
    path = Path(artefact)
    if not os.path.exists(path):  # of any name, also one that no file can have
        return None
    for folder in path.resolve().parents[:_ABOVE]:
        if records_recipe(folder) and holds_model(folder):
            own = read_description(folder, str(folder)).get("fingerprint")
            return folder if own is not None and said_of(path).get("model") == own else None
    return None


def said_of(path: Path) -> dict[str, Any]:
    """Return what an artefact says of its model, checked; nothing of what is no artefact."""
    if not is_c(path):
        return described_in(path) or {}
    about = unsealed(read_json(path / ARTEFACT), str(path / ARTEFACT)).get("about")
    if not isinstance(about, dict):
        return {}
    check_description(about, str(path), ARTEFACT)
    return about
