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
import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pwoa.errors import InputError, first_line
from pwoa.methods import find_method
from pwoa.models.checkpoints.folder import DESCRIPTION, WEIGHTS, fingerprint, to_safetensors
from pwoa.recipe import RECIPE, Recipe, recorded_recipe, sealed_toml
from pwoa.storage.folder import RESULT, Folder, appending, naming, replacing

_TEACHER, _METRICS, _STATE = "teacher.json", "metrics.jsonl", Path("checkpoint") / "state.pt"
_OF_ANY = {"method", "example_free", "images", "seed", "device", "training_seconds"}
_OF_PRUNING = {"teacher", "pruned", "rate", "sparsity"}
_OF_TRAINING = {"accuracy", "architecture"}
"""What is in result.json: of any run, of one that pruned, and of one that trained from scratch."""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def are_accuracies(value: Any) -> bool:
    """Tell whether these can be accuracies by attack: in percent, and none above the natural one."""
    if not isinstance(value, Mapping) or not value or not all(_is_number(number) for number in value.values()):
        return False
    short = [number for name, number in value.items() if name == "natural" or name.startswith(("pgd", "cw", "fgsm"))]
    return all(0 <= number <= 100 for number in value.values()) and max(short, default=0) <= value.get("natural", 100)


def _are_layers(value: Any) -> bool:
    rows = value if isinstance(value, list) and value else [None]
    return all(
        isinstance(row, dict)
        and _is_text(row.get("layer"))
        and _is_count(row.get("total"))
        and _is_count(row.get("kept"))
        and _is_number(row.get("rate", 1))
        for row in rows
    )


def _are_warnings(value: Any) -> bool:
    rows = value if isinstance(value, list) else [None]
    return all(isinstance(row, dict) and _is_text(row.get("check")) and _is_text(row.get("message")) for row in rows)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "method": _is_text,
    "example_free": lambda value: isinstance(value, bool),
    "images": lambda value: _is_count(value) and value > 0,
    "seed": _is_count,
    "device": _is_text,
    "training_seconds": _is_number,
    "evaluation_seconds": _is_number,
    "rate": _is_number,
    "sparsity": _are_layers,
    "teacher": are_accuracies,
    "pruned": are_accuracies,
    "accuracy": are_accuracies,
    "architecture": _is_text,
    "parameters": _is_count,
    "warnings": _are_warnings,
}
"""What the values of result.json can be."""


@dataclass(frozen=True)
class Result:
    """A pruned or trained model, its run folder, what was measured (result.json) and its epochs (metrics.jsonl)."""

    model: nn.Module
    folder: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


class Run(Folder):
    """One run folder. Opening it creates nothing; `begin` does, once everything given has been checked."""

    kind = "run"
    marks = (_TEACHER, RECIPE)
    passing = (_STATE.parent.name,)

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
        self.write_text(RECIPE, sealed_toml(recipe))

    def result(self) -> dict[str, Any]:
        """Return what result.json says, which is all that a finished run writes there."""
        summary = self.read_json(RESULT)
        wanted = _OF_ANY | (_OF_PRUNING if "pruned" in summary else _OF_TRAINING)
        if lost := wanted - summary.keys():
            raise InputError(f"{self.path / RESULT} is damaged: it has no {min(lost)}; run it anew elsewhere")
        if odd := [key for key, check in _CHECKS.items() if key in summary and not check(summary[key])]:
            raise InputError(f"{self.path / RESULT} is damaged: its {odd[0]} cannot be; run it anew elsewhere")
        if "model" in summary and summary["model"] != self.read_json(DESCRIPTION).get("fingerprint"):
            raise InputError(f"{self.path / RESULT} is of another model than {DESCRIPTION}; run it anew elsewhere")
        return summary

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with naming(self.path), appending(self.path / _METRICS) as file:
            file.write(json.dumps(line).encode() + b"\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl."""
        path = self.path / _METRICS
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [self.parse(line, _METRICS) for line in lines]

    def resuming(self) -> str:
        """Tell from where a run that was begun goes on."""
        kept = (self.path / _STATE, self.path / WEIGHTS)
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

    def save_model(self, model: nn.Module, about: Mapping[str, Any]) -> str:
        """Write model.safetensors, and what it is into model.json; return its fingerprint."""
        written = fingerprint(model)
        with replacing(self.path / WEIGHTS) as file:
            file.write(to_safetensors(model.state_dict()))
        self.write_json(DESCRIPTION, {**about, "fingerprint": written})
        return written

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json and drop the checkpoint: the run is done."""
        self.write_json(RESULT, result)
        self.tidy()
