"""PwoA: pruning without adversarial examples (Jian et al. 2022), and what goes beyond the paper.

Two stages on natural examples. `search` minimises L = λ L_D + L_H (+ λ_ce L_CE) by ADMM under the sparsity
constraint; `finetune` fixes the masks it found and goes on with L. With λ = λx = λy = 0 and λ_ce = 1 it is the
naive pruning that the paper compares with.

Beyond the paper, and off in its presets: the hidden layers are matched with the teacher's (`objective.hidden`), the
constraint tightens gradually (`search.start_rate`), a stage before the search learns how the layers share the budget
(`sparsity.allocation = "learned"`), and low rates take fewer epochs (`search.full_rate`).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.methods.method import PruningMethod
from pwoa.methods.pace import paced
from pwoa.methods.pruning import CHUNK, Asked, MaskedStage, Mixer, teacher_hidden, teacher_logits
from pwoa.methods.shares import Shares
from pwoa.models.border import as_logits
from pwoa.models.hidden import hidden_points, recording
from pwoa.objectives.hsic import bottleneck
from pwoa.objectives.terms import classification, distillation, matching, mean_squares
from pwoa.recipe.sections import ObjectiveRecipe, Recipe, SearchRecipe, TrainingRecipe
from pwoa.sparsity import Admm, Constraint, Masks
from pwoa.sparsity.allocation import LEARNED
from pwoa.training.refit import refit
from pwoa.training.stage import Batch, Loss, Material, Stage

TIGHTENING = 0.8
"""The share of the search in which a constraint tightens that does so."""


@dataclass(frozen=True)
class Weights:
    """λ, λx, λy and λ_ce, and the weight of matching hidden layers."""

    distillation: float
    hsic_x: float
    hsic_y: float
    classification: float
    hidden: float = 0.0


class Objective:
    """λ L_D + λx Σ HSIC(X, Z_l) − λy Σ HSIC(Y, Z_l) + λ_ce L_CE, and the distance of the Z_l from the teacher's.

    Terms of weight 0 are not computed; without distillation and hidden layers the teacher is not asked.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        material: Material,
        recipe: ObjectiveRecipe,
        training: TrainingRecipe,
        mixer: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> None:
        self._mixer = mixer
        self._group, self._batch = training.group, training.batch
        self.weights = Weights(recipe.distillation, recipe.hsic_x, recipe.hsic_y, recipe.classification, recipe.hidden)
        if not any(asdict(self.weights).values()):
            raise InputError("all weights of the objective are 0; there is nothing to minimise")
        self.balancing = recipe.balance == "auto"
        if self.balancing and not recipe.distillation:
            raise InputError("objective.balance = 'auto' needs the distillation term (objective.distillation > 0)")
        self._student = student
        self._logits = as_logits(student, material.classes)
        self._recipe = recipe
        self._points: tuple[str, ...] = ()
        self._hidden: dict[str, Tensor] = {}
        if recipe.hsic_x or recipe.hsic_y or recipe.hidden:
            example, _ = material.images.batch(material.validation[:2])
            self._points = hidden_points(student, example, recipe.points)
            if not self._points:
                raise InputError(
                    "the model has no hidden layer to compare; set objective.hsic_x, objective.hsic_y and "
                    "objective.hidden to 0"
                )
        self._ask = self._asking(teacher, material, fast=training.mode == "fast", moving=bool(training.mix))

    def _asking(self, teacher: nn.Module, material: Material, *, fast: bool, moving: bool) -> Asked | None:
        """Return what asks the teacher about a batch: for its logits, and for its hidden layers where they count."""
        if self.weights.hidden:
            look = teacher_hidden(teacher, material, self._points, fast=fast)
            self._scales = self._scales_of(look, material)
            return look
        if self.weights.distillation:
            logits = teacher_logits(teacher, material, fast=fast, moving=moving)
            return lambda batch: (logits(batch), [])
        return None

    def _scales_of(self, look: Asked, material: Material) -> list[Tensor]:
        """Return what differences in hidden layers are relative to, from some images, a batch of them at a time."""
        index = material.validation[:CHUNK]
        scales: list[Tensor] = []
        for part in torch.split(index, self._batch):
            layers = look(Batch(*material.images.batch(part), part))[1]
            own = mean_squares(layers, self._recipe.hidden_scale == "channel")
            weighted = [len(part) / len(index) * scale for scale in own]
            scales = [a + b for a, b in zip(scales, weighted, strict=True)] if scales else weighted
        return scales

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
        goal, goals = self._ask(batch) if self._ask else (logits, [])
        if weights.distillation:
            parts["distillation"] = distillation(logits.float(), goal.float(), self._recipe.temperature)
            total = total + weights.distillation * parts["distillation"]
        layers = [self._hidden.pop(point) for point in self._points]
        if weights.hidden:
            parts["hidden"] = matching(layers, goals, self._scales)
            total = total + weights.hidden * parts["hidden"]
        if weights.hsic_x or weights.hsic_y:
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
        self.weights = replace(
            old, distillation=scaled / parts["distillation"], hsic_x=old.hsic_x * factor, hsic_y=old.hsic_y * factor
        )


