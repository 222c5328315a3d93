"""Pruning from end to end: recipe → data → teacher → gate → method → engine → evaluation → run folder."""

import copy
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pwoa.data.catalog import fitting_name
from pwoa.data.images import Data
from pwoa.errors import InputError, counted, first_line
from pwoa.evaluation.checks import warn_of
from pwoa.evaluation.folder import OF_MODEL, OF_TEACHER, check_shared, copy_finished
from pwoa.evaluation.measure import SHORT, WEAK_TEACHER, check_teacher, checked_text, not_robust, parts, teacher_check
from pwoa.evaluation.subject import Subject
from pwoa.guard import example_free
from pwoa.methods import find_pruning
from pwoa.methods.method import Method
from pwoa.methods.pace import pace_notes
from pwoa.models.architectures.registry import architecture_name
from pwoa.models.border import check_model
from pwoa.models.checkpoints.files import EMBEDDED
from pwoa.models.checkpoints.fitting import OtherImages
from pwoa.models.checkpoints.folder import describe_model, fingerprint
from pwoa.models.load import trained_threat
from pwoa.progress import Progress, choose_progress
from pwoa.recipe import (
    Recipe,
    SparsityRecipe,
    load_recipe,
    preset_for,
    recipe_for,
    recorded_recipe,
    records_recipe,
)
from pwoa.recipe.settings import is_factory, merge
from pwoa.runs import prepare
from pwoa.runs.folder import Result, Run
from pwoa.runs.teacher import load_teacher, share_measurement
from pwoa.sparsity import describe_size, prunable
from pwoa.sparsity.allocation import LEARNED
from pwoa.sparsity.constraint import plan_notes, warn_of_thin_layers
from pwoa.storage.paths import as_path
from pwoa.threat import Threat
from pwoa.training import Engine, Material
from pwoa.training.processes import connected
from pwoa.training.validation import hsic_plane

GATE_IMAGES = 500
"""How many validation images the teacher's robustness is checked on."""
PLANE = ("objective.points", "objective.hsic")
"""The settings of the HSIC plane, on which every run is shown."""


