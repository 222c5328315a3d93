"""The evaluation of a model from end to end: attacks, checks, and the folder that keeps the result."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from pwoa import __version__
from pwoa.data.images import Data, Images
from pwoa.data.load import load_data
from pwoa.devices import choose_device, device_name, exact_float32
from pwoa.errors import InputError, counted, first_line
from pwoa.evaluation.behaviour import check_behaviour, check_modes
from pwoa.evaluation.checks import Finding, check_attacks, check_curve
from pwoa.evaluation.folder import Folder, at_radius
from pwoa.evaluation.record import result_of
from pwoa.evaluation.robustness import GRADIENT_FREE, PRECISIONS, TRANSFER, Measurement, parse_attacks, robustness, work
from pwoa.evaluation.scores import Scores
from pwoa.models.architectures.registry import architecture_name
from pwoa.models.border import as_logits, check_model, evaluating
from pwoa.models.checkpoints.tensors import fingerprint
from pwoa.models.onnx import OnnxModel
from pwoa.progress import Progress
from pwoa.recipe import recipe_for
from pwoa.recipe.sections import Recipe
from pwoa.recipe.settings import LARGEST
from pwoa.storage import held
from pwoa.threat import Threat


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    attacks: str | Sequence[str] = "standard",
    threat: Threat | None = None,
    radii: Sequence[float] = (),
    images: int = 0,
    batch: int = 500,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    surrogate: nn.Module | None = None,
    checks: bool = True,
    folder: str | Path | None = None,
    name: str = "",
    progress: Progress | None = None,
) -> Scores:
    """Accuracy of a model on test images, natural and under attack; `scores["pgd20"]` is one of them.

    attacks: names (natural, fgsm, pgd20, cw, autoattack, …), or `standard`: natural, fgsm, pgd10, pgd20 and cw.
        `square` is that of the reference AutoAttack, square-paper that of the paper on it. A model without gradients
        (ONNX) can have natural, these two, and transfer; standard is natural and square there. Natural is always
        there, and transfer wherever there is a `surrogate`: the model it searches on.
    threat: the attacker; None takes that of the preset named like the data.
    radii: measure at these radii as well: `scores.curve`, the security curve.
    images: how many test images, from the first (0: all).
    precision: `auto` searches on a faster copy of the model (in float16 on a GPU), and lets the model in float32
        decide; `float32` does everything on the model in float32.
    checks: look for signs that the numbers may be too high: `scores.findings`.
    folder: where result.json and the verdicts are kept; the same folder again resumes what was broken off.
    """
    progress = progress or Progress()
    _check_numbers(radii, images=images or 0, batch=batch, seed=seed)
    subject = _Subject.of(model, data, attacks, threat, images, device, precision, surrogate)
    if batch < 1:
        raise InputError(f"batch = {batch}; give a number of 1 or more")
    # Verdicts are named by six digits of their radius; those of the attacker's own are there already.
    apart = {f"{radius:.6g}": radius for radius in (*radii, subject.threat.radius)} if radii else {}
    threats = [at_radius(subject.threat, radius) for radius in sorted(apart.values())]
    how = {"radii": sorted(apart.values()), "batch": batch, "seed": seed, "checks": checks, "version": __version__}
    asked = subject.asked() | how  # another version of pwoa may attack in another way
    place = None if folder is None else Folder(folder, asked)
    if place is not None and place.finished:
        progress.say(f"{place.path} is finished, nothing is left to do")
        return place.read()
    with nullcontext() if place is None else held(place.path):
        measurements: list[Measurement] = []
        if place is not None:
            measurements = place.resume(subject.device)
            progress.say(f"resuming {place.path}" if measurements else f"evaluation folder: {place.path}")
            place.begin()
        try:
            scores = subject.measure(threats, measurements, batch, seed, place, progress)
            if checks:
                progress.start("checking for signs of a weak attack", 1)
                scores = dataclasses.replace(scores, findings=tuple(subject.findings(scores, seed, progress)))
        except KeyboardInterrupt:
            progress.close()
            progress.say(f"stopped; the same command, with the folder {place.path}, resumes" if place else "stopped")
            raise
        finally:
            progress.close()
        if place is not None:
            place.finish(scores, result_of(scores, subject.model, subject.about(name, seed)))
        return scores


@dataclasses.dataclass(frozen=True)
class _Subject:
    """Everything an evaluation starts from, checked and on the device."""

    model: nn.Module
    data: Data
    test: Images
    attacks: tuple[str, ...]
    threat: Threat
    device: torch.device
    precision: str
    surrogate: nn.Module | None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Any,
        attacks: str | Sequence[str],
        threat: Threat | None,
        images: int,
        device: str,
        precision: str,
        surrogate: nn.Module | None,
    ) -> _Subject:
        if precision not in PRECISIONS:
            raise InputError(f"precision = {precision!r}; allowed: {', '.join(PRECISIONS)}")
        for role, network in (("model", model), ("surrogate", surrogate)):
            if not isinstance(network, nn.Module) and not (network is None and role == "surrogate"):
                raise InputError(f"the {role} must be an nn.Module, not a {type(network).__name__}")
        if not isinstance(threat, (Threat, NoneType)):
            raise InputError(f"the threat must be as pwoa.Threat('linf', 0.3, 0.01), not {threat!r}")
        chosen = _possible(parse_attacks(attacks), attacks, model, surrogate)
        loaded = load_data(data)
        where = choose_device(device)
        test = loaded.test.first(images or len(loaded.test)).to(where)
        sample = test.batch(torch.arange(min(2, len(test)), device=where))[0]
        copies = [None if network is None else copy.deepcopy(network).to(where) for network in (model, surrogate)]
        for network in copies:
            if network is not None:
                check_model(network, sample, loaded.classes, logits_only=False)
        threat = threat or recipe_for(loaded.name).threat
        assert copies[0] is not None
        if by_gradients := [name for name in chosen if name not in GRADIENT_FREE]:
            _check_gradients(copies[0], "the model", sample, loaded.classes, by_gradients[0])
        if copies[1] is not None and TRANSFER in chosen:
            _check_gradients(copies[1], "the surrogate", sample, loaded.classes, TRANSFER)
        return cls(copies[0], loaded, test, chosen, threat, where, precision, copies[1])

    def asked(self) -> dict[str, Any]:
        """What tells this evaluation from others."""
        return {
            "model": identity(self.model),
            "architecture": _layers(self.model, self.surrogate),
            "data": self.data.fingerprint(),
            "images": len(self.test),
            "attacks": list(self.attacks),
            "threat": dataclasses.asdict(self.threat),
            "precision": self.precision,
            "surrogate": None if self.surrogate is None else identity(self.surrogate),
        }

    def about(self, name: str, seed: int) -> dict[str, Any]:
        return {
            "name": name,
            "dataset": self.data.name,
            "architecture": self.model.name if isinstance(self.model, OnnxModel) else architecture_name(self.model),
            "images_of": len(self.data.test),
            **{key: value for key, value in self.asked().items() if key not in ("images", "attacks", "architecture")},
            "seed": seed,
            "device": device_name(self.device),
            "versions": {"pwoa": __version__, "torch": torch.__version__},
        }

    def measure(
        self,
        threats: Sequence[Threat],
        measurements: list[Measurement],
        batch: int,
        seed: int,
        place: Folder | None,
        progress: Progress,
    ) -> Scores:
        """The scores at the attacker's own radius, with those at the other radii as their curve."""
        others = [threat for threat in threats if threat.radius != self.threat.radius]
        found = []
        for number, threat in enumerate([self.threat, *others]):
            if number == len(measurements):
                measurements.append(Measurement())
            attacks = self.attacks if threat.radius else ("natural",)
            task = "evaluating" if not others else f"evaluating at radius {threat.radius:.4g}"
            progress.start(task, work(len(self.test), attacks))

            def save(measured: Measurement) -> None:
                if place is not None:
                    place.save(measurements)

            one = robustness(
                self.model,
                self.test,
                threat,
                attacks,
                classes=self.data.classes,
                batch=batch,
                seed=seed,
                precision=self.precision,
                surrogate=self.surrogate,
                advance=progress.advance,
                measured=measurements[number],
                save=save,
            )
            if not threat.radius:  # nothing can be moved
                one = dataclasses.replace(one, right=dict.fromkeys(self.attacks, one.right["natural"]))
            found.append(one)
        curve = tuple(sorted(found, key=lambda scores: scores.threat.radius)) if threats else ()
        return dataclasses.replace(found[0], curve=curve)

    def findings(self, scores: Scores, seed: int, progress: Progress) -> list[Finding]:
        """Signs that the scores may be too high."""

        def tell(check: str) -> None:
            progress.say(f"defence check {check}")

        logits = as_logits(self.model, self.data.classes)
        differentiable = getattr(self.model, "differentiable", True)
        x, labels = self.test.batch(torch.arange(len(self.test), device=self.device))
        with evaluating(self.model), exact_float32():
            tell("of the model's answers")
            found = check_modes(self.model)
            found += check_behaviour(logits, x, labels, differentiable=differentiable)
            found += check_attacks(
                logits,
                x,
                labels,
                scores.threat,
                scores.right,
                after=scores.after,
                seed=seed,
                differentiable=differentiable,
                tell=tell,
            )
        if scores.curve:
            accuracy = {name: [point[name] for point in scores.curve] for name in scores.right}
            found += check_curve([point.threat.radius for point in scores.curve], accuracy, scores.images)
        return found


