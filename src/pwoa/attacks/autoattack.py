"""AutoAttack (Croce & Hein 2020, "Reliable evaluation of adversarial robustness with an ensemble …").

Several attacks one after the other, each on the images that the earlier ones left unbroken: an image counts as
robust if none of them breaks it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pwoa.attacks.ball import Ball
from pwoa.attacks.registry import ATTACKS, ROUNDS, STANDARD, check_names
from pwoa.attacks.rounds import Round, count_classes, is_broken
from pwoa.errors import InputError
from pwoa.guard import refuse_attack
from pwoa.models.border import LogitModel
from pwoa.recipe import Threat

NATURAL = "natural"
ROBUST = -1


@dataclass(frozen=True)
class Verdicts:
    """What AutoAttack found.

    adversarial: for each image the one that broke the model; images that are robust or wrong anyway are unchanged.
    broken_by: for each image the number, in `attacks`, of what broke it; ROBUST (−1) if nothing did.
    attacks: `natural`, then the attacks in the order they ran.
    accuracy: percent of all images unbroken after each of `attacks`; the last is the robust accuracy.
    seconds: how long each of `attacks` took.
    """

    adversarial: Tensor
    broken_by: Tensor
    attacks: tuple[str, ...]
    accuracy: dict[str, float]
    seconds: dict[str, float]

    @property
    def robust(self) -> Tensor:
        """Which images no attack broke."""
        return self.broken_by == ROBUST

    def names(self) -> list[str | None]:
        """For each image the name of what broke it, or None."""
        return [None if number == ROBUST else self.attacks[number] for number in self.broken_by.tolist()]


def autoattack(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    *,
    attacks: str | Sequence[str] = STANDARD,
    batch: int = 500,
    seed: int = 0,
    search_model: LogitModel | None = None,
    advance: Callable[[int], None] = lambda decided: None,
) -> Verdicts:
    """Attack `x`, all on the device of the model, in float32 and in [0, 1], with a list of ATTACKS.

    An image is broken only when `model` itself gets it wrong and it lies in the ball and in [0, 1]. A
    `search_model` (the same function, compiled or in lower precision) only looks for candidates: where it takes
    an image for broken and `model` does not, the round is done again on `model`. Lower precision can cost the
    search strength: let it return logits in float32, or Square cannot see small gains.

    After each round the unbroken images are packed into full batches. `advance` is told how many images have
    been decided: broken ones at once, robust ones at the end. The result depends on `seed` and `batch`; each
    attack has random numbers of its own, whatever stands before it in the list.
    """
    refuse_attack("autoattack")
    chosen = check_names(attacks)
    _check_images(x, labels, batch)
    clock = _Clock()
    x = x.detach()
    adversarial, broken_by = x.clone(), torch.full_like(labels, ROBUST)
    for part in torch.split(torch.arange(len(x), device=x.device), batch):
        broken_by[part[is_broken(model, x[part], labels[part])]] = 0
    names = (NATURAL, *chosen)
    accuracy = {NATURAL: _percent(broken_by)}
    advance(int((broken_by == 0).sum()))
    clock.stop(NATURAL)

    classes = count_classes(model, x)
    for number, name in enumerate(chosen, start=1):
        generator = torch.Generator(x.device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        best = x
        for attack in _rounds(name, classes):
            left = (broken_by == ROBUST).nonzero().flatten()
            if not len(left):
                break
            best = x.clone() if best is x else best
            for part in torch.split(left, batch):
                images = x[part], labels[part]
                best[part] = found = _one_round(attack, model, search_model, *images, threat, best[part], generator)
                broken = is_broken(model, found, images[1]) & Ball.around(images[0], threat).contains(found)
                broken_by[part[broken]] = number
                adversarial[part[broken]] = found[broken]
                advance(int(broken.sum()))
        accuracy[name] = _percent(broken_by)
        clock.stop(name)
    advance(int((broken_by == ROBUST).sum()))
    return Verdicts(adversarial, broken_by, names, accuracy, clock.seconds)


def _one_round(
    attack: Round,
    model: LogitModel,
    search_model: LogitModel | None,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    best: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """What a round finds; images that only the search model takes for broken have it again on the model."""
    if search_model is None:
        return attack(model, x, labels, threat, best, generator)
    found = attack(search_model, x, labels, threat, best, generator)
    deceived = is_broken(search_model, found, labels) & ~is_broken(model, found, labels)
    if bool(deceived.any()):
        again = attack(model, x[deceived], labels[deceived], threat, best[deceived], generator)
        found = found.masked_scatter(deceived.view(-1, *(1,) * (x.dim() - 1)), again)
    return found


def _rounds(name: str, classes: int) -> Sequence[Round]:
    if name in ROUNDS:
        return ROUNDS[name](classes)

    def whole(
        model: LogitModel,
        x: Tensor,
        labels: Tensor,
        threat: Threat,
        best: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        return ATTACKS[name](model, x, labels, threat, generator=generator)

    return [whole]


def _check_images(x: Tensor, labels: Tensor, batch: int) -> None:
    if batch < 1:
        raise InputError(f"batch = {batch}; give a number of 1 or more")
    if not len(x) or len(x) != len(labels):
        raise InputError(f"{len(x)} images with {len(labels)} labels; give as many of each, and at least one")
    if x.dtype != torch.float32 or not bool(((x >= 0) & (x <= 1)).all()):
        raise InputError(
            f"images must be float32 in [0, 1]; these are {str(x.dtype).removeprefix('torch.')} "
            f"from {float(x.min()):.3g} to {float(x.max()):.3g} (put normalisation inside the model)"
        )


def _percent(broken_by: Tensor) -> float:
    return 100 * int((broken_by == ROBUST).sum()) / len(broken_by)


class _Clock:
    """Seconds between stops. Each stop comes after a count has been read from the device."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def stop(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._last = now - self._last, now
