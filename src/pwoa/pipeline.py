"""Pruning from end to end: recipe → data → teacher → method → engine → student → evaluation → run folder."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pwoa.data import Data
from pwoa.devices import device_name
from pwoa.errors import InputError
from pwoa.evaluation import check_teacher
from pwoa.evaluation.verdicts import FILE as VERDICTS
from pwoa.evaluation.verdicts import save_verdicts
from pwoa.guard import example_free
from pwoa.methods import SHARING, epochs_in_words, find_method, hints
from pwoa.models import architecture_name, check_model, fingerprint, load_model
from pwoa.progress import Progress
from pwoa.recipe import Recipe, load_recipe, numbers, recipe_for
from pwoa.run import Run, describe_model, load_run
from pwoa.sparsity import count, prunable
from pwoa.training import Engine, Material
from pwoa.training.probes import hsic_plane
from pwoa.training.processes import Processes
from pwoa.words import counted
from pwoa.work import Result, Work, check_network, lay_out, merged, prepared


def prune(
    teacher: nn.Module | None = None,
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

    teacher: any nn.Module from images in [0, 1] to logits; it is not changed. None takes the recipe's.
    data: whatever `load_data` takes; None takes the recipe's.
    recipe: a preset's name, a TOML file or a Recipe; None takes the preset for the data.
    settings: changes to the recipe, as {"section.key": value}; `rate` is short for "sparsity.rate", `method` (pwoa,
        advprune, hydra, harp, apd, magnitude) for "method". The competing methods are published with training.mix 1.
    folder: where the run lives; the same folder again resumes it. None chooses one under runs/.
    force: prune even a teacher that fails the check of its robustness.
    teacher_scores: the teacher's accuracy by attack, if it was measured before by the same recipe.
    """
    progress = progress or Progress()
    check_network(teacher, "teacher")
    changes = merged(settings, {"sparsity.rate": rate, "method": method})
    pruning = _prepare(teacher, data, recipe, progress, changes)
    pruning.force, pruning.teacher_scores = force, teacher_scores
    return pruning.carry_out(folder, progress)


@dataclass
class _Pruning(Work):
    """A teacher, its copy that is pruned, and whether that is done to a teacher that is not robust."""

    teacher: nn.Module
    student: nn.Module
    force: bool = False
    teacher_scores: Mapping[str, float] | None = None

    def announcement(self, run: Run, processes: Processes) -> str:
        recipe = self.recipe
        several = f"{processes.count} × " if processes.count > 1 else ""
        method = "" if recipe.method == "pwoa" else f"{recipe.method}: "
        allocation = recipe.sparsity.allocation
        shared = "" if allocation == "uniform" or recipe.method in SHARING else f" by {allocation}"
        mix = recipe.training.mix
        examples = f"mix ratio {mix:g}, not example-free" if mix else "natural examples only"
        notes = "".join(f"\nnote: {hint}" for hint in hints(recipe))
        return (
            f"{method}{recipe.teacher.architecture} on {recipe.data.name}, rate {recipe.sparsity.rate:g}{shared}, "
            f"{epochs_in_words(recipe)} on {self.material.in_words()}, "
            f"{several}{device_name(self.device)}\n"
            f"threat: {recipe.threat.norm} {recipe.threat.radius:.4g}; {examples}; run folder: {run.path}{notes}"
        )

    def done_before(self, run: Run) -> nn.Module:
        return load_run(run.path, copy.deepcopy(self.student))

    def train(self, run: Run, progress: Progress, processes: Processes) -> tuple[nn.Module, dict[str, Any]]:
        recipe, material = self.recipe, self.material
        student = self.student
        lay_out(student, torch.channels_last)
        method = find_method(recipe.method)(student, self.teacher, material, recipe)
        probe = hsic_plane(student, material, recipe.objective.points, recipe.objective.hsic == "normalised")
        engine = Engine(student, method.stages, material, recipe.training, run, progress, probe, processes)
        if processes.by_first(lambda: run.started):
            progress.say(run.resuming())
        else:
            checked = check_teacher(self.teacher, material.held_out(), recipe, self.force, material.classes)
            robust = ", ".join(f"{name} {value:.1f} %" for name, value in checked.items() if name != "images")
            progress.say(f"teacher on {counted(checked['images'], 'validation image')}: {robust}")
            if processes.first:
                run.begin(recipe, {**self.identity, **checked})
        with ExitStack() as guard:
            if method.example_free:
                guard.enter_context(example_free(student, self.teacher))
            engine.train()
        student.eval()
        lay_out(student, torch.contiguous_format)
        sparsity = [{**asdict(row), "rate": row.rate} for row in count(student)]
        about = describe_model(student, self.data.classes, self.data.train.pixels.shape[1])
        threat = asdict(recipe.threat)
        if processes.first:
            run.save_model(student, {**about, **self.identity, "threat": threat, "sparsity": sparsity})
        return student, {
            "method": recipe.method,
            "example_free": method.example_free,
            "rate": sparsity[-1]["rate"],
            "sparsity": sparsity,
            "seed": recipe.training.seed,
            "device": device_name(self.device),
            "processes": processes.count,
            "selected_epoch": engine.selected,
            "training_seconds": engine.seconds,
        }

    def evaluate(self, model: nn.Module, run: Run, progress: Progress) -> dict[str, Any]:
        """The teacher and its pruned copy under the same attacks on the same test images; the verdicts are kept."""
        start = time.perf_counter()
        teacher = self.teacher_scores or self.measured(self.teacher, "teacher", progress).accuracy
        pruned = self.measured(model, "pruned model", progress)
        progress.close()
        about = {"data": self.identity["data"], "images": pruned.images, "threat": asdict(self.recipe.threat)}
        save_verdicts(run.path / VERDICTS, pruned.right, {**about, "model": fingerprint(model)})
        return {
            "images": pruned.images,
            "teacher": dict(teacher),
            "pruned": pruned.accuracy,
            "evaluation_seconds": time.perf_counter() - start,
        }


