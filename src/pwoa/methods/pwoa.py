"""PwoA: pruning without adversarial examples (Jian et al. 2022).

Two stages on natural examples. `search` minimises L = λ L_D + L_H (+ λ_ce L_CE) by ADMM under the sparsity
constraint; `finetune` fixes the masks it found and goes on with L. With λ = λx = λy = 0 and λ_ce = 1 it is the
naive pruning that the paper compares with.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from torch import nn

from pwoa.methods.masked import MaskedStage
from pwoa.methods.mixing import Mixer
from pwoa.methods.objective import Objective, Weights
from pwoa.methods.teacher import teacher_logits
from pwoa.recipe import Recipe, SearchRecipe
from pwoa.sparsity import Admm, Masks, allocate, prunable
from pwoa.training import Batch, Loss, Material, Stage


class Pwoa:
    """The stages that prune `student`, a copy of `teacher`."""

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        self.example_free = not recipe.training.mix
        weights = prunable(student)
        kept = allocate(weights, recipe.sparsity)
        pattern = recipe.sparsity.pattern
        search = recipe.search
        said = None
        if recipe.objective.distillation:
            fast = recipe.training.mode == "fast"
            said = teacher_logits(teacher, material, fast=fast, moving=not self.example_free)
        mixer = Mixer(student, material, recipe)
        objective = Objective(student, said, material, recipe.objective, recipe.training.group, mixer)
        admm = Admm(weights, kept, pattern, search.rho, search.rho_growth, search.rho_limit)
        self.stages: list[Stage] = [
            Search(objective, admm, search),
            Finetune(
                objective,
                Masks(weights, kept, pattern),
                recipe.finetune.epochs,
                recipe.finetune.learning_rate,
            ),
        ]


class Search(Stage):
    """ADMM: SGD on the objective with the proximal term; every few epochs a projection and a dual step."""

    name = "search"

    def __init__(self, objective: Objective, admm: Admm, recipe: SearchRecipe) -> None:
        self.epochs = recipe.epochs
        self.learning_rate = recipe.learning_rate
        self._objective = objective
        self._admm = admm
        self._interval = recipe.interval

    def running(self) -> AbstractContextManager[None]:
        return self._objective.watching()

    def before_epoch(self, epoch: int) -> None:
        if epoch and epoch % self._interval == 0:
            self._admm.update()

    def constants(self) -> object:
        return self._objective.weights, self._admm.rho

    def loss(self, batch: Batch) -> Loss:
        # The proximal term's gradient is added in closed form, so only its value joins the loss.
        loss = self._objective(batch)
        penalty = self._admm.penalty()
        return Loss(loss.total + penalty, {**loss.parts, "admm": penalty}, loss.logits)

    def after_backward(self) -> None:
        self._admm.add_gradient()

    def after_epoch(self, epoch: int, validation: Mapping[str, float]) -> Mapping[str, Any]:
        if epoch or not self._objective.balancing:
            return {}
        self._objective.balance(validation)
        return {"weights": asdict(self._objective.weights)}

    def state_dict(self) -> dict[str, Any]:
        return {"admm": self._admm.state_dict(), "weights": asdict(self._objective.weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._admm.load_state_dict(state["admm"])
        self._objective.weights = Weights(**state["weights"])


class Finetune(MaskedStage):
    """The objective alone, on the weights that the masks keep."""

    def __init__(self, objective: Objective, masks: Masks, epochs: int, learning_rate: float) -> None:
        super().__init__(objective, masks, epochs, learning_rate)
        self._objective = objective

    def running(self) -> AbstractContextManager[None]:
        return self._objective.watching()

    def begin(self) -> None:
        self._masks.choose()
