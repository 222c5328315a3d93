"""The one path of every measurement: attacks, defence checks, and the folder that keeps and resumes them.

`evaluate`, which users call, and runs, which measure their models and the teacher before anything is pruned, all go by
the same `measure`.
"""

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pwoa.attacks.registry import STRONG, attack_label, find_attack
from pwoa.devices import exact_float32
from pwoa.errors import InputError, counted, first_line
from pwoa.evaluation.agreement import Agreement, agreement
from pwoa.evaluation.behaviour import check_behaviour, check_modes
from pwoa.evaluation.checks import Finding, affordable, check_attacks, check_curve
from pwoa.evaluation.examples import EXAMPLES, Attempts, keep_examples
from pwoa.evaluation.folder import EvaluationFolder
from pwoa.evaluation.record import result_of
from pwoa.evaluation.robustness import Measurement, robustness, work
from pwoa.evaluation.scores import Scores
from pwoa.evaluation.subject import Subject, curve_threats
from pwoa.models.border import as_logits, evaluating
from pwoa.progress import EVALUATION, Pace, Part, Progress
from pwoa.recipe import (
    Evaluation,
    Recipe,
)
from pwoa.threat import Threat

EVALUATING, CHECKING = "evaluating", "checking for signs of a weak attack"
"""What the tasks of attacks and of defence checks are called."""
SHORT = "pgd10"
"""The attack that a teacher is checked by before it is pruned."""
WEAK_TEACHER = "weak teacher"
"""The check that a run lists among its warnings if its teacher was pruned all the same."""


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
                role = name if task != EVALUATING else ""  # in a run, which has more than one to measure
                findings = _findings(subject, scores, evaluation.seed, progress, role)
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
    scores = measure(teacher, evaluation, threat, task=task, progress=progress)
    checked = {**scores, "images": scores.images}
    if (weakness := not_robust(checked, recipe)) and not force:
        raise InputError(
            f"{weakness}; give a robust model, check its preprocessing, or use --force (in Python: force=True)"
        )
    return checked


def not_robust(checked: Mapping[str, Any], recipe: Recipe) -> str:
    """Say that a teacher is below `teacher.minimum` in what its check found; nothing if it is not."""
    if checked[SHORT] >= recipe.teacher.minimum:
        return ""
    threat = recipe.threat.in_quarters()
    return (
        f"the teacher is not robust: {checked[SHORT]:.1f} % under PGD-10 at {threat} in steps of {threat.step_text} "
        f"(natural {checked['natural']:.1f} %, {counted(checked['images'], 'validation image')}), and teacher.minimum "
        f"is {recipe.teacher.minimum:g} %"
    )


def checked_text(checked: Mapping[str, Any], recipe: Recipe) -> str:
    """Say what a teacher's check found; with its step, since the PGD-10 of a table takes that of the recipe."""
    return (
        f"teacher on {counted(checked['images'], 'validation image')}: natural {checked['natural']:.1f} %, "
        f"PGD-10 (in steps of {recipe.threat.in_quarters().step_text}) {checked[SHORT]:.1f} %"
    )


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


def _findings(subject: Subject, scores: Scores, seed: int, progress: Progress, role: str) -> list[Finding]:
    """Return signs that the scores may be too high; role: which model of a run it is, if it is of one."""

    def tell(check: str) -> None:
        progress.say(f"{role and f'{role}: '}defence check {check}")

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
