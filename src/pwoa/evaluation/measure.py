"""The one path of every measurement: attacks, defence checks, and the folder that keeps and resumes them.

`evaluate` is what users call, with a model or the name of one. Runs measure their models, and the teacher before
anything is pruned, by the same `measure`.
"""

import copy
import dataclasses
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import nn

from pwoa.attacks.registry import STRONG, attack_label, find_attack
from pwoa.data.images import Data
from pwoa.data.load import load_data
from pwoa.devices import choose_device, exact_float32
from pwoa.errors import InputError, counted, first_line
from pwoa.evaluation.agreement import Agreement, agreement
from pwoa.evaluation.behaviour import check_behaviour, check_modes
from pwoa.evaluation.checks import Finding, affordable, check_attacks, check_curve, warn_of
from pwoa.evaluation.examples import EXAMPLES, Attempts, keep_examples
from pwoa.evaluation.folder import EvaluationFolder
from pwoa.evaluation.record import result_of
from pwoa.evaluation.robustness import Measurement, robustness, work
from pwoa.evaluation.scores import Scores
from pwoa.evaluation.subject import Subject, curve_threats
from pwoa.models.border import as_logits, evaluating
from pwoa.models.checkpoints.folder import DESCRIPTION
from pwoa.models.load import EXPORTED, kind_of, load_model, trained_threat
from pwoa.models.twins import twin_of
from pwoa.progress import EVALUATION, Pace, Part, Progress, choose_progress
from pwoa.recipe import (
    MAY_BE_CODE,
    RECIPE,
    Evaluation,
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
from pwoa.threat import Threat

AUTO = "auto"
EVALUATING, CHECKING = "evaluating", "checking for signs of a weak attack"
"""What the tasks of attacks and of defence checks are called."""
SHORT = "pgd10"
"""The attack that a teacher is checked by before it is pruned."""


def evaluate(
    model: nn.Module | str | Path,
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
    surrogate: nn.Module | str | Path | None = None,
    surrogate_architecture: str | None = None,
    twin: nn.Module | str | Path | None = None,
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

    model: a network, or what `load_model` takes (with architecture, checkpoint, mean and std): a run, a checkpoint, ….
    data: what `load_data` takes; None takes that of the run.
    attacks, radii, images, batch, seed, precision, checks: short for the settings "evaluation.…" (`pwoa.Evaluation`).
        Without `attacks` the attack `strong` comes after those of the recipe, on `evaluation.strong` images.
    threat: the attacker; None takes that of the recipe.
    recipe, settings: whence the other settings come; else from the run, or the defaults with the threat that the model
        was trained for, as its folder says, or that is usual for the data.
    surrogate, surrogate_architecture: the model that the attack `transfer` searches on; its architecture, if needed.
    twin: the same, for an exported model: the network it was made from, whose answers its own are compared with. A run
        that the artefact lies in is found by itself.
    architecture, checkpoint, mean, std: as for `load_model`.
    data_folder: as for `load_data`.
    device: `auto`, `cpu`, `cuda`, `cuda:1`, ….
    name: what result.json calls the model.
    folder: where result.json and the verdicts are kept; the same folder again resumes what was broken off. `auto`
        chooses one under runs/evaluate; None keeps nothing.
    progress: by default bars on a terminal and nothing elsewhere; False shows nothing, True lines everywhere.
    What the defence checks find is also a Python warning (`pwoa.errors.DefenceWarning`).
    """
    progress = choose_progress(progress)
    if not isinstance(threat, (Threat, NoneType)):
        raise InputError(f"the threat must be as pwoa.Threat('linf', 0.3, 0.01), not {threat!r}")
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
    trained = trained_threat(home or model)
    if data is not None and recipe is None and not _is_run(home or model):
        plan = dataclasses.replace(plan, threat=_usual_threat(loaded, trained, changes))
        chosen = threat or trained or any(key.partition(".")[0] == "threat" for key in changes)
        if not chosen and not preset_for(loaded.name):
            how = "--radius or --set threat.… (in Python: threat=)"
            progress.say(f"note: no threat was given, and {loaded.name} has no preset: {plan.threat}; choose by {how}")
    threat = threat or plan.threat
    if trained is not None and str(trained) != str(threat):
        progress.say(f"note: the model was trained for {trained}, and is tested at {threat}")
    where = choose_device(device)
    source = copy.deepcopy(model) if isinstance(model, nn.Module) else model  # loading sets it to eval mode
    if twin is None and surrogate is None and (twin := home) is not None:
        progress.say(f"its twin, the network that it was exported from, is that of {home}")
    with progress.working("loading the model"):
        network = load_model(source, loaded, architecture=architecture, checkpoint=checkpoint, mean=mean, std=std)
        other = surrogate if twin is None else twin
        if isinstance(other, (str, Path)):
            other = load_model(other, loaded, architecture=surrogate_architecture)
        subject = Subject.of(network, loaded, plan.evaluation.images, where, other, twin is not None)
        if not isinstance(model, nn.Module) and kind_of(model) in EXPORTED:
            subject = dataclasses.replace(subject, hashes={"artefact": identity(model)})
            progress.say(f"exported model: SHA-256 {subject.hashes['artefact']}")
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
    try:
        scores = measure(subject, evaluation, threat, folder=place, name=label, progress=progress)
    except KeyboardInterrupt:
        progress.say(f"stopped; the same command, with the folder {place}, resumes" if place else "stopped")
        raise
    warn_of((finding.check, finding.message) for finding in scores.findings)
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
        there = "is no run folder" if isinstance(model, nn.Module) or _exists(model) else "does not exist"
        raise InputError(f"{_name(model)} {there}; give --data NAME, or --recipe, to say which images to measure it on")
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


def _exists(model: str | Path) -> bool:
    return ":" in str(model) or Path(model).exists()


def _name(model: Any) -> str:
    return "the model" if isinstance(model, nn.Module) else str(model)


def _stem(model: str) -> str:
    """Return the last part of a model's name, as a name for a folder."""
    return re.sub(r"[^\w.+-]+", "-", Path(model).stem or "model").strip("-")


def measure(
    subject: Subject,
    evaluation: Evaluation,
    threat: Threat,
    *,
    folder: Path | None = None,
    name: str = "",
    task: str = EVALUATING,
    progress: Progress | None = None,
) -> Scores:
    """Measure a subject by the attacks and checks of an evaluation; with a folder it is kept, and resumed.

    The attacks must be possible for the model (`Subject.possible`), and the seed must be one.
    """
    progress = progress or Progress()
    asked = subject.asked(evaluation, threat) if folder is not None else {}
    place = None if folder is None else EvaluationFolder(folder, asked)
    if place is not None and place.finished:
        alone = task == EVALUATING  # and not a part of a run, where much may be left to do
        progress.say(f"{place.path} is finished, {'nothing is left to do' if alone else 'and is used again'}")
        place.tidy_finished()
        return place.read()
    with nullcontext() if place is None else place.held():
        measurements: list[Measurement] = []
        if place is not None:
            measurements = place.resume(subject.device, subject.data.classes)
            if measurements:
                progress.say(f"resuming {place.path}")
            place.begin()
        try:
            scores = _attack(subject, evaluation, threat, measurements, place, task, progress)
            if subject.twin:
                scores = dataclasses.replace(scores, agreement=_agreement(subject, evaluation, threat, progress))
            if evaluation.checks:
                findings = _findings(subject, scores, evaluation.seed, progress)
                scores = dataclasses.replace(scores, findings=tuple(findings))
        finally:
            progress.close()
        if place is not None:
            _keep_examples(place, subject, measurements[0].attempts, progress)
            place.finish(scores, result_of(scores, subject.model, subject.about(asked, name)))
    return scores


def _keep_examples(place: EvaluationFolder, subject: Subject, attempts: Attempts | None, progress: Progress) -> None:
    """Keep a dozen images to look at; where a network cannot be asked about them, there are none.

    What the disk refuses is an error: the same command writes it later, and nothing is measured again.
    """
    if attempts is None:
        return
    try:
        keep_examples(place.path / EXAMPLES, subject, attempts)
    except (OSError, InputError):
        raise
    except Exception as error:  # a user's own network can raise anything
        progress.say(f"note: no example images are kept: {first_line(error)}")


def parts(subject: Subject, evaluation: Evaluation, threat: Threat, task: str = EVALUATING) -> list[Part]:
    """Return what `measure` will do, as parts of a plan."""
    points = _points(subject, evaluation, threat, task)
    measuring = [Part(point.title, point.work(len(subject.images)), EVALUATION) for point in points]
    if not evaluation.checks:
        return measuring
    few, long = subject.strong_images(evaluation), subject.long_images(evaluation)
    images = {name: range(len(subject.images) if find_attack(name).short else long) for name in evaluation.attacks}
    limit, calls = affordable(images | ({STRONG: range(few)} if few else {}))
    return [*measuring, Part(CHECKING, limit * calls, EVALUATION)]


def teacher_check(recipe: Recipe) -> tuple[Evaluation, Threat, str]:
    """Return how a teacher is measured before any pruning, and what that task is called.

    Ten steps must cross the ball, so they are quarters of it.
    """
    evaluation = Evaluation(attacks=("natural", SHORT), seed=recipe.training.seed, checks=False, strong=0)
    return evaluation, recipe.threat.in_quarters(), "checking the teacher"


def check_teacher(
    teacher: Subject, recipe: Recipe, *, force: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure natural and short-PGD accuracy before any pruning; an error below `teacher.minimum`, unless forced.

    The subject's images are those held out of training.
    """
    evaluation, threat, task = teacher_check(recipe)
    scores, attack = measure(teacher, evaluation, threat, task=task, progress=progress), SHORT
    minimum = recipe.teacher.minimum
    if scores[attack] < minimum and not force:
        raise InputError(
            f"the teacher is not robust: {scores[attack]:.1f} % under PGD-10 at {threat} "
            f"(natural {scores['natural']:.1f} %, {counted(scores.images, 'validation image')}), and teacher.minimum "
            f"is {minimum:g} %; give a robust model, check its preprocessing, or use --force (in Python: force=True)"
        )
    return {**scores, "images": scores.images}


class _Point(NamedTuple):
    """An attacker of a security curve: what the task is called, its threat and attacks, and on how many images the
    attack `strong` and the long ones are run."""

    title: str
    threat: Threat
    attacks: tuple[str, ...]
    strong: int
    long: int

    def work(self, images: int) -> int:
        return work(images, self.attacks, self.strong, self.long)


def _points(subject: Subject, evaluation: Evaluation, threat: Threat, task: str) -> list[_Point]:
    """Return the attacker's own point, then those at the other radii.

    At radius 0 nothing can be moved, and an attack that looks for the nearest broken images is run once for all radii.
    """
    others = [other for other in curve_threats(evaluation, threat) if other.radius != threat.radius]
    few, long = subject.strong_images(evaluation), subject.long_images(evaluation)
    again = tuple(name for name in evaluation.attacks if not find_attack(name).nearest)
    points = []
    for now in (threat, *others):
        attacks, strong = (evaluation.attacks if now is threat else again, few) if now.radius else (("natural",), 0)
        points.append(_Point(f"{task} at radius {now.radius_text}" if others else task, now, attacks, strong, long))
    return points


def _figures(measured: Measurement) -> str:
    """Return the natural accuracy so far, and the lowest under attack."""
    done = {name: right[: measured.done] for name, right in measured.right.items()}
    so_far = {name: 100 * float(right.float().mean()) for name, right in done.items() if len(right)}
    lowest = min(so_far, key=lambda name: so_far[name], default="natural")
    return ", ".join(
        f"{attack_label(name)} {so_far[name]:.1f} %" for name in dict.fromkeys(["natural", lowest]) if name in so_far
    )


def _attack(
    subject: Subject,
    evaluation: Evaluation,
    threat: Threat,
    measurements: list[Measurement],
    place: EvaluationFolder | None,
    task: str,
    progress: Progress,
) -> Scores:
    """Return the scores at the attacker's own radius, with those at the other radii as their curve."""
    few, long = subject.strong_images(evaluation), subject.long_images(evaluation)
    points: list[Scores] = []
    for number, point in enumerate(_points(subject, evaluation, threat, task)):
        if number == len(measurements):
            watched = place is not None and number == 0
            measurements.append(Measurement(attempts=Attempts.on(subject.images) if watched else None))
        now = point.threat
        progress.start(point.title, point.work(len(subject.images)))

        def save(measured: Measurement) -> None:
            progress.show(_figures(measured))
            if place is not None:
                place.save(measurements)

        scores = robustness(
            subject.model,
            subject.images,
            point.threat,
            point.attacks,
            classes=subject.data.classes,
            batch=evaluation.batch,
            seed=evaluation.seed,
            precision=evaluation.precision,
            surrogate=subject.surrogate,
            replica=subject.replica,
            strong=point.strong,
            long=point.long,
            advance=progress.advance,
            measured=measurements[number],
            save=save,
        )
        if not point.threat.radius:
            natural = scores.right["natural"]
            right = {name: natural if find_attack(name).short else natural[:long] for name in evaluation.attacks}
            scores = dataclasses.replace(scores, right=right | ({STRONG: natural[:few]} if few else {}))
        if number:  # distances tell of every radius
            near = {name: points[0].at_radius(name, now.radius) for name in points[0].distances}
            near = near if now.radius else dict.fromkeys(near, scores.right["natural"])
            order = dict.fromkeys((*evaluation.attacks, *scores.right))
            scores = dataclasses.replace(scores, right={name: {**scores.right, **near}[name] for name in order})
        points.append(scores)
    curve = tuple(sorted(points, key=lambda scores: scores.threat.radius)) if evaluation.radii else ()
    return dataclasses.replace(points[0], curve=curve)


def _agreement(subject: Subject, evaluation: Evaluation, threat: Threat, progress: Progress) -> tuple[Agreement, ...]:
    """Compare the answers with the twin's."""
    strong = min(evaluation.strong, len(subject.images))
    progress.start("comparing with the twin", len(subject.images) + strong)
    found = agreement(subject, threat, strong, batch=evaluation.batch, seed=evaluation.seed, advance=progress.advance)
    return tuple(found)


def _findings(subject: Subject, scores: Scores, seed: int, progress: Progress) -> list[Finding]:
    """Return signs that the scores may be too high."""

    def tell(check: str) -> None:
        progress.say(f"defence check {check}")

    model, classes = subject.model, subject.data.classes
    limit, calls = affordable(scores.right)
    progress.start(CHECKING, limit * calls)
    logits = Pace(progress.advance, limit, calls).watch(as_logits(model, classes))
    x, labels = subject.images.batch(torch.arange(len(subject.images), device=subject.device))
    with evaluating(model), exact_float32():
        tell("of the model's answers")
        findings = check_modes(model)
        findings += check_behaviour(logits, x, labels, differentiable=subject.differentiable)
        findings += check_attacks(
            logits,
            x,
            labels,
            scores.threat,
            scores.right,
            after=scores.after,
            seed=seed,
            differentiable=subject.differentiable,
            limit=limit,
            tell=tell,
        )
    if scores.curve:
        radii = [point.threat.radius for point in scores.curve]
        for name, right in scores.right.items():
            findings += check_curve(radii, {name: [point[name] for point in scores.curve]}, len(right))
    return findings
