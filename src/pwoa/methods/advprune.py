"""AdvPrune (Ye et al. 2019, "Adversarial robustness vs. model compression, or both?").

ADMM pruning with cross-entropy on adversarial examples, then masked adversarial fine-tuning. The published method has
the mix ratio 1; at 0 it is naive pruning.
"""

from __future__ import annotations

import dataclasses

from torch import nn

from pwoa.methods.pwoa import Pwoa
from pwoa.recipe import Recipe
from pwoa.training import Material


class AdvPrune(Pwoa):
    """The two stages of PwoA with cross-entropy as the only term."""

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        alone = dataclasses.replace(
            recipe.objective, distillation=0.0, hsic_x=0.0, hsic_y=0.0, classification=1.0, balance="given"
        )
        super().__init__(student, teacher, material, dataclasses.replace(recipe, objective=alone))
