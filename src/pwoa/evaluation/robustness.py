"""Accuracy under attack."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pwoa.attacks import STANDARD as AUTOATTACK
from pwoa.attacks import autoattack, cross_entropy, fgsm, margin, pgd, random_start
from pwoa.attacks.gradient import CW_STEPS, AttackLoss
from pwoa.data import Images
from pwoa.errors import InputError
from pwoa.models import LogitModel, as_logits, evaluating
from pwoa.recipe import Threat

STANDARD = ("natural", "fgsm", "pgd10", "pgd20", "cw")
_LOSSES: dict[str, AttackLoss] = {"pgd": cross_entropy, "cw": margin}
_ENSEMBLES: dict[str, tuple[str, ...]] = {
    "autoattack": AUTOATTACK,
    **{name: (name,) for name in (*AUTOATTACK, "apgd-dlr")},
}
"""AutoAttack and its components: what repacks surviving images by itself."""


@dataclass(frozen=True)
class Scores:
    """Accuracy in percent by attack, on how many images, in how many seconds, against which attacker.

    An image counts for an attack if the model gets both the natural and the attacked image right.
    """

    accuracy: dict[str, float]
    images: int
    seconds: float
    threat: Threat | None = None

    def __getitem__(self, attack: str) -> float:
        return self.accuracy[attack]


def parse_attacks(names: str | Sequence[str]) -> tuple[str, ...]:
    """Attack names from a list or `a,b,c`; `standard` stands for the paper's set. Unknown ones are an error."""
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    chosen: list[str] = []
    for name in given:
        if name not in ("standard", "natural", "fgsm", *_ENSEMBLES) and _family(name) is None:
            raise InputError(
                f"unknown attack {name!r}; known: standard, natural, fgsm, pgdN, cw, cwN (N steps, as in pgd20), "
                f"{', '.join(_ENSEMBLES)}"
            )
        chosen += STANDARD if name == "standard" else [name]
    return tuple(dict.fromkeys(chosen))


def robustness(
    model: nn.Module,
    images: Images,
    threat: Threat,
    attacks: Sequence[str] = STANDARD,
    *,
    classes: int | None = None,
    batch: int = 500,
    seed: int = 0,
    advance: Callable[[int], None] = lambda images: None,
) -> Scores:
    """Measure the model, in eval mode and float32, on all of `images`; `advance` is told of units of `work` done.

    `classes` is needed for a model that returns several things, to tell which are its logits.
    """
    start = time.perf_counter()
    logits = as_logits(model, classes)
    simple = [name for name in attacks if name not in _ENSEMBLES]
    right = dict.fromkeys(simple, 0)
    accuracy: dict[str, float] = {}
    with evaluating(model):
        for first in range(0, len(images), batch):
            index = torch.arange(first, min(first + batch, len(images)), device=images.pixels.device)
            verdicts = _attack_batch(logits, *images.batch(index), threat, simple, seed + first)
            for name, correct in verdicts.items():
                right[name] += int(correct.sum())
            advance(len(index))
        for name in attacks:
            if name in right:
                accuracy[name] = 100 * right[name] / len(images)
                continue
            everything = images.batch(torch.arange(len(images), device=images.pixels.device))
            outcome = autoattack(
                logits, *everything, threat, attacks=_ENSEMBLES[name], batch=batch, seed=seed, advance=advance
            )
            accuracy[name] = 100 * float(outcome.robust.float().mean())
    return Scores(accuracy, len(images), time.perf_counter() - start, threat)


def work(images: int, attacks: Sequence[str]) -> int:
    """How many units `robustness` will be told to `advance` by: all images once, and once more an ensemble."""
    return images * (1 + sum(name in _ENSEMBLES for name in attacks))


def _attack_batch(
    model: LogitModel, x: Tensor, labels: Tensor, threat: Threat, attacks: Sequence[str], seed: int
) -> dict[str, Tensor]:
    """For each attack, which images of the batch are right naturally and under attack."""
    natural = _correct(model, x, labels)
    verdicts = {"natural": natural}
    if not bool(natural.any()):
        return dict.fromkeys(attacks, natural)
    x_right, labels_right = x[natural], labels[natural]
    if "fgsm" in attacks:
        verdicts["fgsm"] = _among(natural, _correct(model, fgsm(model, x_right, labels_right, threat), labels_right))
    for family, loss in _LOSSES.items():
        generator = torch.Generator(x.device).manual_seed(seed)
        adversarial = random_start(x, threat, generator)[natural]
        done = 0
        for steps, name in sorted((_steps(name), name) for name in attacks if _family(name) == family):
            # PGD has no memory: the longer attack goes on from the shorter one's last iterate.
            adversarial = pgd(model, x_right, labels_right, threat, steps - done, loss=loss, start=adversarial)
            done = steps
            verdicts[name] = _among(natural, _correct(model, adversarial, labels_right))
    return {name: verdicts[name] for name in attacks}


@torch.no_grad()
def _correct(model: LogitModel, x: Tensor, labels: Tensor) -> Tensor:
    return model(x).argmax(1) == labels


def _among(natural: Tensor, correct: Tensor) -> Tensor:
    verdict = natural.clone()
    verdict[natural] = correct
    return verdict


def _family(name: str) -> str | None:
    match = re.fullmatch(r"(pgd)[1-9]\d*|(cw)([1-9]\d*)?", name)
    return (match[1] or match[2]) if match else None


def _steps(name: str) -> int:
    digits = name.lstrip("pgdcw")
    return int(digits) if digits else CW_STEPS
