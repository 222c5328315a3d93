"""AutoAttack (Croce & Hein 2020, "Reliable evaluation of adversarial robustness with an ensemble …").

Several attacks one after the other, each on the images that the earlier ones left unbroken: an image counts as
robust if none of them breaks it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pwoa.attacks.ball import Ball, distance, per_image
from pwoa.attacks.problem import Round, count_classes, is_broken
from pwoa.attacks.registry import ATTACKS, CONTINUED, ROUNDS, STANDARD, check_names
from pwoa.errors import InputError
from pwoa.guard import refuse_attack
from pwoa.models.border import LogitModel
from pwoa.threat import Threat

NATURAL = "natural"
ROBUST = -1


@dataclass
class State:
    """How far AutoAttack has come: all that is needed to go on, and in the end the outcome.

    broken_by: for each image the number, in (natural, *attacks), of what broke it; ROBUST (−1) if nothing did.
    best: for each image what broke it, or the best try so far.
    left: the images that the round in progress is for, of which the first `done` are through.
    """

    broken_by: Tensor
    best: Tensor
    left: Tensor
    attack: int = 0
    round: int = 0
    done: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def fresh(cls, x: Tensor, labels: Tensor) -> State:
        return cls(torch.full_like(labels, ROBUST), x.clone(), torch.arange(len(x), device=x.device))


@dataclass(frozen=True)
class Verdicts:
    """What AutoAttack found.

    adversarial: for each image the one that broke the model; images that are robust or wrong anyway are unchanged.
    broken_by: for each image the number, in `attacks`, of what broke it; ROBUST (−1) if nothing did.
    attacks: `natural`, then the attacks in the order they ran.
    seconds: how long each of `attacks` took.
    """

    adversarial: Tensor
    broken_by: Tensor
    attacks: tuple[str, ...]
    seconds: dict[str, float]

    @property
    def robust(self) -> Tensor:
        """Which images no attack broke."""
        return self.broken_by == ROBUST

    def after(self, attack: str) -> Tensor:
        """Which images were unbroken when `attack` had run."""
        return self.robust | (self.broken_by > self.attacks.index(attack))

    @property
    def accuracy(self) -> dict[str, float]:
        """Percent of all images unbroken after each of `attacks`; the last is the robust accuracy."""
        return {name: 100 * int(self.after(name).sum()) / len(self.broken_by) for name in self.attacks}

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
    transfer: bool = False,
    advance: Callable[[int], None] = lambda decided: None,
    state: State | None = None,
    save: Callable[[State], None] = lambda state: None,
) -> Verdicts:
    """Attack `x`, all on the device of the model, in float32 and in [0, 1], with a list of ATTACKS.

    An image is broken only when `model` itself gets it wrong and it lies in the ball and in [0, 1]. A
    `search_model` (the same function, compiled or in lower precision) only looks for candidates: where it takes
    an image for broken and `model` does not, the last round is done again on `model`. Lower precision can cost the
    search strength: let it return logits in float32, or Square cannot see small gains. With `transfer` the search
    model is another one, and what it finds is just tried on `model`, which then needs no gradients.

    After each round the unbroken images are packed into full batches. `advance` is told how many images have
    been decided: broken ones at once, robust ones at the end. The result depends on `seed` and `batch`; each
    batch of each round has random numbers of its own, whatever came before it. `save` is called after each batch;
    given what it was called with as `state`, the attack goes on there and ends with the same result.
    """
    refuse_attack("autoattack")
    names = (NATURAL, *check_names(attacks))
    _check_images(x, labels, batch)
    x = x.detach()
    classes = count_classes(model, x)
    if state is None:
        state = State.fresh(x, labels)
    else:
        advance(int((state.broken_by != ROBUST).sum()))
    clock = time.perf_counter()
    for number in range(state.attack, len(names)):
        name = names[number]
        rounds = _rounds(name, classes)
        for turn in range(state.round, len(rounds)):
            for first in range(state.done, len(state.left), batch):
                part = state.left[first : first + batch]
                images = x[part], labels[part], threat, state.best[part]
                seeded = torch.Generator(x.device).manual_seed(zlib.crc32(f"{seed} {name} {turn} {first}".encode()))
                if search_model is None or name == NATURAL:
                    found = rounds[turn](model, *images, seeded)
                else:
                    found = rounds[turn](search_model, *images, seeded)
                    if not transfer and (name not in CONTINUED or turn == len(rounds) - 1):
                        found = _undeceived(found, rounds[turn], model, search_model, *images, seeded)
                broken = is_broken(model, found, labels[part]) & Ball.around(x[part], threat).contains(found)
                state.best[part] = found
                state.broken_by[part[broken]] = number
                state.done = first + len(part)
                advance(int(broken.sum()))
                clock, before = time.perf_counter(), clock
                state.seconds[name] = state.seconds.get(name, 0.0) + clock - before
                save(state)
            state.round, state.done = turn + 1, 0
            state.left = (state.broken_by == ROBUST).nonzero().flatten()
        state.attack, state.round = number + 1, 0
        state.best[state.left] = x[state.left]
    advance(len(state.left))
    seconds = {name: state.seconds.get(name, 0.0) for name in names}
    adversarial = torch.where(per_image(state.broken_by > 0, x), state.best, x)
    return Verdicts(adversarial, state.broken_by, names, seconds)


def _undeceived(
    found: Tensor,
    attack: Round,
    model: LogitModel,
    search_model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    best: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """What the round found, with more effort for images that only the search model takes for broken.

    They are moved on along the same line as far as the ball allows; if that is not enough, the model itself has
    the round again.
    """
    deceived = is_broken(search_model, found, labels) & ~is_broken(model, found, labels)
    if not bool(deceived.any()):
        return found
    x, labels, best, tried = x[deceived], labels[deceived], best[deceived], found[deceived]
    further = (threat.radius / distance(tried, x, threat.norm).clamp_min(1e-12)).clamp_min(1)
    tried = Ball.around(x, threat).project(torch.lerp(x, tried, per_image(further, x)))
    if bool((left := ~is_broken(model, tried, labels)).any()):
        again = attack(model, x[left], labels[left], threat, best[left], generator)
        tried = tried.masked_scatter(per_image(left, x), again)
    return found.masked_scatter(per_image(deceived, found), tried)


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
        return x if name == NATURAL else ATTACKS[name](model, x, labels, threat, generator=generator)

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