def _check_numbers(radii: Any, **whole: Any) -> None:
    if not isinstance(radii, Iterable) or not all(isinstance(radius, Real) for radius in radii):
        raise InputError(f"radii = {radii!r}; give a list of numbers, as [0.1, 0.2]")
    for name, value in whole.items():
        if not isinstance(value, Integral) or abs(int(value)) > LARGEST:
            raise InputError(f"{name} = {value!r}; give a whole number up to {LARGEST}")


def identity(model: nn.Module) -> str:
    """A SHA-256 of the model's weights, or of its file."""
    return model.fingerprint if isinstance(model, OnnxModel) else fingerprint(model)


def _layers(*networks: nn.Module | None) -> str:
    """A SHA-256 of the networks as torch prints them: the same weights may be those of another activation."""
    return hashlib.sha256(re.sub(r" at 0x\w+", "", str(networks)).encode()).hexdigest()


def _check_gradients(model: nn.Module, which: str, x: Tensor, classes: int, attack: str) -> None:
    """Refuse a model that has no gradient at all with respect to the image; one that is zero is for the checks."""
    try:
        with evaluating(model), torch.enable_grad():
            at = x.clone().requires_grad_()
            torch.autograd.grad(as_logits(model, classes)(at).sum(), at)
    except Exception as error:  # a user's own forward can raise anything
        raise InputError(
            f"{attack} needs gradients, which {which} does not give ({first_line(error)}); "
            f"without them there are {', '.join(GRADIENT_FREE)}"
        ) from None