def prune(
    teacher: nn.Module | str | os.PathLike[str] | None = None,
    data: Any = None,
    *,
    rate: float | None = None,
    method: str | None = None,
    recipe: str | Path | Recipe | None = None,
    settings: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    force: bool = False,
    teacher_evaluation: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> Result:
    """Prune a robust model with natural examples only, evaluate it, and keep everything in a run folder.

    Example: `prune(load_model("trades.pt"), "cifar10", rate=8, folder="runs/mine").summary["pruned"]`.

    teacher: any nn.Module from images in [0, 1] to logits, which is not changed; or what `load_model` takes, a run
        as `prune` and `pretrain` return it too, short for the setting "teacher.checkpoint". None takes the recipe's.
    data: whatever `load_data` takes; None takes the recipe's.
    recipe: a preset's name, a TOML file or a Recipe; None takes the method's preset for the data, with the threat of
        the teacher's own run, and its data if none are given.
    settings: changes to the recipe, as {"section.key": value}.
    rate: short for the setting "sparsity.rate", unpruned size over pruned size.
    method: short for the setting "method": pwoa, advprune, hydra, harp, apd or magnitude. The competing methods are
        published with training.mix 1.
    folder: where the run lives; the same folder again resumes it. None chooses one under runs/.
    force: prune even a teacher that fails the check of its robustness.
    teacher_evaluation: the folder of the teacher's evaluation, which runs of the same recipe share: it is measured
        there unless it has been before.
    progress: by default bars on a terminal and nothing elsewhere; False shows nothing, True lines everywhere.
    What the defence checks find is also a Python warning (`pwoa.errors.DefenceWarning`). So is a threat that nobody
    chose, where no progress says it (`pwoa.errors.ThreatWarning`).
    """
    progress = choose_progress(progress)
    teacher = as_path(teacher)
    if isinstance(teacher, (str, Path)):
        settings, teacher = merge(settings, {"teacher.checkpoint": str(teacher)}), None
    prepare.check_network(teacher, "teacher")
    if teacher_evaluation is not None:
        check_shared(teacher_evaluation)
    changes = merge(settings, {"sparsity.rate": rate, "method": method})
    if teacher is not None:
        changes |= {"teacher.architecture": architecture_name(teacher), "teacher.checkpoint": "given"}

    with progress.working(prepare.LOADING):
        given = prepare.load_given(data, changes, progress)
    plan = _choose_recipe(recipe, given, changes).with_settings(changes)
    _check_named(changes, plan)
    pruning = find_pruning(plan.method)
    trained = None if teacher is not None else trained_threat(plan.teacher.checkpoint)
    with progress.working(prepare.LOADING):
        loading = prepare.load_rest(pruning.complete(plan), given, progress)
        if teacher is None:
            try:
                teacher, architecture = load_teacher(loading.recipe, loading.data)
            except OtherImages as error:
                if recipe is not None or "data.name" in changes:
                    raise
                fits = fitting_name(error.guess.channels, error.guess.classes) or "NAME"
                raise InputError(f"{error}; {loading.data.name} is the default, so give --data {fits}") from None
            loading = replace(loading, recipe=loading.recipe.with_settings({"teacher.architecture": architecture}))
        loaded = loading.on_device()
        student = _copy_to_prune(teacher, loaded.recipe.sparsity).to(loaded.device)
        teacher = copy.deepcopy(student).eval().requires_grad_(False)
        check_model(teacher, loaded.sample, loaded.data.classes)
        material = Material.of(loaded.data, loaded.recipe, loaded.device)
        identity = {
            "teacher": fingerprint(teacher),
            "data": loaded.data.fingerprint(),
            **prepare.hash_files(pruning, plan),
        }
    notes = [*pace_notes(plan, loaded.recipe), *_note_threat(trained, plan.threat)]
    if recipe is None and (preset := preset_for(plan.data.name, plan.method) or preset_for(plan.data.name)):
        short = ", which is short and for a first look" if preset == "demo" else ""
        notes.append(
            f"no recipe was given, so the preset {preset} holds{short}; --recipe takes another (in Python: recipe=)"
        )
    elif recipe is None:
        notes += prepare.note_defaults(plan, changes, trained, pruning.stage_epochs(loaded.recipe), progress)

    with ExitStack() as holding:
        with connected(loaded.device) as processes:
            progress = progress if processes.first else Progress()
            run, loaded = prepare.open_run(folder, loaded, identity, processes, holding, progress)
            if done := prepare.finished_result(run, student, processes, progress):
                warn_of(prepare.findings_in(done.summary, loaded.recipe.threat))
                return done
            plan = loaded.recipe
            notes = [*prepare.hints_of(pruning, plan, PLANE), *notes]
            announcement = _announce(pruning, loaded, material, run, prepare.where_text(loaded, processes), notes)
            with prepare.resumable(run, progress):
                prepare.lay_out(student, torch.channels_last)
                chosen = pruning(student, teacher, material, plan)
                kept = None if pruning.learns_allocation(plan) else chosen.constraint.kept
                progress.say("\n".join([announcement, *plan_notes(student, plan.sparsity, kept)]))
                for stage in chosen.stages:
                    stage.accuracy_of = _validated_on(plan.training.mix)
                    stage.attacks = not chosen.example_free
                probe = hsic_plane(student, material, plan.objective.points, plan.objective.hsic == "normalised")
                journal = prepare.journal_of(run, plan, processes)
                engine = Engine(student, chosen.stages, material, plan.training, journal, progress, probe, processes)
                subject = Subject(teacher, material.held_out().first(GATE_IMAGES), loaded.data, loaded.device)
                known = [] if teacher_evaluation else prepare.measuring_parts(teacher, loaded, "teacher")
                measuring = [*known, *prepare.measuring_parts(student, loaded, "pruned model")]
                progress.plan([*parts(subject, *teacher_check(plan)), *engine.parts(), *measuring])
                if processes.by_first(lambda: run.started):
                    progress.say(run.resuming())
                else:
                    checked = check_teacher(subject, plan, force=force, progress=progress)
                    progress.say(checked_text(checked, plan))
                    if processes.first:
                        run.begin(plan, {**identity, **checked})
                with ExitStack() as guard:
                    if chosen.example_free:
                        guard.enter_context(example_free(student, teacher))
                    engine.train()
                student.eval()
                prepare.lay_out(student, torch.contiguous_format)
                size = describe_size(student, plan.sparsity, material.example())
                if processes.first:
                    about = describe_model(student, loaded.data.classes, loaded.channels)
                    about |= {**identity, "threat": asdict(plan.threat), **size}
                    model_hash = run.save_model(student, about)
        if not processes.first:
            return Result(student, run.path, {}, [])
        with prepare.resumable(run, progress):
            start = time.perf_counter()
            place = run.path / OF_TEACHER
            if teacher_evaluation is not None and not place.exists():
                share_measurement(teacher, identity["teacher"], loaded, Path(teacher_evaluation), progress)
                copy_finished(teacher_evaluation, place)
            told = progress if teacher_evaluation is None else Progress()
            dense = prepare.measure_model(teacher, identity["teacher"], loaded, place, "teacher", told)
            pruned = prepare.measure_model(student, model_hash, loaded, run.path / OF_MODEL, "pruned model", progress)
            summary = {
                **prepare.training_summary(loaded, engine, processes),
                "example_free": chosen.example_free,
                **size,
                "model": model_hash,
                "teacher": dense.accuracies,
                "pruned": pruned.accuracies,
                **prepare.evaluation_summary(pruned, dense),
                "evaluation_seconds": time.perf_counter() - start,
            }
            left = {row["layer"]: row["kept"] for row in size["sparsity"]}
            if warning := warn_of_thin_layers(student, plan.sparsity, left):
                summary["warnings"].append({"check": "thin layers", "message": warning})
            if weakness := not_robust(run.teacher("natural", SHORT, "images"), plan):
                summary["warnings"].append({"check": WEAK_TEACHER, "message": weakness})
            summary = run.finish(summary)
    warn_of(prepare.findings_in(summary, loaded.recipe.threat))
    return Result(student, run.path, summary, run.metrics())


def _validated_on(mix: float) -> str:
    """Return which accuracy is that of the validation split, which is attacked as the batches are."""
    return "natural" if not mix else "adversarial" if mix == 1 else f"{100 * mix:g} % adversarial"


def _choose_recipe(source: str | Path | Recipe | None, data: Data | None, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe that is given, else the preset for the data, with what the teacher's own run says.

    That is its threat, and its data where none are given.
    """
    if source is not None:
        return load_recipe(source, changes)
    teacher = changes.get("teacher.checkpoint", "")
    where = {"data.name": changes.get("data.name", "mnist-mini") if data is None else data.name}
    if data is None and "data.name" not in changes and teacher and records_recipe(teacher):
        there = recorded_recipe(teacher).data
        if there.name == "custom":
            raise InputError(f"{teacher} was made from data given in Python; give --data (in Python: data=)")
        where = {"data.name": there.name, "data.folder": there.folder}
    method = changes.get("method")
    base = recipe_for(where["data.name"], method if isinstance(method, str) else "pwoa").with_settings(where)
    return replace(base, threat=trained_threat(teacher or base.teacher.checkpoint) or base.threat)


def _check_named(changes: Mapping[str, Any], plan: Recipe) -> None:
    """Refuse a network of the user's own for the weights of the embedded one, which nobody asked for."""
    own = changes.get("teacher.architecture")
    taken = "teacher.checkpoint" not in changes and plan.teacher.checkpoint == EMBEDDED
    if taken and isinstance(own, str) and is_factory(own):
        name = own.rpartition(":")[2]
        raise InputError(
            f"no --checkpoint was given, so the embedded LeNet was taken; give the weights of {name} (in Python: "
            "teacher=)"
        )


def _note_threat(trained: Threat | None, threat: Threat) -> list[str]:
    """Return a line if the teacher was trained for another attacker than it is pruned for."""
    same = trained is None or str(trained) == str(threat)
    return [] if same else [f"the teacher was trained for {trained}, and is pruned for {threat}"]


def _copy_to_prune(teacher: nn.Module, recipe: SparsityRecipe) -> nn.Module:
    """Copy a model, and train the copy if it is frozen as a whole, as one does for inference.

    What is frozen of another model stays so.
    """
    prunable(teacher, recipe)  # refuses what the copying of it would choke on
    try:
        student = copy.deepcopy(teacher)
    except Exception as error:  # a user's own network can raise anything
        raise InputError(f"the model cannot be copied: {first_line(error)}") from None
    if not any(parameter.requires_grad for parameter in student.parameters()):
        student.requires_grad_(True)
    if frozen := [name for name, weight in prunable(student, recipe).items() if not weight.requires_grad]:
        raise InputError(
            f"the model's {frozen[0]} is frozen, so it cannot be pruned; set requires_grad on it, or name it in "
            "sparsity.exclude"
        )
    return student


def _announce(
    method: type[Method], loaded: prepare.Loaded, material: Material, run: Run, where: str, notes: Sequence[str]
) -> str:
    """Tell a person what is going to be done."""
    recipe = loaded.recipe
    name = "" if recipe.method == "pwoa" else f"{recipe.method}: "
    allocation = recipe.sparsity.allocation
    allocation = "a learned allocation" if allocation == LEARNED else allocation
    shared = f" by {allocation}" if allocation != "uniform" and method.uses_setting("sparsity.allocation") else ""
    stages = method.stage_epochs(recipe)
    epochs = counted(*stages, "epoch") if len(stages) == 1 else f"{' + '.join(map(str, stages))} epochs"
    mix = recipe.training.mix
    examples = f"mix ratio {mix:g}, not example-free" if mix else "natural examples only"
    return (
        f"{name}{recipe.teacher.architecture} on {recipe.data.name}, {recipe.sparsity.rate_text}{shared}, "
        f"{epochs} on {material.in_words()}, {where}\n"
        f"threat: {recipe.threat}; {examples}; run folder: {run.path}"
    ) + "".join(f"\nnote: {note}" for note in notes)
