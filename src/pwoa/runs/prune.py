"""Pruning from end to end: recipe → data → teacher → gate → method → engine → evaluation → run folder."""

import copy
import hashlib
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pwoa.data.images import Data
from pwoa.errors import InputError, counted
from pwoa.evaluation.folder import OF_MODEL, OF_TEACHER
from pwoa.evaluation.measure import check_teacher
from pwoa.evaluation.subject import Subject
from pwoa.guard import example_free
from pwoa.methods import find_pruning
from pwoa.methods.method import Method
from pwoa.models.architectures.registry import architecture_name
from pwoa.models.border import check_model
from pwoa.models.checkpoints.folder import describe_model, fingerprint
from pwoa.models.load import kind_of, load_model
from pwoa.progress import Progress
from pwoa.recipe import AUTO, Recipe, load_recipe, numbers, recipe_for
from pwoa.recipe.settings import is_factory, merge
from pwoa.runs import prepare
from pwoa.runs.folder import Result, Run, are_accuracies
from pwoa.sparsity import count, prunable
from pwoa.training import Engine, Material
from pwoa.training.processes import connected
from pwoa.training.validation import hsic_plane

GATE_IMAGES = 500
"""How many validation images the teacher's robustness is checked on."""


def prune(
    teacher: nn.Module | str | Path | None = None,
    data: Any = None,
    *,
    rate: float | None = None,
    method: str | None = None,
    recipe: str | Path | Recipe | None = None,
    settings: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    force: bool = False,
    teacher_scores: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Prune a robust model with natural examples only, evaluate it, and keep everything in a run folder.

    Example: `prune(load_model("trades.pt"), "cifar10", rate=8, folder="runs/mine").summary["pruned"]`.

    teacher: any nn.Module from images in [0, 1] to logits, which is not changed; or what `load_model` takes, short for
        the setting "teacher.checkpoint". None takes the recipe's.
    data: whatever `load_data` takes; None takes the recipe's.
    recipe: a preset's name, a TOML file or a Recipe; None takes the preset for the data.
    settings: changes to the recipe, as {"section.key": value}; `rate` is short for "sparsity.rate", `method` (pwoa,
        advprune, hydra, harp, apd, magnitude) for "method". The competing methods are published with training.mix 1.
    folder: where the run lives; the same folder again resumes it. None chooses one under runs/.
    force: prune even a teacher that fails the check of its robustness.
    teacher_scores: the teacher's accuracy by attack, if it was measured before by the same recipe.
    """
    progress = progress or Progress()
    if isinstance(teacher, (str, Path)):
        settings, teacher = merge(settings, {"teacher.checkpoint": str(teacher)}), None
    prepare.check_network(teacher, "teacher")
    if teacher_scores is not None and not are_accuracies(teacher_scores):
        raise InputError("teacher_scores must be accuracies in percent by attack, as {'natural': 99.0, 'pgd20': 96.5}")
    changes = merge(settings, {"sparsity.rate": rate, "method": method})
    if teacher is not None:
        changes |= {"teacher.architecture": architecture_name(teacher), "teacher.checkpoint": "given"}

    given = prepare.load_given(data, changes, progress)
    plan = _choose_recipe(recipe, given, changes).with_settings(changes)
    pruning = find_pruning(plan.method)
    loaded = prepare.load_rest(pruning.complete(plan), given, progress)
    if teacher is None:
        teacher, architecture = _load_teacher(loaded.recipe, loaded.data)
        loaded = replace(loaded, recipe=loaded.recipe.with_settings({"teacher.architecture": architecture}))
    student = _thaw(copy.deepcopy(teacher).to(loaded.device))
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    check_model(teacher, loaded.sample, loaded.data.classes)
    material = Material.of(loaded.data, loaded.recipe, loaded.device)
    identity = {"teacher": fingerprint(teacher), "data": loaded.data.fingerprint(), **_hash_files(pruning, plan)}

    with ExitStack() as holding:
        with connected(loaded.device) as processes:
            progress = progress if processes.first else Progress()
            run, loaded = prepare.open_run(folder, loaded, identity, processes, holding)
            if done := prepare.finished_result(run, student, processes, progress):
                return done
            plan = loaded.recipe
            progress.say(_announce(pruning, loaded, material, run, prepare.where_text(loaded, processes)))
            with prepare.resumable(run, progress):
                prepare.lay_out(student, torch.channels_last)
                chosen = pruning(student, teacher, material, plan)
                probe = hsic_plane(student, material, plan.objective.points, plan.objective.hsic == "normalised")
                engine = Engine(student, chosen.stages, material, plan.training, run, progress, probe, processes)
                if processes.by_first(lambda: run.started):
                    progress.say(run.resuming())
                else:
                    held_out = material.held_out().first(GATE_IMAGES)
                    subject = Subject(teacher, held_out, loaded.data, loaded.device)
                    checked = check_teacher(subject, plan, force=force, progress=progress)
                    robust = ", ".join(f"{name} {value:.1f} %" for name, value in checked.items() if name != "images")
                    progress.say(f"teacher on {counted(checked['images'], 'validation image')}: {robust}")
                    if processes.first:
                        run.begin(plan, {**identity, **checked})
                with ExitStack() as guard:
                    if chosen.example_free:
                        guard.enter_context(example_free(student, teacher))
                    engine.train()
                student.eval()
                prepare.lay_out(student, torch.contiguous_format)
                sparsity = [{**asdict(row), "rate": row.rate} for row in count(student)]
                if processes.first:
                    about = describe_model(student, loaded.data.classes, loaded.channels)
                    about |= {**identity, "threat": asdict(plan.threat), "sparsity": sparsity}
                    model_hash = run.save_model(student, about)
        if not processes.first:
            return Result(student, run.path, {}, [])
        with prepare.resumable(run, progress):
            start = time.perf_counter()
            if teacher_scores is None:
                place = run.path / OF_TEACHER
                teacher_scores = prepare.measure_model(teacher, identity["teacher"], loaded, place, "teacher", progress)
            pruned = prepare.measure_model(student, model_hash, loaded, run.path / OF_MODEL, "pruned model", progress)
            summary = {
                **prepare.training_summary(loaded, engine, processes),
                "example_free": chosen.example_free,
                "rate": sparsity[-1]["rate"],
                "sparsity": sparsity,
                "model": model_hash,
                "teacher": dict(teacher_scores),
                "pruned": dict(pruned),
                **prepare.evaluation_summary(pruned),
                "evaluation_seconds": time.perf_counter() - start,
            }
            run.finish(summary)
    return Result(student, run.path, summary, run.metrics())


def _choose_recipe(source: str | Path | Recipe | None, data: Data | None, changes: Mapping[str, Any]) -> Recipe:
    if source is None and data is not None:
        return recipe_for(data.name)
    return load_recipe("demo" if source is None else source, changes)


def _load_teacher(recipe: Recipe, data: Data) -> tuple[nn.Module, str]:
    """Load the recipe's teacher, and name its architecture: a run or a model folder knows it."""
    teacher = recipe.teacher
    if not teacher.checkpoint:
        raise InputError("this recipe names no teacher; give one with --checkpoint FILE (teacher.checkpoint)")
    mean, std = numbers(teacher.mean, "teacher.mean"), numbers(teacher.std, "teacher.std")
    given = is_factory(teacher.architecture) or kind_of(teacher.checkpoint) != "folder"
    architecture = teacher.architecture if given and teacher.architecture != AUTO else None
    model = load_model(teacher.checkpoint, data, architecture=architecture, mean=mean, std=std)
    return model, architecture or architecture_name(model)


def _thaw(student: nn.Module) -> nn.Module:
    """Train a model that is frozen as a whole, as one does for inference; what is frozen of another stays so."""
    if not any(parameter.requires_grad for parameter in student.parameters()):
        student.requires_grad_(True)
    if frozen := [name for name, weight in prunable(student).items() if not weight.requires_grad]:
        raise InputError(f"the model's {frozen[0]} is frozen, so it cannot be pruned; set requires_grad on all layers")
    return student


def _hash_files(method: type[Method], recipe: Recipe) -> dict[str, str]:
    """Hash the files that a method reads besides teacher and data: they are a part of what the run is."""
    files = {setting: Path(file) for setting, file in method.files(recipe).items()}
    return {setting: hashlib.sha256(file.read_bytes()).hexdigest() for setting, file in files.items() if file.is_file()}


def _announce(method: type[Method], loaded: prepare.Loaded, material: Material, run: Run, where: str) -> str:
    """Tell a person what is going to be done."""
    recipe = loaded.recipe
    name = "" if recipe.method == "pwoa" else f"{recipe.method}: "
    allocation = recipe.sparsity.allocation
    shared = f" by {allocation}" if allocation != "uniform" and method.uses_setting("sparsity.allocation") else ""
    stages = method.stage_epochs(recipe)
    epochs = counted(*stages, "epoch") if len(stages) == 1 else f"{' + '.join(map(str, stages))} epochs"
    mix = recipe.training.mix
    examples = f"mix ratio {mix:g}, not example-free" if mix else "natural examples only"
    notes = "".join(f"\nnote: {hint}" for hint in method.hints(recipe))
    return (
        f"{name}{recipe.teacher.architecture} on {recipe.data.name}, rate {recipe.sparsity.rate:g}{shared}, "
        f"{epochs} on {material.in_words()}, {where}\n"
        f"threat: {recipe.threat}; {examples}; run folder: {run.path}{notes}"
    )
