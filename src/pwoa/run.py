"""The run folder: all that is needed to believe, resume or repeat one result.

Every write is atomic, but for the lines that are appended to metrics.jsonl.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pwoa
from pwoa.errors import InputError, first_line
from pwoa.files import naming, replacing
from pwoa.lock import LOCK, held
from pwoa.models import Normalised, architecture_name
from pwoa.models.folder import read_folder
from pwoa.models.pretrained import rebuilt
from pwoa.models.tensors import to_safetensors
from pwoa.recipe import Recipe, recorded_recipe, to_toml, told

BEGINNING = {"teacher.json", ".teacher.json.part", ".recipe.toml.part", LOCK}

_OF_ANY = {"method", "example_free", "images", "seed", "device", "training_seconds"}
_OF_PRUNING = {"teacher", "pruned", "rate", "sparsity"}
_OF_TRAINING = {"accuracy", "architecture"}
"""What is said in result.json: of any run, of one that pruned, and of one that trained from scratch."""


class Run:
    """One run folder. Opening it creates nothing; `begin` does, once everything given has been checked."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def started(self) -> bool:
        return all((self.path / name).is_file() for name in ("recipe.toml", "teacher.json"))

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").is_file()

    def held(self) -> AbstractContextManager[None]:
        """While inside, no other process can be; it is refused in one line."""
        return held(self.path)

    def differences(self, recipe: Recipe, identity: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
        """In what a started run is not this one, and what it has there and here: settings, the teacher, the data."""
        known = self.read_json("teacher.json")
        pairs = {name: (known.get(name, ""), value) for name, value in identity.items()}
        other = {name: (there[:12], now[:12]) for name, (there, now) in pairs.items() if there != now}
        return recorded_recipe(self.path).differences(recipe) | other

    def check(self, recipe: Recipe, identity: Mapping[str, str]) -> None:
        """Refuse a folder that cannot be written, or that holds something else than this very run."""
        if self.started:
            if changed := self.differences(recipe, identity):
                raise InputError(
                    f"{self.path} holds another run ({told(changed)}); "
                    "choose another folder, or give the same again to resume it"
                )
        elif self.path.exists() and not self._is_blank():
            raise InputError(f"{self.path} exists and is not a run folder; choose another one")
        parent = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not os.access(parent, os.W_OK):
            raise InputError(f"cannot write to {parent}; choose another folder with --out (in Python: folder=)")

    def _is_blank(self) -> bool:
        """Whether there is nothing, or only what a run that was killed while it began leaves behind."""
        return self.path.is_dir() and {path.name for path in self.path.iterdir()} <= BEGINNING

    def begin(self, recipe: Recipe, teacher: Mapping[str, Any]) -> None:
        """Create the folder; its recipe is written last, so a folder with a recipe is complete."""
        with naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.write_json("teacher.json", teacher)
        self.write_text("recipe.toml", to_toml(recipe))

    def write_text(self, name: str, text: str) -> None:
        with replacing(self.path / name) as file:
            file.write(text.encode())

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, as_json(value))

    def read_json(self, name: str) -> dict[str, Any]:
        return _parsed((self.path / name).read_bytes(), self.path / name)

    def result(self) -> dict[str, Any]:
        """What result.json says, which is all that a finished run writes there."""
        found = self.read_json("result.json")
        kind = _OF_PRUNING if "pruned" in found else _OF_TRAINING
        if lost := (_OF_ANY | kind) - found.keys():
            raise InputError(f"{self.path / 'result.json'} is damaged: it has no {min(lost)}; run it anew elsewhere")
        return found

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with naming(self.path), (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [_parsed(line, path) for line in lines]

    def resuming(self) -> str:
        """What to say when a run that was begun goes on."""
        kept = (self.path / "checkpoint" / "state.pt", self.path / "model.safetensors")
        return "resuming" if any(file.exists() for file in kept) else "resuming from the start: no epoch had ended"

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        with naming(self.path):
            (self.path / "checkpoint").mkdir(exist_ok=True)
        with replacing(self.path / "checkpoint" / "state.pt") as file:
            torch.save(dict(state), file)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, or None; metrics.jsonl is cut back to what it knows."""
        path = self.path / "checkpoint" / "state.pt"
        state: dict[str, Any] | None = None
        if path.exists():
            try:
                state = torch.load(path, map_location="cpu", weights_only=True)
                if not isinstance(state, dict) or "lines" not in state:
                    raise RuntimeError("it is no state of a run")
            except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
                raise InputError(
                    f"{path} is damaged ({first_line(error)}); delete it, and the run begins anew"
                ) from None
        file = self.path / "metrics.jsonl"
        if file.exists():
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            self.write_text("metrics.jsonl", "".join(lines[: state["lines"] if state else 0]))
        return state

    def save_model(self, model: nn.Module, about: Mapping[str, Any]) -> None:
        """model.safetensors, and what it is in model.json."""
        with replacing(self.path / "model.safetensors") as file:
            file.write(to_safetensors(model.state_dict()))
        self.write_json("model.json", about)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json and drop the checkpoint: the run is done."""
        self.write_json("result.json", result)
        shutil.rmtree(self.path / "checkpoint", ignore_errors=True)


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
        if not isinstance(value, dict) or not value:
            raise ValueError(f"it says {value!r}")
        return value
    except ValueError as error:
        raise InputError(f"{path} is damaged ({first_line(error)}); choose another folder for the run") from None


def as_json(value: Any) -> str:
    """JSON for people to read."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def load_run(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The model of a finished run, in eval mode. For an architecture of your own, give a fresh `model`."""
    run = Run(folder)
    if not (run.path / "model.json").is_file():
        unfinished = "has not finished yet; start it again to resume" if run.started else "is not a run folder"
        raise InputError(f"{folder} {unfinished}")
    return rebuilt(read_folder(run.path, str(folder)), model, str(folder))


def describe_model(model: nn.Module, classes: int | None = None, channels: int | None = None) -> dict[str, Any]:
    """What model.json says about any model; its classes and input channels as far as they are known."""
    return {
        "architecture": architecture_name(model),
        "classes": classes,
        "channels": channels,
        **({"normalisation": model.numbers._asdict()} if isinstance(model, Normalised) else {}),
        "versions": {
            "pwoa": pwoa.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
