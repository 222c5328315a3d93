"""Attacks: pure functions (model, images, labels, threat, …) → adversarial images."""

from pwoa.attacks.apgd import apgd_ce, apgd_dlr, apgd_t
from pwoa.attacks.autoattack import ROBUST, State, Verdicts, autoattack
from pwoa.attacks.ball import distance, project, random_start
from pwoa.attacks.fab import fab_t, nearest_broken
from pwoa.attacks.gradient import cross_entropy, cw, fgsm, margin, pgd
from pwoa.attacks.problem import Problem
from pwoa.attacks.registry import ATTACKS, NATURAL, Attack, attack_label, find_attack, parse_attacks, register
from pwoa.attacks.square import square

__all__ = [
    "ATTACKS",
    "NATURAL",
    "ROBUST",
    "Attack",
    "Problem",
    "State",
    "Verdicts",
    "apgd_ce",
    "apgd_dlr",
    "apgd_t",
    "attack_label",
    "autoattack",
    "cross_entropy",
    "cw",
    "distance",
    "fab_t",
    "fgsm",
    "find_attack",
    "margin",
    "nearest_broken",
    "parse_attacks",
    "pgd",
    "project",
    "random_start",
    "register",
    "square",
]
