"""The door to a measurement, `evaluate`: which model, images, attacker and folder are meant; then they are measured."""

import copy
import dataclasses
import json
import os
import re
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from pwoa.data.images import Data
from pwoa.data.load import load_data
from pwoa.devices import choose_device, choose_threads, using_threads
from pwoa.errors import InputError, ThreatWarning, counted
from pwoa.evaluation.checks import warn_of
from pwoa.evaluation.measure import measure, parts
from pwoa.evaluation.scores import Scores, weak_steps
from pwoa.evaluation.subject import Subject
from pwoa.models.checkpoints.folder import DESCRIPTION
from pwoa.models.load import EXPORTED, kind_of, load_model, refuse_missing, trained_threat
from pwoa.models.twins import twin_of
from pwoa.progress import Progress, choose_progress
from pwoa.recipe import (
    MAY_BE_CODE,
    RECIPE,
    Recipe,
    load_recipe,
    preset_for,
    recipe_for,
    recorded_recipe,
    records_recipe,
)
from pwoa.recipe.settings import merge
from pwoa.storage.folder import RESULT
from pwoa.storage.identity import identity
from pwoa.storage.paths import as_path
from pwoa.threat import Threat

AUTO = "auto"


def evaluate(
    model: nn.Module | str | os.PathLike[str],
    data: Any = None,
    *,
    attacks: str | Sequence[str] | None = None,
    threat: Threat | None = None,
    radii: Sequence[float] | None = None,
    images: int | None = None,
    batch: int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    checks: bool | None = None,
    recipe: str | Path | Recipe | None = None,
    settings: Mapping[str, Any] | None = None,
    surrogate: nn.Module | str | os.PathLike[str] | None = None,
    surrogate_architecture: str | None = None,
    twin: nn.Module | str | os.PathLike[str] | None = None,
    architecture: str | nn.Module | None = None,
    checkpoint: str | Path | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    data_folder: str | Path | None = None,
    device: str = AUTO,
    folder: str | Path | None = None,
    name: str = "",
    progress: Progress | bool | None = None,
) -> Scores:
    """Measure a model's accuracy on test images, natural and under attack.

    Example: `evaluate("runs/mine", attacks="natural,autoattack", images=1000)["autoattack"]`, or
    `dict(evaluate(net, data))` for all accuracies by attack.

    model: a network, or what `load_model` takes (with architecture, checkpoint, mean and std): a run, also as
        `prune` returns it, a checkpoint, ….
    data: what `load_data` takes; None takes that of the run.
    attacks, radii, images, batch, seed, precision, checks: short for the settings "evaluation.…" (`pwoa.Evaluation`).
        Without `attacks` the attack `strong` comes after those of the recipe, on `evaluation.strong` images.
    threat: the attacker; None takes that of the recipe.
    recipe, settings: whence the other settings come; else from the run, or the defaults with the threat that the model
        was trained for, as its folder says, or that is usual for the data.
    surrogate, surrogate_architecture: the model that the attack `transfer` searches on; its architecture, if needed.
    twin: the same, for an exported model: the network it was made from, whose answers its own are compared with. A run
        that the artefact lies in is found by itself.
    architecture, checkpoint, mean, std: as for `load_model`. Of an exported model the architecture is also its twin's.
    data_folder: as for `load_data`.
    device: `auto`, `cpu`, `cuda`, `cuda:1`, ….
    name: what result.json calls the model.
    folder: where result.json and the verdicts are kept; the same folder again resumes what was broken off. `auto`
        chooses one under runs/evaluate; None keeps nothing.
    progress: by default bars on a terminal and nothing elsewhere; False shows nothing, True lines everywhere.
    What the defence checks find is also a Python warning (`pwoa.errors.DefenceWarning`). So is a threat that nobody
    chose, where no progress says it (`pwoa.errors.ThreatWarning`).
    """
    progress = choose_progress(progress)
    if not isinstance(threat, (Threat, NoneType)):
        raise InputError(f"the threat must be as pwoa.Threat('linf', 0.3, 0.01), not {threat!r}")
    model, surrogate, twin = as_path(model), as_path(surrogate), as_path(twin)
    _check_models(model, surrogate, surrogate_architecture, twin)
    short = {"attacks": attacks, "radii": radii, "images": images, "batch": batch, "seed": seed}
    short |= {"precision": precision, "checks": checks}
    changes = merge(settings, {f"evaluation.{key}": value for key, value in short.items()})
    home = None if isinstance(model, nn.Module) else twin_of(model)
    plan = _plan(home or model, data, recipe).with_settings(changes)
    given_attacks = "evaluation.attacks" in changes or recipe is not None
    with progress.working("loading the data"):
        loaded = load_data(
            plan.data.name if data is None else data,
            data_folder=data_folder or (plan.data.folder if data is None else None) or None,
            progress=progress.reach,
        )
    trained, unchosen = trained_threat(home or model), False
    if data is not None and recipe is None and not _is_run(home or model):
        plan = dataclasses.replace(plan, threat=_usual_threat(loaded, trained, changes))
        unchosen = not (threat or trained or "threat.radius" in changes or preset_for(loaded.name))
    threat = threat or plan.threat
    if trained is not None and str(trained) != str(threat):
        progress.say(f"note: the model was trained for {trained}, and is tested at {threat}")
    where = choose_device(device)
    source = copy.deepcopy(model) if isinstance(model, nn.Module) else model  # loading sets it to eval mode
    if twin is None and surrogate is None and (twin := home) is not None:
        progress.say(f"compared with the run it was exported from: {home}")
    with progress.working("loading the model"):
        of_twin = copy.deepcopy(architecture) if isinstance(twin, (str, Path)) else None
        if of_twin is not None and kind_of(model) in ("onnx", "c"):
            architecture = None  # what is no network has no architecture but its twin's
        network = load_model(source, loaded, architecture=architecture, checkpoint=checkpoint, mean=mean, std=std)
        other = surrogate if twin is None else twin
        if isinstance(other, (str, Path)):
            other = load_model(other, loaded, architecture=surrogate_architecture if twin is None else of_twin)
        subject = Subject.of(network, loaded, plan.evaluation.images, where, other, twin is not None)
        if not isinstance(model, nn.Module) and kind_of(model) in EXPORTED:
            subject = dataclasses.replace(subject, hashes={"artefact": identity(model)})
            progress.say(f"exported model: SHA-256 {subject.hashes['artefact']}")
    if not isinstance(model, nn.Module) and kind_of(model) == "factory" and checkpoint is None:
        progress.say(f"note: no --checkpoint: the weights are those that {model} makes")
    if unchosen:
        how = "--radius or --set threat.… (in Python: threat=)"
        line = f"no threat was given, and {loaded.name} has no preset: {threat}; choose by {how}"
        progress.say(f"note: {line}")
        if progress.silent:
            warnings.warn(line, ThreatWarning, stacklevel=2)
    evaluation = plan.seeded_evaluation()
    named = "evaluation.attacks" in changes and "evaluation.strong" not in changes
    evaluation = dataclasses.replace(
        evaluation,
        attacks=subject.possible(evaluation.attacks, given_attacks),
        strong=0 if named else evaluation.strong,
    )
    label = name or ("" if isinstance(model, nn.Module) else _stem(str(model)))
    place = None if folder is None else Path(folder)
    if folder == AUTO:
        asked = json.dumps([str(model), subject.asked(evaluation, threat)], sort_keys=True)
        place = Path("runs") / "evaluate" / f"{label or 'model'}-{zlib.crc32(asked.encode()):08x}"
    if place is not None:
        progress.say(f"evaluation folder: {place}")
    progress.plan(parts(subject, evaluation, threat))
    usual, threads = torch.get_num_threads(), choose_threads() if where.type == "cpu" else torch.get_num_threads()
    if threads != usual:
        busy = "because other work keeps the cores busy (OMP_NUM_THREADS chooses)"
        progress.say(f"{counted(threads, 'thread')} instead of {usual}, {busy}")
    try:
        with using_threads(threads):
            scores = measure(subject, evaluation, threat, folder=place, name=label, progress=progress)
    except KeyboardInterrupt:
        progress.say(f"stopped; the same command, with the folder {place}, resumes" if place else "stopped")
        raise
    found = [(finding.check, finding.message) for finding in scores.findings]
    if limit := weak_steps(scores.accuracies, threat):
        found.append(("steps", limit))
    warn_of(found)
    return dataclasses.replace(scores, folder=place)