class Pwoa(PruningMethod):
    """ADMM on the objective, then masked fine-tuning; before them the allocation, where it is learned."""

    name = "pwoa"
    uses: ClassVar[tuple[str, ...]] = ("objective.", "search.", "finetune.")

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(student, teacher, material, recipe)
        if recipe.search.refit:
            refit(student, material, recipe.training.group, recipe.training.seed)
        mixer = Mixer(student, material, recipe)
        objective = Objective(student, teacher, material, recipe.objective, recipe.training, mixer)
        shares = None
        if self.learns_allocation(recipe):
            shares = Shares(student, objective, objective.watching, recipe, material.example())
        constraint = shares.constraint if shares else self.constraint
        search = Search(objective, constraint, recipe.search, shares)
        finetune = Finetune(objective, search, recipe.finetune.epochs, recipe.finetune.learning_rate)
        self.stages = [*([shares] if shares else []), search, finetune]

    @classmethod
    def learns_allocation(cls, recipe: Recipe) -> bool:
        return recipe.sparsity.allocation == LEARNED

    @classmethod
    def complete(cls, recipe: Recipe) -> Recipe:
        if cls.learns_allocation(recipe) and recipe.training.optimizer != "sgd":
            raise InputError(f"sparsity.allocation = {LEARNED} needs training.optimizer = sgd; or take lamp")
        return paced(super().complete(recipe))

    @classmethod
    def stage_epochs(cls, recipe: Recipe) -> tuple[int, ...]:
        first = (recipe.search.allocation_epochs,) if cls.learns_allocation(recipe) else ()
        return *first, recipe.search.epochs, recipe.finetune.epochs


class Search(Stage):
    """ADMM: SGD on the objective with the proximal term; every few epochs a projection and a dual step."""

    name = "search"

    def __init__(
        self, objective: Objective, constraint: Constraint, recipe: SearchRecipe, shares: Shares | None = None
    ) -> None:
        self.epochs = recipe.epochs
        self.learning_rate = recipe.learning_rate
        self._objective, self._recipe, self._shares = objective, recipe, shares
        self._take(constraint)

    def _take(self, constraint: Constraint) -> None:
        recipe, self.constraint = self._recipe, constraint
        self._admm = Admm(self._constraint_at(0), recipe.rho, recipe.rho_growth, recipe.rho_limit)

    def begin(self) -> None:
        if self._shares:
            self._shares.leave()
            self._take(self._shares.constraint)

    def _constraint_at(self, epoch: float) -> Constraint:
        """Return the constraint after so many epochs: the whole one, or a part of it where it tightens gradually."""
        start, tightening = self._recipe.start_rate, TIGHTENING * self.epochs
        return self.constraint.on_the_way(start, epoch / tightening) if start else self.constraint

    def running(self) -> AbstractContextManager[None]:
        return self._objective.watching()

    def before_step(self, step: int, steps: int) -> None:
        period, whole = self._recipe.interval * steps, math.ceil(TIGHTENING * self.epochs * steps)
        last = (self.epochs * steps - 1) // period * period
        late = self._recipe.start_rate and last < whole  # no update would come after the constraint is the whole one
        if (step and step // period > (step - 1) // period) or (late and step == whole):
            self._admm.update(self._constraint_at(step / steps))

    def constants(self) -> object:
        return self._objective.weights

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
        kept = {"kept": dict(self.constraint.kept)} if self._shares else {}
        return {**kept, "admm": self._admm.state_dict(), "weights": asdict(self._objective.weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._shares:
            self.constraint = self.constraint.with_kept(state["kept"])
        self._admm.load_state_dict(state["admm"])
        self._objective.weights = Weights(**state["weights"])


class Finetune(MaskedStage):
    """The objective alone, on the weights that the masks keep."""

    def __init__(self, objective: Objective, search: Search, epochs: int, learning_rate: float) -> None:
        super().__init__(objective, Masks(search.constraint), epochs, learning_rate)
        self._objective, self._search = objective, search

    def begin(self) -> None:
        self._masks.constraint = self._search.constraint  # which may be learned by now
        super().begin()

    def running(self) -> AbstractContextManager[None]:
        return self._objective.watching()
