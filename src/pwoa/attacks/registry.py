"""Attacks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from pwoa.attacks.apgd import apgd_ce, apgd_dlr, apgd_t, apgd_t_rounds
from pwoa.attacks.fab import fab_t, fab_t_rounds
from pwoa.attacks.gradient import cw, fgsm, pgd
from pwoa.attacks.problem import Rounds
from pwoa.attacks.square import square, square_rounds
from pwoa.errors import InputError, did_you_mean

ATTACKS: dict[str, Callable[..., Tensor]] = {
    "apgd-ce": apgd_ce,
    "apgd-dlr": apgd_dlr,
    "apgd-t": apgd_t,
    "fab-t": fab_t,
    "square": square,
    "square-paper": partial(square, paper=True),
    "fgsm": fgsm,
    "pgd": pgd,
    "cw": cw,
}
"""Name → function (model, x, labels, threat, *, generator=None) → adversarial images."""

ROUNDS: dict[str, Rounds] = {
    "apgd-t": apgd_t_rounds,
    "fab-t": fab_t_rounds,
    "square": square_rounds,
    "square-paper": partial(square_rounds, paper=True),
}
"""The attacks that can be done in rounds; the others are one round."""

CONTINUED = ("square", "square-paper")
"""The attacks whose rounds go on from what the round before found, so that nothing is lost between them."""

STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")
"""AutoAttack `standard`, in its order."""


def check_names(attacks: str | Sequence[str]) -> tuple[str, ...]:
    """The attacks of a list, or of `standard`; an unknown name is an error."""
    given = attacks.split(",") if isinstance(attacks, str) else attacks
    names: list[str] = []
    for name in given:
        name = name.strip()
        if name != "standard" and name not in ATTACKS:
            raise InputError(f"unknown attack {name!r} ({did_you_mean(name, ['standard', *ATTACKS])})")
        names += STANDARD if name == "standard" else [name]
    return tuple(dict.fromkeys(names))
