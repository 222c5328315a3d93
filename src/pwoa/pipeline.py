"""Pruning from end to end: recipe → data → teacher → method → engine → student → evaluation → run folder."""

from __future__ import annotations

import copy
import hashlib
import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pwoa.data import Data, load_data
from pwoa.devices import choose_device, device_name
from pwoa.errors import InputError
from pwoa.evaluation import Scores, check_teacher, parse_attacks, robustness, work
from pwoa.evaluation.verdicts import FILE as VERDICTS
from pwoa.evaluation.verdicts import save_verdicts
from pwoa.guard import example_free
from pwoa.methods import METHODS, find_method
from pwoa.models import architecture_name, check_model, fingerprint, load_model
from pwoa.progress import Progress
from pwoa.recipe import AUTO, Recipe, load_recipe, numbers, recipe_for
from pwoa.run import Run, describe_model, load_run
from pwoa.sparsity import count, prunable
from pwoa.training import Engine, Material
from pwoa.training.fast import choose_mode
from pwoa.training.probes import hsic_plane
from pwoa.training.processes import Processes, own_device, started


@dataclass(frozen=True)
class Result:
    """A pruned model, its run folder, what was measured (result.json) and its epochs (metrics.jsonl)."""

    model: nn.Module
    folder: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


def prune(
    teacher: nn.Module | None = None,
    data: Any = None,
    *,
    rate: float | None = None,
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
    settings: changes to the recipe, as {"section.key": value}; `rate` is short for "sparsity.rate".
    folder: where the run lives; the same folder again resumes it. None chooses one under runs/.
    force: prune even a teacher that fails the check of its robustness.
    teacher_scores: the teacher's accuracy by attack, if it was measured before by the same recipe.
    """
    progress = progress or Progress()
    if teacher is not None and not isinstance(teacher, nn.Module):
        raise InputError(f"the teacher must be an nn.Module, not {teacher!r}")
    changes = dict(settings or {}) | ({} if rate is None else {"sparsity.rate": rate})
    subject = _prepare(teacher, data, recipe, progress, changes)
    with ExitStack() as holding:
        with started(subject.device) as processes:
            progress = progress if processes.first else Progress()
            run = processes.by_first(lambda: held_run(folder, subject.recipe, subject.identity, holding))
            mode = processes.by_first(lambda: settled_mode(run, subject.recipe, subject.device))
            subject = replace(subject, recipe=subject.recipe.with_settings({"training.mode": mode}))
            if processes.by_first(lambda: run.finished):
                progress.say(f"{run.path} is finished, nothing is left to do")
                model = load_run(run.path, copy.deepcopy(subject.teacher))
                return Result(model, run.path, run.read_json("result.json"), run.metrics())
            progress.say(_announcement(subject, run, processes))
            with resumable(run, progress):
                student, training = _train(subject, run, force, progress, processes)
        if not processes.first:
            return Result(student, run.path, {}, [])
        with resumable(run, progress):
            summary = training | _evaluate(student, subject, run, teacher_scores, progress)
            run.finish(summary)
    return Result(student, run.path, summary, run.metrics())


@contextmanager
def resumable(run: Run, progress: Progress) -> Iterator[None]:
    """Ctrl-C inside is answered with how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        progress.close()
        again = f"the same command, with the folder {run.path}, resumes" if run.started else "nothing was written"
        progress.say(f"stopped; {again}")
        raise
    finally:
        progress.close()


@dataclass(frozen=True)
class _Subject:
    """Everything a run starts from, checked and on the device."""

    recipe: Recipe
    data: Data
    teacher: nn.Module
    student: nn.Module
    material: Material
    device: torch.device
    identity: dict[str, str]


def _prepare(
    teacher: nn.Module | None,
    data: Any,
    source: str | Path | Recipe | None,
    progress: Progress,
    settings: dict[str, Any],
) -> _Subject:
    loaded = None if data is None else load_data(data, progress=progress.reach)
    if source is None and loaded is not None:
        recipe = recipe_for(loaded.name)
    else:
        recipe = load_recipe("demo" if source is None else source)
    if loaded is not None:
        settings["data.name"] = str(data) if isinstance(data, (str, Path)) else loaded.name
    if teacher is not None:
        settings |= {"teacher.architecture": architecture_name(teacher), "teacher.checkpoint": "given"}
    recipe = recipe.with_settings(settings)
    find_method(recipe.method)
    parse_attacks(recipe.evaluation.attacks)
    if loaded is None:
        loaded = load_data(recipe.data.name, folder=recipe.data.folder or None, progress=progress.reach)
        progress.close()
    device = choose_device(own_device(recipe.training.device))
    if teacher is None:
        teacher = _named_teacher(recipe, loaded)
        if recipe.teacher.architecture == "auto":
            recipe = recipe.with_settings({"teacher.architecture": architecture_name(teacher)})
    student = _thawed(copy.deepcopy(teacher).to(device))
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    loaded = loaded.to(device)
    check_model(teacher, loaded.train.batch(torch.arange(2, device=device))[0], loaded.classes)
    material = Material.of(loaded, recipe, device)
    identity = {"teacher": fingerprint(teacher), "data": loaded.fingerprint()}
    if (another := Path(recipe.apd.teacher)).is_file():
        identity["apd.teacher"] = hashlib.sha256(another.read_bytes()).hexdigest()
    return _Subject(recipe, loaded, teacher, student, material, device, identity)


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


def _announcement(subject: _Subject, run: Run, processes: Processes) -> str:
    recipe = subject.recipe
    several = f"{processes.count} × " if processes.count > 1 else ""
    return (
        f"{recipe.teacher.architecture} on {recipe.data.name}, rate {recipe.sparsity.rate:g}, "
        f"{recipe.search.epochs} + {recipe.finetune.epochs} epochs on {len(subject.material.train):,} images, "
        f"{several}{device_name(subject.device)}\n"
        f"threat: {recipe.threat.norm} {recipe.threat.radius:.4g}; run folder: {run.path}"
    )


def choose_run(folder: str | Path | None, recipe: Recipe, identity: Mapping[str, str]) -> Run:
    """The given folder; else the first under runs/ with a telling name that is free or holds this very run."""
    if folder is not None:
        run = Run(folder)
    else:
        architecture = recipe.teacher.architecture.rpartition(":")[2].rpartition(".")[2].lower()
        rate = f"-x{recipe.sparsity.rate:g}" if recipe.method in METHODS else ""
        name = f"{Path(recipe.data.name).name}-{architecture}-{recipe.method}{rate}-seed{recipe.training.seed}"
        for number in itertools.count(1):
            run = Run(Path("runs") / (name if number == 1 else f"{name}-{number}"))
            if not run.path.exists() or (run.started and not run.differences(recipe, identity)):
                break
    run.check(recipe, identity)
    return run


def held_run(folder: str | Path | None, recipe: Recipe, identity: Mapping[str, str], holding: ExitStack) -> Run:
    """The run, which no other process can work on until `holding` ends; one that is finished needs no hold."""
    run = choose_run(folder, recipe, identity)
    if not run.finished:
        holding.enter_context(run.held())
    return run


def settled_mode(run: Run, recipe: Recipe, device: torch.device) -> str:
    """What `training.mode = "auto"` is: what the run was started with, else what fits the device."""
    mode = recipe.training.mode
    if mode == AUTO and run.started:
        mode = load_recipe(run.path / "recipe.toml").training.mode
    return choose_mode(mode, device)


def _train(
    subject: _Subject, run: Run, force: bool, progress: Progress, processes: Processes
) -> tuple[nn.Module, dict[str, Any]]:
    """The pruned student, saved in the run folder, and what is to be said of its training."""
    recipe, material = subject.recipe, subject.material
    student = subject.student
    lay_out(student, torch.channels_last)
    method = find_method(recipe.method)(student, subject.teacher, material, recipe)
    if processes.by_first(lambda: run.started):
        progress.say("resuming")
    else:
        checked = check_teacher(subject.teacher, material.held_out(), recipe, force, material.classes)
        robust = ", ".join(f"{name} {value:.1f} %" for name, value in checked.items() if name != "images")
        progress.say(f"teacher on {checked['images']} validation images: {robust}")
        if processes.first:
            run.begin(recipe, {**subject.identity, **checked})
    probe = hsic_plane(student, material, recipe.objective.points, recipe.objective.hsic == "normalised")
    engine = Engine(student, method.stages, material, recipe.training, run, progress, probe, processes)
    with ExitStack() as guard:
        if method.example_free:
            guard.enter_context(example_free(student, subject.teacher))
        engine.train()
    student.eval()
    lay_out(student, torch.contiguous_format)
    sparsity = [{**asdict(row), "rate": row.rate} for row in count(student)]
    about = describe_model(student, subject.data.classes, subject.data.train.pixels.shape[1])
    threat = asdict(recipe.threat)
    if processes.first:
        run.save_model(student, {**about, **subject.identity, "threat": threat, "sparsity": sparsity})
    return student, {
        "method": recipe.method,
        "example_free": method.example_free,
        "rate": sparsity[-1]["rate"],
        "sparsity": sparsity,
        "seed": recipe.training.seed,
        "device": device_name(subject.device),
        "processes": processes.count,
        "selected_epoch": engine.selected,
        "training_seconds": engine.seconds,
    }


def lay_out(model: nn.Module, form: torch.memory_format) -> None:
    """Put the weights of 2-D convolutions into a memory format; channels last is faster, most of all on a CPU."""
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=form)


