"""PwoA: pruning without adversarial examples (Jian et al. 2022).

Two stages on natural examples. `search` minimises L = λ L_D + L_H (+ λ_ce L_CE) by ADMM under the sparsity
constraint; `finetune` fixes the masks it found and goes on with L. With λ = λx = λy = 0 and λ_ce = 1 it is the
naive pruning that the paper compares with.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.methods.method import PruningMethod
from pwoa.methods.pruning import MaskedStage, Mixer, teacher_logits
from pwoa.models.border import as_logits
from pwoa.models.hidden import hidden_points, recording
from pwoa.objectives.hsic import GROUP, bottleneck
from pwoa.objectives.terms import classification, distillation
from pwoa.recipe.sections import ObjectiveRecipe, Recipe, SearchRecipe
from pwoa.sparsity import Admm, Constraint, Masks
from pwoa.training.stage import Batch, Loss, Material, Stage


@dataclass(frozen=True)
class Weights:
    """λ, λx, λy and λ_ce."""

    distillation: float
    hsic_x: float
    hsic_y: float
    classification: float


class Objective:
    """λ L_D + λx Σ HSIC(X, Z_l) − λy Σ HSIC(Y, Z_l) + λ_ce L_CE; terms of weight 0 are not computed.

    With λ = 0 no teacher is needed.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: Callable[[Batch], Tensor] | None,
        material: Material,
        recipe: ObjectiveRecipe,
        group: int = GROUP,
        mixer: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> None:
        self._mixer = mixer
        self._group = group
        self.weights = Weights(recipe.distillation, recipe.hsic_x, recipe.hsic_y, recipe.classification)
        if not any(asdict(self.weights).values()):
            raise InputError("all weights of the objective are 0; there is nothing to minimise")
        self.balancing = recipe.balance == "auto"
        if self.balancing and not recipe.distillation:
            raise InputError("objective.balance = 'auto' needs the distillation term (objective.distillation > 0)")
        self._student = student
        self._logits = as_logits(student, material.classes)
        self._teacher = teacher
        self._recipe = recipe
        self._points: tuple[str, ...] = ()
        self._hidden: dict[str, Tensor] = {}
        if recipe.hsic_x or recipe.hsic_y:
            example, _ = material.images.batch(material.validation[:2])
            self._points = hidden_points(student, example, recipe.points)
            if not self._points:
                raise InputError(
                    "the model has no hidden layer to take HSIC of; set objective.hsic_x and objective.hsic_y to 0"
                )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While inside, forward passes of the student leave their hidden activations here.

        Once for all passes: a compiled student has its hooks built in.
        """
        with recording(self._student, self._points) as self._hidden:
            yield

    def __call__(self, batch: Batch) -> Loss:
        weights = self.weights
        batch = self._mixer(batch)
        logits = self._logits(batch.x)
        parts: dict[str, Tensor] = {}
        total = logits.new_zeros((), dtype=torch.float32)
        if weights.distillation and self._teacher:
            parts["distillation"] = distillation(logits.float(), self._teacher(batch).float(), self._recipe.temperature)
            total = total + weights.distillation * parts["distillation"]
        if self._points:
            layers = [self._hidden.pop(point) for point in self._points]
            dependence = bottleneck(batch.x, batch.y, layers, self._recipe.hsic == "normalised", self._group)
            parts["hsic_x"], parts["hsic_y"] = dependence.x.sum(), dependence.y.sum()
            total = total + weights.hsic_x * parts["hsic_x"] - weights.hsic_y * parts["hsic_y"]
        if weights.classification:
            parts["classification"] = classification(logits.float(), batch.y)
            total = total + weights.classification * parts["classification"]
        return Loss(total, parts, logits)

    def balance(self, parts: Mapping[str, float]) -> None:
        """Set λ by the paper's rule (Appendix B): L_ADMM = 10 λ L_D and λ L_D = 10 |L_H|, with λx : λy as given."""
        old = self.weights
        scaled = parts["admm"] / 10  # λ L_D
        if not scaled or not parts["distillation"]:
            raise InputError("objective.balance = 'auto': L_ADMM or L_D is 0 after the first epoch; give λ yourself")
        regulariser = abs(old.hsic_x * parts.get("hsic_x", 0) - old.hsic_y * parts.get("hsic_y", 0))
        factor = scaled / 10 / regulariser if regulariser else 1.0
        self.weights = Weights(
            scaled / parts["distillation"], old.hsic_x * factor, old.hsic_y * factor, old.classification
        )


class Pwoa(PruningMethod):
    """ADMM on the objective, then masked fine-tuning."""

    name = "pwoa"
    uses: ClassVar[tuple[str, ...]] = ("objective.", "search.", "finetune.")

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(student, teacher, material, recipe)
        constraint = Constraint.of(student, recipe.sparsity)
        search = recipe.search
        teacher_says = None
        if recipe.objective.distillation:
            fast = recipe.training.mode == "fast"
            teacher_says = teacher_logits(teacher, material, fast=fast, moving=not self.example_free)
        mixer = Mixer(student, material, recipe)
        objective = Objective(student, teacher_says, material, recipe.objective, recipe.training.group, mixer)
        admm = Admm(constraint, search.rho, search.rho_growth, search.rho_limit)
        finetune = Finetune(objective, Masks(constraint), recipe.finetune.epochs, recipe.finetune.learning_rate)
        self.stages = [Search(objective, admm, search), finetune]


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
