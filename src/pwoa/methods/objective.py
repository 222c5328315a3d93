"""PwoA's objective L = λ L_D + L_H (+ λ_ce L_CE) on batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.models import as_logits, hidden_points, recording
from pwoa.objectives import GROUP, bottleneck, classification, distillation
from pwoa.recipe import ObjectiveRecipe
from pwoa.training import Batch, Loss, Material


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
            found = bottleneck(batch.x, batch.y, layers, self._recipe.hsic == "normalised", self._group)
            parts["hsic_x"], parts["hsic_y"] = found.x.sum(), found.y.sum()
            total = total + weights.hsic_x * parts["hsic_x"] - weights.hsic_y * parts["hsic_y"]
        if weights.classification:
            parts["classification"] = classification(logits.float(), batch.y)
            total = total + weights.classification * parts["classification"]
        return Loss(total, parts, logits)

    def balance(self, parts: Mapping[str, float]) -> None:
        """The paper's rule (Appendix B): L_ADMM = 10 λ L_D and λ L_D = 10 |L_H|, with λx : λy as given."""
        old = self.weights
        scaled = parts["admm"] / 10  # λ L_D
        if not scaled or not parts["distillation"]:
            raise InputError("objective.balance = 'auto': L_ADMM or L_D is 0 after the first epoch; give λ yourself")
        regulariser = abs(old.hsic_x * parts.get("hsic_x", 0) - old.hsic_y * parts.get("hsic_y", 0))
        factor = scaled / 10 / regulariser if regulariser else 1.0
        self.weights = Weights(
            scaled / parts["distillation"], old.hsic_x * factor, old.hsic_y * factor, old.classification
        )
