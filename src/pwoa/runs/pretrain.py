"""Robust training from end to end: recipe → data → network → method → engine → evaluation → run folder."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pwoa.data.images import Data
from pwoa.errors import InputError, counted
from pwoa.evaluation.checks import warn_of
from pwoa.evaluation.folder import OF_MODEL
from pwoa.guard import example_free
from pwoa.methods import find_training
from pwoa.models.architectures.registry import architecture_name, build, lite_width
from pwoa.models.border import check_model
from pwoa.models.checkpoints.files import open_checkpoint
from pwoa.models.checkpoints.fitting import fill
from pwoa.models.checkpoints.folder import describe_model
from pwoa.models.factory import load_factory
from pwoa.models.load import load_model, refuse_exported
from pwoa.progress import Progress, choose_progress
from pwoa.recipe import AUTO, Recipe, load_recipe, teacher_recipe_for
from pwoa.recipe.settings import is_factory, merge
from pwoa.runs import prepare
from pwoa.runs.folder import Result, Run
from pwoa.training import Engine, Material
from pwoa.training.processes import connected


def pretrain(
    model: nn.Module | None = None,
    data: Any = None,
    *,
    method: str | None = None,
    recipe: str | Path | Recipe | None = None,
    settings: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> Result:
    """Train a robust model with adversarial examples, evaluate it, and keep everything in a run folder.

    Example: `pretrain(data="cifar10", recipe="teacher-cifar10", method="trades").model`.

    model: any nn.Module from images in [0, 1] to logits; it is not changed. None takes the recipe's architecture,
        "teacher.architecture": a registered name, or `file.py:Net` of your own code.
    data: whatever `load_data` takes; None takes the recipe's.
    recipe: a preset's name, a TOML file or a Recipe; None takes the preset for the data, else that for MNIST.
    method: pgd-at, trades, mart, hbar, lbgat, fast-at or natural; short for the setting "method".
    settings: changes to the recipe, as {"section.key": value}.
    folder: where the run lives; the same folder again resumes it. None chooses one under runs/.
    progress: by default bars on a terminal and nothing elsewhere; False shows nothing, True lines everywhere.
    What the defence checks find is also a Python warning (`pwoa.errors.DefenceWarning`). So is a threat that nobody
    chose, where no progress says it (`pwoa.errors.ThreatWarning`).
    """
    progress = choose_progress(progress)
    prepare.check_network(model, "model")
    changes = merge(settings, {"method": method})
    if model is not None:
        changes |= {"teacher.architecture": architecture_name(model), "teacher.checkpoint": "given"}

    with progress.working(prepare.LOADING):
        given = prepare.load_given(data, changes, progress)
    usual = teacher_recipe_for(changes.get("data.name", "mnist"))
    plan = load_recipe(recipe or usual or "teacher-mnist", changes).with_settings(changes)
    training = find_training(plan.method)
    with progress.working(prepare.LOADING):
        loaded = prepare.load_rest(training.complete(plan), given, progress).on_device()
        if model is None and loaded.recipe.teacher.architecture == AUTO:
            loaded = replace(loaded, recipe=_like_checkpoint(loaded.recipe, loaded.data))
        network, size = _make_network(loaded.recipe, loaded.data, model)
        network = copy.deepcopy(network).to(loaded.device)
        check_model(network, loaded.sample, loaded.data.classes)
        material = Material.of(loaded.data, loaded.recipe, loaded.device)
        identity = {"data": loaded.data.fingerprint(), **prepare.hash_files(training, plan)}
    notes = []
    if recipe is None and usual is None:
        notes = prepare.note_defaults(plan, changes, None, training.stage_epochs(plan), progress)

    with ExitStack() as holding:
        with connected(loaded.device) as processes:
            progress = progress if processes.first else Progress()
            run, loaded = prepare.open_run(folder, loaded, identity, processes, holding, progress)
            if done := prepare.finished_result(run, network, processes, progress):
                warn_of(prepare.findings_in(done.summary, loaded.recipe.threat))
                return done
            plan = loaded.recipe
            notes = [*prepare.hints_of(training, plan), *notes]
            progress.say(_announce(loaded, material, size, run, prepare.where_text(loaded, processes), notes))
            with prepare.resumable(run, progress):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(plan.training.seed + 1)  # a guide is not the network that it guides
                    stage = training(network, material, plan)
                prepare.lay_out(stage.trained, torch.channels_last)
                journal = prepare.journal_of(run, plan, processes)
                engine = Engine(stage.trained, [stage], material, plan.training, journal, progress, processes=processes)
                progress.plan([*engine.parts(), *prepare.measuring_parts(network, loaded, "model")])
                if processes.by_first(lambda: run.started):
                    progress.say(run.resuming())
                elif processes.first:
                    run.begin(plan, identity)
                with ExitStack() as guard:
                    if stage.example_free:
                        guard.enter_context(example_free(network))
                    engine.train()
                network.eval()
                prepare.lay_out(network, torch.contiguous_format)
                if processes.first:
                    about = describe_model(network, loaded.data.classes, loaded.channels)
                    model_hash = run.save_model(network, {**about, **identity, "threat": asdict(plan.threat)})
        if not processes.first:
            return Result(network, run.path, {}, [])
        with prepare.resumable(run, progress):
            scores = prepare.measure_model(network, model_hash, loaded, run.path / OF_MODEL, "model", progress)
            summary = {
                **prepare.training_summary(loaded, engine, processes),
                "example_free": stage.example_free,
                **size,
                "dataset": plan.data.name,
                "epochs": plan.pretrain.epochs,
                "model": model_hash,
                "accuracy": scores.accuracies,
                **prepare.evaluation_summary(scores),
            }
            summary = run.finish(summary)
    warn_of(prepare.findings_in(summary, loaded.recipe.threat))
    return Result(network, run.path, summary, run.metrics())


def robust_accuracy(result: Result) -> float:
    """Return how robust a trained model is, in percent: on validation images, by the attack that checks teachers.

    That is of the epoch that was selected. Of one that was not attacked in training it is the lowest accuracy on test
    images.
    """
    selected = result.summary.get("selected_epoch")
    validated: Mapping[str, float] = {}
    validated = next((line["validation"] for line in result.metrics if line["epoch"] == selected), validated)
    if "robust_error" in validated:
        return float(100 - validated["robust_error"])
    return float(min(result.summary["accuracy"].values()))


def _like_checkpoint(recipe: Recipe, data: Data) -> Recipe:
    """Return the recipe with the architecture that its checkpoint is of, which is trained anew."""
    if not recipe.teacher.checkpoint:
        raise InputError("name the architecture to train, or your own class: --arch NAME or FILE.py:CLASS")
    refuse_exported(recipe.teacher.checkpoint)
    name = architecture_name(load_model(recipe.teacher.checkpoint, data))
    return recipe.with_settings({"teacher.architecture": name})


def _make_network(recipe: Recipe, data: Data, given: nn.Module | None) -> tuple[nn.Module, dict[str, Any]]:
    """Return the given network, or a new one of the recipe's architecture, Lite if it says so; and how large it is.

    An architecture `file.py:Net` is of the user's own code.
    """
    name, lite, channels = recipe.teacher.architecture, recipe.pretrain.lite, data.train.pixels.shape[1]
    start = recipe.pretrain.start
    if given is not None and start:
        raise InputError("a network that is given has its own weights; leave out pretrain.start")
    if start and lite > 1:
        raise InputError(
            "pretrain.lite makes a new network; to start from a Lite one, leave it out and name the width, as in "
            "--arch resnet18@0.5"
        )
    if given is not None or is_factory(name):
        if lite > 1:
            raise InputError("pretrain.lite narrows an architecture by name; leave it out for a network of your own")
        if given is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(recipe.training.seed)
                given = load_factory(name)
            given = _filled(given, start, channels)
        return given, {"architecture": architecture_name(given), "parameters": _count(given), "rate": 1.0}
    lite_name = f"{name.partition('@')[0]}@{lite_width(name, data.classes, channels, lite)}" if lite > 1 else name
    with torch.device("meta"):
        dense = build(name, data.classes, channels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        network = _filled(build(lite_name, data.classes, channels), start, channels)
    size = {"parameters": _count(network), "rate": _count(dense) / _count(network)}
    return network, {"architecture": architecture_name(network), **size}


def _filled(network: nn.Module, start: str, channels: int) -> nn.Module:
    """Return the network with the weights that training starts from, if they are not those that were drawn."""
    return fill(network, open_checkpoint(start), start, channels=channels) if start else network


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _announce(
    loaded: prepare.Loaded,
    material: Material,
    size: Mapping[str, Any],
    run: Run,
    where: str,
    notes: Sequence[str],
) -> str:
    """Tell a person what is going to be done."""
    recipe = loaded.recipe
    fewer = f", {size['rate']:.4g}× fewer than {recipe.teacher.architecture}" if recipe.pretrain.lite > 1 else ""
    start = f" from {recipe.pretrain.start}" if recipe.pretrain.start else ""
    return (
        f"{recipe.method}: {size['architecture']} ({size['parameters']:,} parameters{fewer}) on {recipe.data.name}, "
        f"{counted(recipe.pretrain.epochs, 'epoch')}{start} on {material.in_words()}, {where}\n"
        f"threat: {recipe.threat}; run folder: {run.path}"
    ) + "".join(f"\nnote: {note}" for note in notes)
