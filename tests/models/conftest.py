"""What the tests of models share: run folders, written without a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from pwoa.models.checkpoints.folder import DESCRIPTION, WEIGHTS, describe_model, to_safetensors
from pwoa.recipe import RECIPE, Recipe, to_toml


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """Writes the folder of a run that made this model; without one, of a run that has not finished."""

    def write(folder: Path, model: nn.Module | None, classes: int = 10, channels: int = 1) -> Path:
        folder.mkdir()
        (folder / RECIPE).write_text(to_toml(Recipe()))
        if model is not None:
            (folder / WEIGHTS).write_bytes(to_safetensors(model.state_dict()))
            (folder / DESCRIPTION).write_text(json.dumps(describe_model(model, classes, channels)))
        return folder

    return write
