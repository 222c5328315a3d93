"""Attacks by name: what each is called, what it needs and how it is run. A new attack is one `register(Attack(…))`."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from pwoa.attacks.apgd import (
    STEPS,
    STRONG_CALLS,
    apgd_ce,
    apgd_dlr,
    apgd_t,
    apgd_t_rounds,
    strong,
    strong_rounds,
)
from pwoa.attacks.fab import fab_t, fab_t_rounds
from pwoa.attacks.fmn import STEPS as FMN_STEPS
from pwoa.attacks.fmn import fmn, minimal
from pwoa.attacks.gradient import CW_STEPS, AttackLoss, cross_entropy, cw, fgsm, margin, pgd
from pwoa.attacks.problem import TARGETS, Problem, Round, Rounds
from pwoa.attacks.square import QUERIES, square, square_rounds
from pwoa.errors import InputError, nearest

NATURAL, AUTOATTACK, TRANSFER, REPLICA, STRONG = "natural", "autoattack", "transfer", "replica", "strong"
SETS = {"paper": (NATURAL, "fgsm", "pgd10", "pgd20", "cw", AUTOATTACK)}
"""Names that stand for several measures; `paper` is the six of the paper."""

_REPLACED = {"standard": "it is now autoattack, AutoAttack's four attacks, or paper, the paper's six measures"}
_WORDS = {"worst": "worst case"}


@dataclass(frozen=True)
class Attack:
    """An attack as the registry knows it.

    label: what tables call it. Where name and label end in N, users give a number of steps: pgdN stands for pgd20.
    run: (model, x, labels, threat, *, generator=None) → adversarial images; that of pgdN takes steps=, too.
    rounds: the same in rounds, for AutoAttack to pack what is left into full batches after each.
    needs_gradients: of the model that is measured.
    parts: the attacks it runs one after the other; by default itself alone.
    continues: its rounds go on from what the round before found, so that nothing is lost between them.
    short: measured batch by batch; all others are run by AutoAttack.
    on_surrogate: it searches on another model, and what it finds is tried on the one that is measured.
    loss, steps: of PGD on a loss, where a longer one goes on from a shorter one.
    nearest: (model, x, labels, norm) → the nearest broken images and their distances, of an attack that looks for
        these; it is run on the model itself, and its distances are kept.
    calls: about how often it calls the model, for a bar that moves and for checks that cost no more than the attacks.
    """

    name: str
    label: str
    run: Callable[..., Tensor] | None = None
    rounds: Rounds | None = None
    needs_gradients: bool = True
    parts: tuple[str, ...] = ()
    continues: bool = False
    short: bool = False
    on_surrogate: bool = False
    loss: AttackLoss | None = None
    steps: int = 0
    calls: int = 0
    nearest: Callable[..., tuple[Tensor, Tensor]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", self.parts or (self.name,))
        object.__setattr__(self, "calls", self.calls or max(self.steps, 1))

    def rounds_for(self, classes: int) -> Sequence[Round]:
        """Return the rounds for so many classes; without any, the whole attack is one."""
        return self.rounds(classes) if self.rounds else [self._whole]

    def _whole(self, problem: Problem, best: Tensor) -> Tensor:
        assert self.run is not None
        return self.run(problem.model, problem.x, problem.labels, problem.threat, generator=problem.generator)


ATTACKS: dict[str, Attack] = {}


def register(attack: Attack) -> None:
    """Make an attack known by its name. Example: `register(Attack("noise", "noise", run=add_noise))`."""
    if attack.name in (*ATTACKS, *SETS, *_REPLACED):
        raise InputError(f"there is an attack {attack.name!r} already; choose another name")
    if not attack.run and (attack.short or (not attack.rounds and attack.parts == (attack.name,))):
        raise InputError(f"the attack {attack.name!r} has nothing to run; give run=, or else rounds= or parts=")
    ATTACKS[attack.name] = attack


def find_attack(name: str) -> Attack:
    """Return the attack of this name; an unknown one is an error. Example: `find_attack("pgd20").label`."""
    if attack := lookup(name):
        return attack
    replaced = f" ({_REPLACED[name]})" if name in _REPLACED else ""
    known = (*SETS, *ATTACKS)
    near = None if replaced else _meant(name)
    meant = f"; did you mean {near!r}?" if near else ""
    raise InputError(
        f"unknown attack {name!r}{replaced}; known: {', '.join(known)}, where N is a number of steps, as in pgd20"
        f"{meant}"
    )


def _meant(name: str) -> str | None:
    """Return what an unknown name may stand for: an attack in another spelling, one of so many steps, the nearest.

    Example: `_meant("PGD-20")` and `_meant("pgd")` are pgd20.
    """
    whole = [one for one in (*SETS, *ATTACKS) if not one.endswith("N")]
    numbered = {_plain(one.removesuffix("N")): f"{one.removesuffix('N')}20" for one in ATTACKS if one.endswith("N")}
    spelled = {_plain(one): one for one in whole}
    plain = _plain(name)
    if plain in spelled:
        return spelled[plain]
    if lookup(plain):
        return plain
    family = plain.rstrip("0123456789").removesuffix("n")
    return numbered.get(family) or nearest(name, [*whole, *numbered.values()])


def _plain(name: str) -> str:
    return re.sub("[-_ ]", "", name.lower())


def parse_attacks(names: str | Sequence[str]) -> tuple[str, ...]:
    """Read names of attacks from a list or `a,b,c`, each once; unknown ones are an error.

    Example: `parse_attacks("paper,square")`.
    """
    given = names.split(",") if isinstance(names, str) else names
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
        raise InputError(f"attacks = {names!r}; give names, as natural,pgd20")
    chosen = [part for name in given for part in SETS.get(name.strip(), (name.strip(),))]
    if not chosen:
        raise InputError("no attack is named; give natural for the accuracy without any")
    return tuple(dict.fromkeys(find_attack(name).name for name in chosen))


def gradient_free() -> tuple[str, ...]:
    """Return what can be done to a model that gives no gradients."""
    return tuple(name for name, attack in ATTACKS.items() if not attack.needs_gradients)


def attack_label(name: str) -> str:
    """Write an attack as the papers do: pgd20 is PGD-20. A name that is not known stays as it is.

    A part, autoattack:fab-t, is FAB-T of AutoAttack; a point of a security curve, pgd20@0.1, is PGD-20 at 0.1.
    Example: `attack_label("cw50")`.
    """
    attack, _, radius = name.partition("@")
    known = [(part, lookup(part)) for part in reversed(attack.split(":"))]
    labels = [attack.label if attack else _WORDS.get(part, part) for part, attack in known]
    return " of ".join(labels) + (f" at {radius}" if radius else "")


def lookup(name: str) -> Attack | None:
    """Return the attack of this name, with the number of steps that ends it put in; None for an unknown one."""
    if name in ATTACKS and not name.endswith("N"):
        return ATTACKS[name]
    numbered = re.fullmatch(r"(.*?)([1-9][0-9]{0,5})", name)
    family = ATTACKS.get(f"{numbered[1]}N") if numbered else None
    if numbered is None or family is None or family.run is None:
        return None
    label, steps = family.label.removesuffix("N") + numbered[2], int(numbered[2])
    run = partial(family.run, steps=steps)
    return replace(family, name=name, label=label, run=run, parts=(name,), steps=steps, calls=steps)


for _attack in (
    Attack(NATURAL, "natural", run=lambda model, x, *given, **options: x, needs_gradients=False, short=True),
    Attack("fgsm", "FGSM", run=fgsm, short=True),
    Attack("pgdN", "PGD-N", run=pgd, short=True, loss=cross_entropy),
    Attack("cw", "CW", run=cw, short=True, loss=margin, steps=CW_STEPS),
    Attack("cwN", "CW-N", run=cw, short=True, loss=margin),
    Attack(AUTOATTACK, "AutoAttack", parts=("apgd-ce", "apgd-t", "fab-t", "square")),
    Attack("apgd-ce", "APGD-CE", run=apgd_ce, calls=STEPS),
    Attack("apgd-t", "APGD-T", run=apgd_t, rounds=apgd_t_rounds, calls=TARGETS * STEPS),
    Attack("fab-t", "FAB-T", run=fab_t, rounds=fab_t_rounds, calls=2 * TARGETS * STEPS),
    Attack("square", "Square", run=square, rounds=square_rounds, needs_gradients=False, continues=True, calls=QUERIES),
    Attack(
        "square-paper",
        "Square (paper)",
        run=partial(square, paper=True),
        rounds=partial(square_rounds, paper=True),
        needs_gradients=False,
        continues=True,
        calls=QUERIES,
    ),
    Attack("fmn", "FMN", run=fmn, short=True, nearest=minimal, calls=FMN_STEPS),
    Attack("apgd-dlr", "APGD-DLR", run=apgd_dlr, calls=STEPS),
    Attack(STRONG, "strong", run=strong, rounds=strong_rounds, calls=STRONG_CALLS),
    Attack(TRANSFER, "transfer", parts=("apgd-ce", "apgd-t"), needs_gradients=False, on_surrogate=True),
    Attack(REPLICA, "replica", parts=("apgd-ce", "apgd-t"), needs_gradients=False, on_surrogate=True),
):
    register(_attack)
