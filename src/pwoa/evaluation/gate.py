"""The gate: before any pruning, is the teacher robust at all? Stands outside the example-free part of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from pwoa.data import Images
from pwoa.errors import InputError
from pwoa.evaluation.robustness import robustness
from pwoa.recipe import Recipe
from pwoa.words import counted

IMAGES = 500
ATTACK = "pgd10"


def check_teacher(
    teacher: nn.Module, validation: Images, recipe: Recipe, force: bool = False, classes: int | None = None
) -> dict[str, Any]:
    """Natural and short-PGD accuracy on validation images; an error below `teacher.minimum`, unless forced."""
    images = validation.first(IMAGES)
    threat = dataclasses.replace(recipe.threat, step=recipe.threat.radius / 4)  # ten steps must cross the ball
    scores = robustness(teacher, images, threat, ("natural", ATTACK), classes=classes, seed=recipe.training.seed)
    minimum = recipe.teacher.minimum
    if scores[ATTACK] < minimum and not force:
        raise InputError(
            f"the teacher is not robust: {scores[ATTACK]:.1f} % under PGD-10 at {threat.norm} {threat.radius:.4g} "
            f"(natural {scores['natural']:.1f} %, {counted(len(images), 'validation image')}), and teacher.minimum is "
            f"{minimum:g} %; give a robust model, check its preprocessing, or use --force (in Python: force=True)"
        )
    return {**scores.accuracy, "images": len(images)}
