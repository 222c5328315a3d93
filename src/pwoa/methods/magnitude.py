"""One-shot magnitude pruning with fine-tuning: the plain baseline (Han et al. 2015, in one step)."""

from __future__ import annotations

from torch import nn

from pwoa.methods.advprune import AdvPrune
from pwoa.recipe import Recipe
from pwoa.training import Material


class Magnitude(AdvPrune):
    """The weights that are smallest in the teacher go at once; the others are trained with cross-entropy."""

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(student, teacher, material, recipe)
        self.stages = self.stages[-1:]