def _evaluate(
    student: nn.Module, subject: _Subject, run: Run, teacher_scores: Mapping[str, float] | None, progress: Progress
) -> dict[str, Any]:
    """The teacher and its pruned copy under the same attacks on the same test images; the verdicts are kept."""
    recipe = subject.recipe
    start = time.perf_counter()
    test = subject.data.test
    images = test.first(recipe.evaluation.images or len(test))
    attacks = parse_attacks(recipe.evaluation.attacks)

    def measure(name: str, model: nn.Module) -> Scores:
        progress.start(f"evaluating the {name}", work(len(images), attacks))
        return robustness(
            model,
            images,
            recipe.threat,
            attacks,
            classes=subject.data.classes,
            batch=recipe.evaluation.batch,
            seed=recipe.training.seed,
            advance=progress.advance,
        )

    teacher = teacher_scores or measure("teacher", subject.teacher).accuracy
    pruned = measure("pruned model", student)
    progress.close()
    about = {"data": subject.identity["data"], "images": len(images), "threat": asdict(recipe.threat)}
    save_verdicts(run.path / VERDICTS, pruned.right, {**about, "model": fingerprint(student)})
    return {
        "images": pruned.images,
        "teacher": dict(teacher),
        "pruned": pruned.accuracy,
        "evaluation_seconds": time.perf_counter() - start,
    }
