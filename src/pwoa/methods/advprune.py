"""Pruning with cross-entropy alone: AdvPrune by ADMM, and one-shot magnitude pruning.

AdvPrune (Ye et al. 2019, "Adversarial robustness vs. model compression, or both?"): ADMM pruning with cross-entropy on
adversarial examples, then masked adversarial fine-tuning. The published method has the mix ratio 1; at 0 it is naive
pruning. Magnitude pruning with fine-tuning is the plain baseline (Han et al. 2015, in one step).
"""

import dataclasses
from typing import ClassVar

from torch import nn

from pwoa.methods.method import PruningMethod
from pwoa.methods.pruning import MaskedStage, mixed_classification
from pwoa.methods.pwoa import Pwoa
from pwoa.recipe import Recipe
from pwoa.sparsity import Masks
from pwoa.training import Material


class AdvPrune(Pwoa):
    """The stages of PwoA with cross-entropy as the only term."""

    name = "advprune"
    uses: ClassVar[tuple[str, ...]] = ("search.", "finetune.")

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        alone = dataclasses.replace(
            recipe.objective, distillation=0.0, hsic_x=0.0, hsic_y=0.0, classification=1.0, hidden=0.0, balance="given"
        )
        super().__init__(student, teacher, material, dataclasses.replace(recipe, objective=alone))


class Magnitude(PruningMethod):
    """The weights that are smallest in the teacher go at once; the others are trained with cross-entropy."""

    name = "magnitude"
    uses = ("finetune.",)

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(student, teacher, material, recipe)
        loss, finetune = mixed_classification(student, material, recipe), recipe.finetune
        self.stages = [MaskedStage(loss, Masks(self.constraint), finetune.epochs, finetune.learning_rate)]

    @classmethod
    def stage_epochs(cls, recipe: Recipe) -> tuple[int, ...]:
        return (recipe.finetune.epochs,)
