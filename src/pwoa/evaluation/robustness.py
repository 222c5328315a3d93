"""Accuracy under attack."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pwoa.attacks.autoattack import NATURAL, State, autoattack
from pwoa.attacks.ball import random_start
from pwoa.attacks.gradient import CW_STEPS, AttackLoss, cross_entropy, fgsm, margin, pgd
from pwoa.attacks.registry import STANDARD as AUTOATTACK
from pwoa.data.images import Images
from pwoa.devices import exact_float32
from pwoa.errors import InputError
from pwoa.evaluation.scores import Scores
from pwoa.models.border import LogitModel, as_logits, evaluating
from pwoa.models.inference import search_model
from pwoa.threat import Threat

STANDARD = ("natural", "fgsm", "pgd10", "pgd20", "cw")
TRANSFER = "transfer"
GRADIENT_FREE = ("natural", "square", "square-paper", TRANSFER)
"""What can be done to a model that gives no gradients."""

_LOSSES: dict[str, AttackLoss] = {"pgd": cross_entropy, "cw": margin}
_ENSEMBLES: dict[str, tuple[str, ...]] = {
    "autoattack": AUTOATTACK,
    **{name: (name,) for name in (*AUTOATTACK, "square-paper", "apgd-dlr")},
    TRANSFER: ("apgd-ce", "apgd-t"),
}
"""AutoAttack, its components and variants of them: what repacks surviving images by itself."""

PRECISIONS = ("auto", "float32")


@dataclass
class Measurement:
    """How far `robustness` has come; given back to it, it goes on there.

    done: how many images are through the attacks that are no ensembles.
    ensemble: the state of the ensemble in progress.
    """

    right: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    done: int = 0
    ensemble: State | None = None


def parse_attacks(names: str | Sequence[str]) -> tuple[str, ...]:
    """Attack names from a list or `a,b,c`; `standard` stands for the paper's set. Unknown ones are an error."""
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
        raise InputError(f"attacks = {names!r}; give names, as natural,pgd20")
    chosen: list[str] = []
    for name in given:
        if name not in ("standard", "natural", "fgsm", *_ENSEMBLES) and _family(name) is None:
            raise InputError(
                f"unknown attack {name!r}; known: standard, natural, fgsm, pgdN, cw, cwN (N steps, as in pgd20), "
                f"{', '.join(_ENSEMBLES)}"
            )
        chosen += STANDARD if name == "standard" else [name]
    if not chosen:
        raise InputError("no attack is named; give natural for the accuracy without any")
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
    precision: str = "auto",
    surrogate: nn.Module | None = None,
    advance: Callable[[int], None] = lambda images: None,
    measured: Measurement | None = None,
    save: Callable[[Measurement], None] = lambda measured: None,
) -> Scores:
    """Measure the model, in eval mode, on all of `images`; `advance` is told of units of `work` done.

    classes: needed for a model that returns several things, to tell which are its logits.
    precision: `auto` lets attacks search on a faster copy of the model, in float16 on a GPU; whether an image is
        right is always decided by the model itself in float32. `float32` searches on the model as well.
    surrogate: the model that the attack `transfer` searches on.
    measured, save: `save` is called after each batch; what it was called with, given as `measured`, resumes.
    """
    if TRANSFER in attacks and surrogate is None:
        raise InputError("the attack transfer needs a surrogate: another model, whose gradients it can use")
    measured = measured or Measurement()
    with ExitStack() as inside:
        for network in (model, surrogate):
            if network is not None:
                inside.enter_context(evaluating(network))
        inside.enter_context(exact_float32())
        search = None
        if precision == "auto" and set(attacks) != {"natural"}:
            search = search_model(model, images.batch(_numbers(images)[:batch])[0], classes, batch)
        trial = _Trial(as_logits(model, classes), search, images, threat, batch, seed, advance, measured, save)
        trial.by_batches([name for name in attacks if name not in _ENSEMBLES])
        for name in attacks:
            if name in _ENSEMBLES and name in measured.right:
                advance(len(images))
            elif name in _ENSEMBLES:
                other = surrogate if name == TRANSFER else None
                trial.ensemble(name, None if other is None else as_logits(other, classes))
    return Scores(threat, {name: measured.right[name] for name in attacks}, measured.seconds, measured.after)


