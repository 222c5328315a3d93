"""AutoAttack (Croce & Hein 2020, "Reliable evaluation of adversarial robustness with an ensemble …").

Several attacks one after the other, each on the images that the earlier ones left unbroken: an image counts as
robust if none of them breaks it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pwoa.attacks.ball import Ball, distance, per_image
from pwoa.attacks.problem import Problem, Round, count_classes
from pwoa.attacks.registry import AUTOATTACK, NATURAL, find_attack, parse_attacks
from pwoa.errors import InputError
from pwoa.guard import refuse_attack
from pwoa.threat import Threat

if TYPE_CHECKING:
    from pwoa.models.border import LogitModel

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
        """Tell which images no attack broke."""
        return self.broken_by == ROBUST

    def after(self, attack: str) -> Tensor:
        """Tell which images were unbroken when `attack` had run."""
        return self.robust | (self.broken_by > self.attacks.index(attack))

    @property
    def accuracy(self) -> dict[str, float]:
        """Return the percentage of images unbroken after each of `attacks`; the last is the robust accuracy."""
        return {name: 100 * int(self.after(name).sum()) / len(self.broken_by) for name in self.attacks}


def autoattack(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    *,
    attacks: str | Sequence[str] = AUTOATTACK,
    batch: int = 500,
    seed: int = 0,
    search_model: LogitModel | None = None,
    transfer: bool = False,
    advance: Callable[[int], None] = lambda decided: None,
    state: State | None = None,
    save: Callable[[State], None] = lambda state: None,
) -> Verdicts:
    """Attack `x`, all on the device of the model, in float32 and in [0, 1], with attacks of the registry in turn.

    Example: `autoattack(model, x, labels, Threat("linf", 8 / 255)).accuracy`.

    An image is broken only when `model` itself gets it wrong and it lies in the ball and in [0, 1]. A
    `search_model` (the same function, compiled or in lower precision) only looks for candidates: where it takes
    an image for broken and `model` does not, the last round is done again on `model`. Lower precision can cost the
    search strength: let it return logits in float32, or Square cannot see small gains. With `transfer` the search
    model is another one, and what it finds is just tried on `model`, which then needs no gradients.

    After each round the unbroken images are packed into full batches. `advance` is called with how many images
    have been decided: broken ones at once, robust ones at the end. The result depends on `seed` and `batch`; each
    batch of each round has random numbers of its own, whatever came before it. `save` is called after each batch;
    given what it was called with as `state`, the attack goes on there and ends with the same result.
    """
    refuse_attack("autoattack")
    names = _parts(attacks, transfer)
    _check_images(x, labels, batch)
    x = x.detach()
    classes = count_classes(model, x)
    if state is None:
        state = State.fresh(x, labels)
    else:
        advance(int((state.broken_by != ROBUST).sum()))
    clock = time.perf_counter()
    for number in range(state.attack, len(names)):
        name, attack = names[number], find_attack(names[number])
        rounds = attack.rounds_for(classes)
        for turn in range(state.round, len(rounds)):
            for first in range(state.done, len(state.left), batch):
                part = state.left[first : first + batch]
                seeded = torch.Generator(x.device).manual_seed(zlib.crc32(f"{seed} {name} {turn} {first}".encode()))
                problem = Problem(model, x[part], labels[part], threat, seeded)
                if search_model is None or name == NATURAL:
                    tried = rounds[turn](problem, state.best[part])
                else:
                    search = problem.on(search_model)
                    tried = rounds[turn](search, state.best[part])
                    if not transfer and (not attack.continues or turn == len(rounds) - 1):
                        deceived = search.broken(tried) & ~problem.broken(tried)
                        tried = _tried_again(tried, deceived, problem, rounds[turn], state.best[part])
                broken = problem.broken(tried) & Ball.around(problem.x, threat).contains(tried)
                state.best[part] = tried
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


def _tried_again(tried: Tensor, deceived: Tensor, problem: Problem, attack: Round, best: Tensor) -> Tensor:
    """Return what a round tried, with more effort for the `deceived` images: only the search model got them wrong.

    They are moved on along the same line as far as the ball allows; if that is not enough, the model itself has
    the round again.
    """
    if not bool(deceived.any()):
        return tried
    problem, best, further = problem.subset(deceived), best[deceived], tried[deceived]
    x, threat = problem.x, problem.threat
    scale = (threat.radius / distance(further, x, threat.norm).clamp_min(1e-12)).clamp_min(1)
    further = Ball.around(x, threat).project(torch.lerp(x, further, per_image(scale, x)))
    if bool((left := ~problem.broken(further)).any()):
        again = attack(problem.subset(left), best[left])
        further = further.masked_scatter(per_image(left, x), again)
    return tried.masked_scatter(per_image(deceived, tried), further)


def _parts(attacks: str | Sequence[str], transfer: bool) -> tuple[str, ...]:
    """Return `natural` and the attacks to run, each once: `autoattack` stands for its four."""
    chosen = [find_attack(name) for name in parse_attacks(attacks)]
    if not transfer and (refused := [attack.name for attack in chosen if attack.on_surrogate]):
        raise InputError(f"{refused[0]} searches on another model; give it as search_model, with transfer=True")
    return tuple(dict.fromkeys((NATURAL, *(part for attack in chosen for part in attack.parts))))


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