def _prepare(
    teacher: nn.Module | None,
    data: Any,
    source: str | Path | Recipe | None,
    progress: Progress,
    settings: dict[str, Any],
) -> _Pruning:
    def choose(given: Data | None) -> Recipe:
        if source is None and given is not None:
            return recipe_for(given.name)
        return load_recipe("demo" if source is None else source)

    if teacher is not None:
        settings |= {"teacher.architecture": architecture_name(teacher), "teacher.checkpoint": "given"}
    recipe, loaded, device = prepared(data, choose, settings, find_method, progress)
    if teacher is None:
        teacher = _named_teacher(recipe, loaded)
        if recipe.teacher.architecture == "auto":
            recipe = recipe.with_settings({"teacher.architecture": architecture_name(teacher)})
    student = _thawed(copy.deepcopy(teacher).to(device))
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    check_model(teacher, loaded.train.batch(torch.arange(2, device=device))[0], loaded.classes)
    material = Material.of(loaded, recipe, device)
    identity = {"teacher": fingerprint(teacher), "data": loaded.fingerprint()}
    if (another := Path(recipe.apd.teacher)).is_file():
        identity["apd.teacher"] = hashlib.sha256(another.read_bytes()).hexdigest()
    return _Pruning(recipe, loaded, material, device, identity, teacher, student)


def _named_teacher(recipe: Recipe, data: Data) -> nn.Module:
    named = recipe.teacher
    if not named.checkpoint:
        raise InputError("this recipe names no teacher; give one with --checkpoint FILE (teacher.checkpoint)")
    mean, std = numbers(named.mean, "teacher.mean"), numbers(named.std, "teacher.std")
    return load_model(named.architecture, named.checkpoint, data, mean, std)


def _thawed(student: nn.Module) -> nn.Module:
    """A model frozen as a whole, as one does for inference, is trained; what is frozen of another stays so."""
    if not any(parameter.requires_grad for parameter in student.parameters()):
        student.requires_grad_(True)
    if frozen := [name for name, weight in prunable(student).items() if not weight.requires_grad]:
        raise InputError(f"the model's {frozen[0]} is frozen, so it cannot be pruned; set requires_grad on all layers")
    return student