def _plan(model: Any, data: Any, recipe: str | Path | Recipe | None) -> Recipe:
    """Return the recipe whose settings hold: the one given, that of the run, or the defaults."""
    if recipe is not None:
        return load_recipe(recipe, MAY_BE_CODE)  # of which an evaluation uses none
    if not _is_run(model):
        if _has_lost_recipe(model):
            raise InputError(
                f"{model} is a run that has lost its {RECIPE}; put it back, or say the settings by --recipe"
            )
        if data is not None:
            return Recipe()
        refuse_missing(model)
        raise InputError(
            f"{_name(model)} is no run folder; give --data NAME, or --recipe, to say which images to measure it on"
        )
    plan = recorded_recipe(model)
    if plan.data.name == "custom" and data is None:
        raise InputError(f"{model} was made from data given in Python; give --data, or use pwoa.evaluate there")
    return plan


def _check_models(model: Any, surrogate: Any, surrogate_architecture: str | None, twin: Any) -> None:
    for role, network in (("model", model), ("surrogate", surrogate), ("twin", twin)):
        if not isinstance(network, (nn.Module, str, Path)) and not (network is None and role != "model"):
            raise InputError(f"the {role} must be an nn.Module or the name of a model, not a {type(network).__name__}")
    if surrogate is not None and twin is not None:
        raise InputError("a twin is a surrogate too; give one of them, --twin or --surrogate")
    if surrogate_architecture is not None and not isinstance(surrogate, (str, Path)):
        raise InputError("--surrogate-arch goes with --surrogate MODEL (in Python: with the name of one)")


def _usual_threat(data: Data, trained: Threat | None, changes: Mapping[str, Any]) -> Threat:
    """Return the attacker that the model was trained for, else that of the preset for the data, with the settings."""
    about = {key: value for key, value in changes.items() if key.partition(".")[0] == "threat"}
    usual = recipe_for(data.name)
    return dataclasses.replace(usual, threat=trained or usual.threat).with_settings(about).threat


def _is_run(model: Any) -> bool:
    return isinstance(model, (str, Path)) and records_recipe(model)


def _has_lost_recipe(model: Any) -> bool:
    """Tell whether it is the folder of a run without its settings: the defaults would be taken for them."""
    return isinstance(model, (str, Path)) and (Path(model) / DESCRIPTION).is_file() and (Path(model) / RESULT).is_file()


def _name(model: Any) -> str:
    return "the model" if isinstance(model, nn.Module) else str(model)


def _stem(model: str) -> str:
    """Return the last part of a model's name, as a name for a folder."""
    return re.sub(r"[^\w.+-]+", "-", Path(model).stem or "model").strip("-")
