"""The run folder: all that is needed to believe, resume or repeat one result.

recipe.toml                        every setting, as the run resolved them
teacher.json                       fingerprints of teacher and data, and how robust the teacher was found
metrics.jsonl                      one line for each epoch
model.safetensors, model.json      the model, and what is needed to build it again
evaluation/model, …/teacher        the evaluations at the end, as `pwoa evaluate` keeps them
result.json                        the summary
checkpoint/                        while it runs

Every write is atomic, but for the lines that are appended to metrics.jsonl.
"""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pwoa.attacks.registry import attack_label
from pwoa.errors import InputError, first_line
from pwoa.methods import find_method
from pwoa.models.checkpoints.folder import to_safetensors
from pwoa.recipe import RECIPE, Recipe, recorded_recipe, to_toml
from pwoa.storage.folder import RESULT, Folder, naming, replacing

_TEACHER, _METRICS, _STATE = "teacher.json", "metrics.jsonl", Path("checkpoint") / "state.pt"
_OF_ANY = {"method", "example_free", "images", "seed", "device", "training_seconds"}
_OF_PRUNING = {"teacher", "pruned", "rate", "sparsity"}
_OF_TRAINING = {"accuracy", "architecture"}
"""What is in result.json: of any run, of one that pruned, and of one that trained from scratch."""


@dataclass(frozen=True, repr=False)
class Result:
    """A pruned or trained model, its run folder, what was measured (result.json) and its epochs (metrics.jsonl)."""

    model: nn.Module
    folder: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]

    def __repr__(self) -> str:
        """Write what came out in a line."""
        accuracy = self.summary.get("pruned") or self.summary.get("accuracy") or {}
        rate = f", {self.summary['rate']:.4g}× smaller" if "rate" in self.summary else ""
        measured = ", ".join(f"{attack_label(name)} {value:.2f} %" for name, value in accuracy.items())
        return f"<Result in {self.folder}: {type(self.model).__name__}{rate}: {measured or 'measured elsewhere'}>"


class Run(Folder):
    """One run folder. Opening it creates nothing; `begin` does, once everything given has been checked."""

    kind = "run"
    marks = (_TEACHER, RECIPE)

    @classmethod
    def choose(cls, folder: str | Path | None, recipe: Recipe, identity: Mapping[str, str]) -> Run:
        """Open the given folder; else the first under runs/ with a telling name that is free or holds this very run."""
        if folder is not None:
            run = cls(folder)
        else:
            name, at, width = recipe.teacher.architecture.rpartition(":")[2].lower().partition("@")
            architecture = name.rpartition(".")[2] + at + width
            rate = f"-x{recipe.sparsity.rate:g}" if find_method(recipe.method).prunes else ""
            name = f"{Path(recipe.data.name).name}-{architecture}-{recipe.method}{rate}-seed{recipe.training.seed}"
            for number in itertools.count(1):
                run = cls(Path("runs") / (name if number == 1 else f"{name}-{number}"))
                if not run.path.exists() or (run.started and not run.differences(recipe, identity)):
                    break
        run.check(run.differences(recipe, identity) if run.started else {})
        return run

    def differences(self, recipe: Recipe, identity: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
        """Return in what a started run is not this one: settings, the teacher, the data; there, and here."""
        known = self.read_json(_TEACHER)
        pairs = {name: (known.get(name, ""), value) for name, value in identity.items()}
        other = {name: (there[:12], now[:12]) for name, (there, now) in pairs.items() if there != now}
        return recorded_recipe(self.path).differences(recipe) | other

    def begin(self, recipe: Recipe, teacher: Mapping[str, Any]) -> None:
        """Create the folder; its recipe is written last, so a folder with a recipe is complete."""
        self.make()
        self.write_json(_TEACHER, teacher)
        self.write_text(RECIPE, to_toml(recipe))

    def result(self) -> dict[str, Any]:
        """Return what result.json says, which is all that a finished run writes there."""
        summary = self.read_json(RESULT)
        wanted = _OF_ANY | (_OF_PRUNING if "pruned" in summary else _OF_TRAINING)
        if lost := wanted - summary.keys():
            raise InputError(f"{self.path / RESULT} is damaged: it has no {min(lost)}; run it anew elsewhere")
        return summary

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with naming(self.path), (self.path / _METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl."""
        path = self.path / _METRICS
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [self.parse(line, _METRICS) for line in lines]

    def resuming(self) -> str:
        """Tell from where a run that was begun goes on."""
        kept = (self.path / _STATE, self.path / "model.safetensors")
        return "resuming" if any(file.exists() for file in kept) else "resuming from the start: no epoch had ended"

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Keep the state of the engine."""
        with naming(self.path):
            (self.path / _STATE).parent.mkdir(exist_ok=True)
        with replacing(self.path / _STATE) as file:
            torch.save(dict(state), file)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the last checkpoint, or None; metrics.jsonl is cut back to what it knows."""
        path = self.path / _STATE
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
        file = self.path / _METRICS
        if file.exists():
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            self.write_text(_METRICS, "".join(lines[: state["lines"] if state else 0]))
        return state

    def save_model(self, model: nn.Module, about: Mapping[str, Any]) -> None:
        """Write model.safetensors, and what it is into model.json."""
        with replacing(self.path / "model.safetensors") as file:
            file.write(to_safetensors(model.state_dict()))
        self.write_json("model.json", about)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json and drop the checkpoint: the run is done."""
        self.write_json(RESULT, result)
        shutil.rmtree((self.path / _STATE).parent, ignore_errors=True)
