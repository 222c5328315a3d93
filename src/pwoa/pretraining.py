"""Robust training from end to end: recipe → data → network → method → engine → evaluation → run folder."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pwoa.data import Data
from pwoa.devices import device_name
from pwoa.errors import InputError
from pwoa.methods import find_pretraining
from pwoa.models import architecture_name, build, check_model, lite_width
from pwoa.progress import Progress
from pwoa.recipe import Recipe, load_recipe
from pwoa.run import Run, describe_model, load_run
from pwoa.training import Engine, Material
from pwoa.training.processes import Processes
from pwoa.words import counted
from pwoa.work import Result, Work, check_network, lay_out, merged, prepared


def pretrain(
    model: nn.Module | None = None,
    data: Any = None,
    *,
    method: str | None = None,
    recipe: str | Path | Recipe = "teacher-mnist",
    settings: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Train a robust model with adversarial examples, evaluate it, and keep everything in a run folder.

    model: any nn.Module from images in [0, 1] to logits; it is not changed. None takes the recipe's architecture.
    data: whatever `load_data` takes; None takes the recipe's.
    method: pgd-at, trades, mart, hbar, lbgat or fast-at; short for the setting "method".
    folder: where the run lives; the same folder again resumes it. None chooses one under runs/.
    """
    progress = progress or Progress()
    check_network(model, "model")
    changes = merged(settings, {"method": method})
    return _prepare(model, data, recipe, changes, progress).carry_out(folder, progress)


@dataclass
class _Pretraining(Work):
    """A network that is trained, and how large it is."""

    model: nn.Module
    size: dict[str, Any]

    def announcement(self, run: Run, processes: Processes) -> str:
        recipe, size = self.recipe, self.size
        fewer = f", {size['rate']:.4g}× fewer than {recipe.teacher.architecture}" if recipe.pretrain.lite > 1 else ""
        return (
            f"{recipe.method}: {size['architecture']} ({size['parameters']:,} parameters{fewer}) "
            f"on {recipe.data.name}, {counted(recipe.pretrain.epochs, 'epoch')} on "
            f"{self.material.in_words()}, {device_name(self.device)}\n"
            f"threat: {recipe.threat.norm} {recipe.threat.radius:.4g}; run folder: {run.path}"
        )

    def done_before(self, run: Run) -> nn.Module:
        return load_run(run.path, self.model)

    def train(self, run: Run, progress: Progress, processes: Processes) -> tuple[nn.Module, dict[str, Any]]:
        recipe, model = self.recipe, self.model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.training.seed + 1)  # a guide is not the network that it guides
            stage = find_pretraining(recipe.method)(model, self.material, recipe)
        lay_out(stage.trained, torch.channels_last)
        engine = Engine(stage.trained, [stage], self.material, recipe.training, run, progress, processes=processes)
        if processes.by_first(lambda: run.started):
            progress.say(run.resuming())
        elif processes.first:
            run.begin(recipe, self.identity)
        engine.train()
        model.eval()
        lay_out(model, torch.contiguous_format)
        if processes.first:
            about = describe_model(model, self.data.classes, self.data.train.pixels.shape[1])
            run.save_model(model, {**about, **self.identity, "threat": asdict(recipe.threat)})
        return model, {
            "method": recipe.method,
            "example_free": False,
            **self.size,
            "dataset": recipe.data.name,
            "epochs": recipe.pretrain.epochs,
            "selected_epoch": engine.selected,
            "seed": recipe.training.seed,
            "device": device_name(self.device),
            "processes": processes.count,
            "training_seconds": engine.seconds,
        }

    def evaluate(self, model: nn.Module, run: Run, progress: Progress) -> dict[str, Any]:
        scores = self.measured(model, "model", progress)
        return {"images": scores.images, "accuracy": scores.accuracy}


def _prepare(
    model: nn.Module | None, data: Any, source: str | Path | Recipe, settings: dict[str, Any], progress: Progress
) -> _Pretraining:
    if model is not None:
        settings |= {"teacher.architecture": architecture_name(model), "teacher.checkpoint": "given"}
    recipe, loaded, device = prepared(data, lambda _: load_recipe(source), settings, find_pretraining, progress)
    fresh, size = _network(recipe, loaded, model)
    network = copy.deepcopy(fresh).to(device)
    check_model(network, loaded.train.batch(torch.arange(2, device=device))[0], loaded.classes)
    material = Material.of(loaded, recipe, device)
    identity = {"data": loaded.fingerprint()}
    return _Pretraining(recipe, loaded, material, device, identity, network, size)


def _network(recipe: Recipe, data: Data, given: nn.Module | None) -> tuple[nn.Module, dict[str, Any]]:
    """The given network, or a new one of the recipe's architecture, Lite if it says so; and how large it is."""
    name, lite, channels = recipe.teacher.architecture, recipe.pretrain.lite, data.train.pixels.shape[1]
    if given is not None:
        if lite > 1:
            raise InputError("pretrain.lite narrows an architecture by name; leave it out for a network of your own")
        return given, {"architecture": architecture_name(given), "parameters": _parameters(given), "rate": 1.0}
    lite_name = f"{name.partition('@')[0]}@{lite_width(name, data.classes, channels, lite)}" if lite > 1 else name
    with torch.device("meta"):
        dense = build(name, data.classes, channels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        network = build(lite_name, data.classes, channels)
    size = {"parameters": _parameters(network), "rate": _parameters(dense) / _parameters(network)}
    return network, {"architecture": architecture_name(network), **size}


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
