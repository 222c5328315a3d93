"""Whether an exported model answers as its twin, the network it was made from: on natural and on attacked images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pwoa.attacks.autoattack import autoattack
from pwoa.attacks.registry import NATURAL, STRONG
from pwoa.devices import exact_float32
from pwoa.evaluation.subject import Subject
from pwoa.models.border import LogitModel, as_logits, evaluating
from pwoa.threat import Threat


@dataclass(frozen=True)
class Agreement:
    """How a model and its twin answer on the same images.

    attack: `natural`, or `strong` for the examples that it finds on the twin (what it cannot break stays natural).
    same_class, same_verdict: on how many of the images both give the same class, and are both right or both wrong.
    right, right_of_twin: how many they get right.
    """

    attack: str
    images: int
    same_class: int
    same_verdict: int
    right: int
    right_of_twin: int


def agreement(
    subject: Subject, threat: Threat, strong: int, *, batch: int, seed: int, advance: Callable[[int], None]
) -> list[Agreement]:
    """Compare a subject with its surrogate: on all natural images, and on `strong` attacked ones, from the first."""
    assert subject.surrogate is not None
    classes = subject.data.classes
    model, twin = as_logits(subject.model, classes), as_logits(subject.surrogate, classes)
    numbers = torch.arange(len(subject.images), device=subject.device)
    found = []
    with evaluating(subject.model), evaluating(subject.surrogate), exact_float32():
        pairs = []
        for index in torch.split(numbers, batch):
            x, labels = subject.images.batch(index)
            pairs.append((_classes(model, x), _classes(twin, x), labels))
            advance(len(index))
        found.append(_compare(NATURAL, *(torch.cat(parts) for parts in zip(*pairs, strict=True))))
        if strong and threat.radius:
            x, labels = subject.images.batch(numbers[:strong])
            attacked = autoattack(
                twin, x, labels, threat, attacks=STRONG, batch=batch, seed=seed, advance=advance
            ).adversarial
            parts = torch.split(attacked, batch)
            ours, theirs = (torch.cat([_classes(network, part) for part in parts]) for network in (model, twin))
            found.append(_compare(STRONG, ours, theirs, labels))
    return found


def _classes(model: LogitModel, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(x).argmax(1)


def _compare(attack: str, ours: torch.Tensor, theirs: torch.Tensor, labels: torch.Tensor) -> Agreement:
    right, right_of_twin = ours == labels, theirs == labels
    counts = ((ours == theirs).sum(), (right == right_of_twin).sum(), right.sum(), right_of_twin.sum())
    return Agreement(attack, len(labels), *map(int, counts))
