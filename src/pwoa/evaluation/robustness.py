"""Accuracy under attack."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from pwoa.attacks.autoattack import ROBUST, State, autoattack
from pwoa.attacks.ball import random_start
from pwoa.attacks.gradient import pgd
from pwoa.attacks.problem import is_broken
from pwoa.attacks.registry import AUTOATTACK, NATURAL, REPLICA, SETS, STRONG, Attack, find_attack
from pwoa.data.images import Images
from pwoa.devices import exact_float32
from pwoa.errors import InputError
from pwoa.evaluation.examples import Attempts
from pwoa.evaluation.scores import Scores
from pwoa.models.border import LogitModel, as_logits, evaluating
from pwoa.models.inference import attack_copy
from pwoa.progress import Pace
from pwoa.threat import Threat

PRECISIONS = ("auto", "float32")


@dataclass
class Measurement:
    """How far `robustness` has come; given back to it, it goes on there.

    done: how many images are through the short attacks.
    distances: by an attack that looks for the nearest broken image how far that is: 0 for one that is wrong already.
    ensemble: the state of the attack that AutoAttack has in progress.
    attempts: what the attacks made of a few images, if anyone wants to look at them.
    """

    right: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    done: int = 0
    ensemble: State | None = None
    distances: dict[str, Tensor] = field(default_factory=dict)
    attempts: Attempts | None = None


def robustness(
    model: nn.Module,
    images: Images,
    threat: Threat,
    attacks: Sequence[str] = SETS["paper"],
    *,
    classes: int | None = None,
    batch: int = 500,
    seed: int = 0,
    precision: str = "auto",
    surrogate: nn.Module | None = None,
    replica: nn.Module | None = None,
    strong: int = 0,
    long: int = 0,
    advance: Callable[[int], None] = lambda images: None,
    measured: Measurement | None = None,
    save: Callable[[Measurement], None] = lambda measured: None,
) -> Scores:
    """Measure the model, in eval mode, on all of `images`; `advance` is called with units of `work` done.

    Example: `robustness(model, data.test, Threat("linf", 0.3, 0.01), ("natural", "pgd20"))["pgd20"]`.

    classes: needed for a model that returns several things, to tell which are its logits.
    precision: `auto` lets attacks search on a faster copy of the model, in float16 on a GPU; whether an image is
        right is always decided by the model itself in float32. `float32` searches on the model as well.
    surrogate: the model that `transfer` searches on. replica: the one that `replica` does.
    strong: on how many images, from the first, the attack `strong` is run after the others.
    long: on how many, from the first, the attacks are run that are not short, as AutoAttack; 0 is all.
    measured, save: `save` is called after each batch; what it was called with, given as `measured`, resumes.
    """
    chosen = [find_attack(name) for name in attacks]
    others = {attack.name: replica if attack.name == REPLICA else surrogate for attack in chosen if attack.on_surrogate}
    if lacking := [name for name, other in others.items() if other is None]:
        raise InputError(f"the attack {lacking[0]} needs a surrogate: another model, whose gradients it can use")
    measured = measured or Measurement()
    with ExitStack() as inside:
        for network in (model, surrogate, replica):
            if network is not None:
                inside.enter_context(evaluating(network))
        inside.enter_context(exact_float32())
        search = None
        if precision == "auto" and set(attacks) != {NATURAL}:
            search = attack_copy(model, images.batch(_numbers(images)[:batch])[0], classes, batch)
        trial = _Trial(as_logits(model, classes), search, images, threat, batch, seed, advance, measured, save)
        trial.by_batches([attack for attack in chosen if attack.short])
        few = replace(trial, images=images.first(long or len(images)))
        for attack in (attack for attack in chosen if not attack.short):
            other = others.get(attack.name)
            few.ensemble(attack, None if other is None else as_logits(other, classes))
        if strong:
            replace(trial, images=images.first(strong)).ensemble(find_attack(STRONG), None)
    names = dict.fromkeys((*attacks, *([STRONG] if strong else [])))
    right = {name: measured.right[name] for name in names}
    return Scores(threat, right, measured.seconds, measured.after, distances=measured.distances)


def work(images: int, attacks: Sequence[str], strong: int = 0, long: int = 0) -> int:
    """Return by how many units `robustness` will `advance`: about how often it calls the model with an image."""
    units = sum((images if find_attack(name).short else long or images) * _calls(name) for name in attacks)
    return units + min(strong, images) * _calls(STRONG)


def _calls(attack: str) -> int:
    return sum(find_attack(part).calls for part in find_attack(attack).parts)


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

    def by_batches(self, attacks: Sequence[Attack]) -> None:
        """Run all short attacks, on one batch after the other."""
        measured, names = self.measured, [attack.name for attack in attacks]
        for name in names:
            measured.right.setdefault(name, torch.zeros(len(self.images), dtype=torch.bool))
            measured.seconds.setdefault(name, 0.0)
        for attack in (attack for attack in attacks if attack.nearest):
            measured.distances.setdefault(attack.name, torch.zeros(len(self.images)))
        calls = sum(map(_calls, names))
        if measured.done:
            self.advance(measured.done * calls)
        for first in range(measured.done, len(self.images), self.batch):
            index = _numbers(self.images)[first : first + self.batch]
            pace = Pace(self.advance, len(index), calls)
            search = pace.watch(self.search or self.model)
            began = time.perf_counter()
            x, labels = self.images.batch(index)
            for name, right in self._attack(attacks, search, index, x, labels):
                if name in names:
                    if nearest := find_attack(name).nearest:
                        far = self._far(nearest, x, labels, right)
                        measured.distances[name][first : first + len(index)] = far.cpu()
                        right = far > self.threat.radius
                    measured.right[name][first : first + len(index)] = right.cpu()
                    now = time.perf_counter()
                    measured.seconds[name], began = measured.seconds[name] + now - began, now
            measured.done = first + len(index)
            pace.decide(len(index))
            self.save(measured)

    def _attack(
        self, attacks: Sequence[Attack], search: LogitModel, index: Tensor, x: Tensor, labels: Tensor
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield for each attack which images of the batch are right naturally and under attack.

        index: their places among all images.
        """
        seed = self.seed + int(index[0])
        natural = ~is_broken(self.model, x, labels)
        yield NATURAL, natural
        if not bool(natural.any()):
            yield from ((attack.name, natural) for attack in attacks)
            return
        x_right, labels_right = x[natural], labels[natural]

        def verdict(name: str, adversarial: Tensor) -> Tensor:
            broken = is_broken(self.model, adversarial, labels_right)
            if self.measured.attempts is not None:
                self.measured.attempts.note(name, index[natural], adversarial, broken)
            right = natural.clone()
            right[natural] = ~broken
            return right

        yield from ((attack.name, natural) for attack in attacks if attack.nearest)
        for attack in (attack for attack in attacks if not attack.nearest):
            if attack.loss is None and attack.run is not None and attack.name != NATURAL:
                generator = torch.Generator(x.device).manual_seed(seed)
                adversarial = attack.run(search, x_right, labels_right, self.threat, generator=generator)
                yield attack.name, verdict(attack.name, adversarial)
        for loss in dict.fromkeys(attack.loss for attack in attacks if attack.loss is not None):
            generator = torch.Generator(x.device).manual_seed(seed)
            adversarial = random_start(x, self.threat, generator)[natural]
            done = 0
            for steps, name in sorted((attack.steps, attack.name) for attack in attacks if attack.loss is loss):
                # PGD has no memory: the longer attack goes on from the shorter one's last iterate.
                more = steps - done
                adversarial = pgd(search, x_right, labels_right, self.threat, more, loss=loss, start=adversarial)
                done = steps
                yield name, verdict(name, adversarial)

    def _far(self, nearest: Callable[..., tuple[Tensor, Tensor]], x: Tensor, labels: Tensor, natural: Tensor) -> Tensor:
        """Return how far the nearest broken image is; a faster copy of the model has its boundaries elsewhere."""
        far = x.new_zeros(len(x))
        if bool(natural.any()):
            far[natural] = nearest(self.model, x[natural], labels[natural], self.threat.norm)[1]
        return far

    def ensemble(self, attack: Attack, surrogate: LogitModel | None) -> None:
        """Run the parts of an attack as AutoAttack does, on the model or on a surrogate."""
        measured, name, parts = self.measured, attack.name, attack.parts
        if name in measured.right:
            self.advance(len(self.images) * _calls(name))
            return
        begun = measured.ensemble.attack if measured.ensemble else 0  # 0 is natural, then come the parts
        over = sum(find_attack(part).calls for part in parts[: max(begun - 1, 0)])
        pace = Pace(self.advance, len(self.images), _calls(name), over / _calls(name))
        search = surrogate or self.search

        def note(state: State) -> None:
            measured.ensemble = state
            if state.attack and (attempts := measured.attempts) is not None:
                seen = attempts.places[torch.isin(attempts.places, state.left[: state.done])]
                attempts.note(name, seen, state.best[seen], state.broken_by[seen] != ROBUST)
            self.save(measured)

        verdicts = autoattack(
            self.model if search else pace.watch(self.model),
            *self.images.batch(_numbers(self.images)),
            self.threat,
            attacks=parts,
            batch=self.batch,
            seed=self.seed,
            search_model=pace.watch(search) if search else None,
            transfer=surrogate is not None,
            advance=pace.decide,
            state=measured.ensemble,
            save=note,
        )
        measured.ensemble = None
        measured.right[name] = verdicts.robust.cpu()
        measured.seconds[name] = sum(verdicts.seconds.values())
        if name == AUTOATTACK:
            measured.after.update({part: verdicts.after(part).cpu() for part in parts})
            measured.seconds.update({f"{name}:{part}": verdicts.seconds[part] for part in parts})
        self.save(measured)


def _numbers(images: Images) -> Tensor:
    return torch.arange(len(images), device=images.pixels.device)
