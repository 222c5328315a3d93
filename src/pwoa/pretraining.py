"""Robust training from end to end: recipe → data → network → method → engine → evaluation → run folder."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pwoa.data import Data, load_data
from pwoa.devices import choose_device, device_name
from pwoa.errors import InputError
from pwoa.evaluation import parse_attacks, robustness, work
from pwoa.methods import find_pretraining
from pwoa.models import architecture_name, build, check_model, lite_width
from pwoa.pipeline import Result, held_run, lay_out, resumable, settled_mode
from pwoa.progress import Progress
from pwoa.recipe import Recipe, load_recipe
from pwoa.run import Run, describe_model, load_run
from pwoa.training import Engine, Material
from pwoa.training.processes import Processes, own_device, started


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
    changes = dict(settings or {}) | ({} if method is None else {"method": method})
    subject = _prepare(model, data, recipe, changes, progress)
    with ExitStack() as holding:
        with started(subject.device) as processes:
            progress = progress if processes.first else Progress()
            run = processes.by_first(lambda: held_run(folder, subject.recipe, subject.identity, holding))
            mode = processes.by_first(lambda: settled_mode(run, subject.recipe, subject.device))
            subject = replace(subject, recipe=subject.recipe.with_settings({"training.mode": mode}))
            if processes.by_first(lambda: run.finished):
                progress.say(f"{run.path} is finished, nothing is left to do")
                return Result(load_run(run.path, subject.model), run.path, run.read_json("result.json"), run.metrics())
            progress.say(_announcement(subject, run))
            with resumable(run, progress):
                training = _train(subject, run, progress, processes)
        if not processes.first:
            return Result(subject.model, run.path, {}, [])
        with resumable(run, progress):
            summary = training | _evaluate(subject, progress)
            run.finish(summary)
    return Result(subject.model, run.path, summary, run.metrics())


@dataclass(frozen=True)
class _Subject:
    """Everything the training starts from, checked and on the device."""

    recipe: Recipe
    data: Data
    model: nn.Module
    material: Material
    device: torch.device
    identity: dict[str, str]
    size: dict[str, Any]


def _prepare(
    model: nn.Module | None, data: Any, source: str | Path | Recipe, settings: dict[str, Any], progress: Progress
) -> _Subject:
    loaded = None if data is None else load_data(data, progress=progress.reach)
    if loaded is not None:
        settings["data.name"] = str(data) if isinstance(data, (str, Path)) else loaded.name
    if model is not None:
        settings |= {"teacher.architecture": architecture_name(model), "teacher.checkpoint": "given"}
    recipe = load_recipe(source).with_settings(settings)
    find_pretraining(recipe.method)
    parse_attacks(recipe.evaluation.attacks)
    if loaded is None:
        loaded = load_data(recipe.data.name, folder=recipe.data.folder or None, progress=progress.reach)
        progress.close()
    device = choose_device(own_device(recipe.training.device))
    loaded = loaded.to(device)
    fresh, size = _network(recipe, loaded, model)
    network = copy.deepcopy(fresh).to(device)
    check_model(network, loaded.train.batch(torch.arange(2, device=device))[0], loaded.classes)
    material = Material.of(loaded, recipe, device)
    return _Subject(recipe, loaded, network, material, device, {"data": loaded.fingerprint()}, size)


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


def _announcement(subject: _Subject, run: Run) -> str:
    recipe, size = subject.recipe, subject.size
    fewer = f", {size['rate']:.4g}× fewer than {recipe.teacher.architecture}" if recipe.pretrain.lite > 1 else ""
    return (
        f"{recipe.method}: {size['architecture']} ({size['parameters']:,} parameters{fewer}) on {recipe.data.name}, "
        f"{recipe.pretrain.epochs} epochs on "
        f"{len(subject.material.train):,} images, {device_name(subject.device)}\n"
        f"threat: {recipe.threat.norm} {recipe.threat.radius:.4g}; run folder: {run.path}"
    )


def _train(subject: _Subject, run: Run, progress: Progress, processes: Processes) -> dict[str, Any]:
    """Train the model and save it in the run folder; what is to be said of its training."""
    recipe, model = subject.recipe, subject.model
    lay_out(model, torch.channels_last)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        stage = find_pretraining(recipe.method)(model, subject.material, recipe)
    if processes.by_first(lambda: run.started):
        progress.say("resuming")
    elif processes.first:
        run.begin(recipe, subject.identity)
    engine = Engine(stage.trained, [stage], subject.material, recipe.training, run, progress, processes=processes)
    engine.train()
    model.eval()
    lay_out(model, torch.contiguous_format)
    if processes.first:
        about = describe_model(model, subject.data.classes, subject.data.train.pixels.shape[1])
        run.save_model(model, {**about, **subject.identity, "threat": asdict(recipe.threat)})
    return {
        "method": recipe.method,
        "example_free": False,
        **subject.size,
        "dataset": recipe.data.name,
        "epochs": recipe.pretrain.epochs,
        "selected_epoch": engine.selected,
        "seed": recipe.training.seed,
        "device": device_name(subject.device),
        "processes": processes.count,
        "training_seconds": engine.seconds,
    }


def _evaluate(subject: _Subject, progress: Progress) -> dict[str, Any]:
    recipe, test = subject.recipe, subject.data.test
    images = test.first(recipe.evaluation.images or len(test))
    attacks = parse_attacks(recipe.evaluation.attacks)
    progress.start("evaluating", work(len(images), attacks))
    scores = robustness(
        subject.model,
        images,
        recipe.threat,
        attacks,
        classes=subject.data.classes,
        batch=recipe.evaluation.batch,
        seed=recipe.training.seed,
        advance=progress.advance,
    )
    return {"images": scores.images, "accuracy": scores.accuracy}
