"""Attacks: pure functions (model, images, labels, threat, …) → adversarial images."""

from pwoa.attacks.ball import project, random_start
from pwoa.attacks.gradient import cross_entropy, fgsm, margin, pgd

__all__ = ["cross_entropy", "fgsm", "margin", "pgd", "project", "random_start"]