def work(images: int, attacks: Sequence[str]) -> int:
    """How many units `robustness` will be told to `advance` by: all images once, and once more an ensemble."""
    return images * (1 + sum(name in _ENSEMBLES for name in attacks))


@dataclass(frozen=True)
class _Trial:
    """One model on one attacker's range; `search` is where gradients come from, `model` who decides."""

    model: LogitModel
    search: LogitModel | None
    images: Images
    threat: Threat
    batch: int
    seed: int
    advance: Callable[[int], None]
    measured: Measurement
    save: Callable[[Measurement], None]

    def by_batches(self, attacks: Sequence[str]) -> None:
        """All attacks that are no ensembles, on one batch after the other."""
        measured = self.measured
        for name in attacks:
            measured.right.setdefault(name, torch.zeros(len(self.images), dtype=torch.bool))
            measured.seconds.setdefault(name, 0.0)
        if measured.done:
            self.advance(measured.done)
        for first in range(measured.done, len(self.images), self.batch):
            index = _numbers(self.images)[first : first + self.batch]
            began = time.perf_counter()
            for name, right in self._attack(attacks, *self.images.batch(index), self.seed + first):
                if name in attacks:
                    measured.right[name][first : first + len(index)] = right.cpu()
                    now = time.perf_counter()
                    measured.seconds[name], began = measured.seconds[name] + now - began, now
            measured.done = first + len(index)
            self.advance(len(index))
            self.save(measured)

    def _attack(self, attacks: Sequence[str], x: Tensor, labels: Tensor, seed: int) -> Iterator[tuple[str, Tensor]]:
        """For each attack, which images of the batch are right naturally and under attack."""
        search = self.search or self.model
        natural = _correct(self.model, x, labels)
        yield NATURAL, natural
        if not bool(natural.any()):
            yield from ((name, natural) for name in attacks)
            return
        x_right, labels_right = x[natural], labels[natural]

        def verdict(adversarial: Tensor) -> Tensor:
            right = natural.clone()
            right[natural] = _correct(self.model, adversarial, labels_right)
            return right

        if "fgsm" in attacks:
            yield "fgsm", verdict(fgsm(search, x_right, labels_right, self.threat))
        for family, loss in _LOSSES.items():
            generator = torch.Generator(x.device).manual_seed(seed)
            adversarial = random_start(x, self.threat, generator)[natural]
            done = 0
            for steps, name in sorted((_steps(name), name) for name in attacks if _family(name) == family):
                # PGD has no memory: the longer attack goes on from the shorter one's last iterate.
                more = steps - done
                adversarial = pgd(search, x_right, labels_right, self.threat, more, loss=loss, start=adversarial)
                done = steps
                yield name, verdict(adversarial)

    def ensemble(self, name: str, surrogate: LogitModel | None) -> None:
        """AutoAttack, a component of it, or what it finds on a surrogate."""
        measured, parts = self.measured, _ENSEMBLES[name]

        def note(state: State) -> None:
            measured.ensemble = state
            self.save(measured)

        found = autoattack(
            self.model,
            *self.images.batch(_numbers(self.images)),
            self.threat,
            attacks=parts,
            batch=self.batch,
            seed=self.seed,
            search_model=surrogate or self.search,
            transfer=surrogate is not None,
            advance=self.advance,
            state=measured.ensemble,
            save=note,
        )
        measured.ensemble = None
        measured.right[name] = found.robust.cpu()
        measured.seconds[name] = sum(found.seconds.values())
        if name == "autoattack":
            measured.after.update({part: found.after(part).cpu() for part in parts})
            measured.seconds.update({f"{name}:{part}": found.seconds[part] for part in parts})
        self.save(measured)


def _numbers(images: Images) -> Tensor:
    return torch.arange(len(images), device=images.pixels.device)


@torch.no_grad()
def _correct(model: LogitModel, x: Tensor, labels: Tensor) -> Tensor:
    return model(x).argmax(1) == labels


def _family(name: str) -> str | None:
    match = re.fullmatch(r"(pgd)[1-9]\d*|(cw)([1-9]\d*)?", name)
    return (match[1] or match[2]) if match else None


def _steps(name: str) -> int:
    digits = name.lstrip("pgdcw")
    return int(digits) if digits else CW_STEPS