def _possible(
    chosen: tuple[str, ...], given: str | Sequence[str], model: nn.Module, surrogate: nn.Module | None
) -> tuple[str, ...]:
    """The attacks that this model can be given; for one without gradients `standard` is what is left.

    Natural accuracy is always measured, and `transfer` wherever there is a surrogate.
    """
    if TRANSFER in chosen and surrogate is None:
        raise InputError("the attack transfer needs a surrogate: --surrogate MODEL (in Python: surrogate=)")
    differentiable = getattr(model, "differentiable", True)
    if not differentiable and given in ("standard", ["standard"], ("standard",)):
        chosen = ("natural", "square")
    chosen = tuple(dict.fromkeys(("natural", *chosen, *([] if surrogate is None else [TRANSFER]))))
    if differentiable:
        return chosen
    if impossible := [name for name in chosen if name not in GRADIENT_FREE]:
        raise InputError(f"{impossible[0]} needs gradients, which this model has not; use {', '.join(GRADIENT_FREE)}")
    return chosen


IMAGES = 500
ATTACK = "pgd10"


def check_teacher(
    teacher: nn.Module, validation: Images, recipe: Recipe, force: bool = False, classes: int | None = None
) -> dict[str, Any]:
    """Natural and short-PGD accuracy on validation images; an error below `teacher.minimum`, unless forced."""
    images = validation.first(IMAGES)
    threat = dataclasses.replace(recipe.threat, step=recipe.threat.radius / 4)  # ten steps must cross the ball
    scores = robustness(teacher, images, threat, ("natural", ATTACK), classes=classes, seed=recipe.training.seed)
    minimum = recipe.teacher.minimum
    if scores[ATTACK] < minimum and not force:
        raise InputError(
            f"the teacher is not robust: {scores[ATTACK]:.1f} % under PGD-10 at {threat.norm} {threat.radius:.4g} "
            f"(natural {scores['natural']:.1f} %, {counted(len(images), 'validation image')}), and teacher.minimum is "
            f"{minimum:g} %; give a robust model, check its preprocessing, or use --force (in Python: force=True)"
        )
    return {**scores.accuracy, "images": len(images)}
