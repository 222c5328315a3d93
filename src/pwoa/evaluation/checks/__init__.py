"""Defence checks: signs that the accuracy under attack is too high, and why.

After Carlini et al. 2019, "On evaluating adversarial robustness", and the flags of AutoAttack
(Croce & Hein 2020, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free attacks").
A finding is a warning, not a proof; no finding is no proof either.
"""

from pwoa.evaluation.checks.attacks import Attack, Tell, check_attacks, check_curve
from pwoa.evaluation.checks.behaviour import check_behaviour, check_modes
from pwoa.evaluation.checks.finding import IMAGES, Finding

__all__ = [
    "IMAGES",
    "Attack",
    "Finding",
    "Tell",
    "check_attacks",
    "check_behaviour",
    "check_curve",
    "check_modes",
]
