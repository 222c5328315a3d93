"""Attacks: pure functions (model, images, labels, threat, …) → adversarial images."""

from pwoa.attacks.apgd import apgd_ce, apgd_dlr, apgd_t
from pwoa.attacks.autoattack import NATURAL, ROBUST, State, Verdicts, autoattack
from pwoa.attacks.ball import distance, project, random_start
from pwoa.attacks.fab import fab_t, nearest_broken
from pwoa.attacks.gradient import cross_entropy, cw, fgsm, margin, pgd
from pwoa.attacks.registry import ATTACKS, STANDARD
from pwoa.attacks.square import square

__all__ = [
    "ATTACKS",
    "NATURAL",
    "ROBUST",
    "STANDARD",
    "State",
    "Verdicts",
    "apgd_ce",
    "apgd_dlr",
    "apgd_t",
    "autoattack",
    "cross_entropy",
    "cw",
    "distance",
    "fab_t",
    "fgsm",
    "margin",
    "nearest_broken",
    "pgd",
    "project",
    "random_start",
    "square",
]
