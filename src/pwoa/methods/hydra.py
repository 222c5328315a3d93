"""HYDRA (Sehwag et al. 2020, "HYDRA: pruning adversarially robust neural networks").

Stage one learns which weights to keep: each has a score, the largest of a layer stay, and the gradient of the mask is
taken for that of the score (straight through). Weights do not change, but those of batch normalisation do, as in the
released code. Stage two trains the weights that are kept.
With training.mix = 1, the published setting, the loss is that of TRADES, CE(f(x), y) + β KL(f(x) ‖ f(x_adv)). With
less, the second term is over that fraction of the images, and 0 for the others.
Published: 20 epochs at 0.1 for the scores (`search`), 100 at 0.01 for the weights (`finetune`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pwoa.methods.adversarial import Trades
from pwoa.methods.method import PruningMethod
from pwoa.methods.pruning import MaskedStage, Mixer, mixed_classification
from pwoa.recipe import Recipe
from pwoa.sparsity import Constraint, Masks
from pwoa.training.stage import Batch, Loss, Material, Stage


class Hydra(PruningMethod):
    """Scores, then weights."""

    name = "hydra"
    uses: ClassVar[tuple[str, ...]] = (
        *("search.epochs", "search.learning_rate", "finetune."),
        *("pretrain.beta", "pretrain.step"),  # of TRADES, which has `step` and `steps`
    )

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(student, teacher, material, recipe)
        loss = mixed_loss(student, material, recipe)
        scoring = Scoring(student, loss, self.constraint, recipe.search.epochs, recipe.search.learning_rate)
        self.stages = [scoring, Tuning(loss, scoring, Masks(self.constraint), recipe)]

    @classmethod
    def hints(cls, recipe: Recipe) -> list[str]:
        """Warn that scores, which are trained instead of weights, have learning rates for SGD."""
        name, hints = cls.name, super().hints(recipe)
        if recipe.training.optimizer == "adam":
            hints.append(f"the scores of {name} are meant for SGD; the presets mnist-{name} and cifar10-{name} have it")
        return hints


class Scoring(Stage):
    """Learns scores s while the model computes with w ∘ M(s), M(s) the mask of the largest |s|."""

    name, section = "scores", "search"

    def __init__(
        self,
        student: nn.Module,
        loss: Callable[[Batch], Loss],
        constraint: Constraint,
        epochs: int,
        learning_rate: float,
    ) -> None:
        self.epochs, self.learning_rate = epochs, learning_rate
        self._loss = loss
        self._constraint, self._weights = constraint, dict(constraint.weights)
        self._dense = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._scores = {name: nn.Parameter(first_scores(weight)) for name, weight in self._dense.items()}
        norms = [module for module in student.modules() if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))]
        self._norms = [each for norm in norms for each in norm.parameters() if each.requires_grad]
        trained = set(map(id, self._norms))
        self._frozen = [each for each in student.parameters() if id(each) not in trained]

    def parameters(self) -> Iterable[nn.Parameter]:
        return [*self._scores.values(), *self._norms]

    @contextmanager
    def running(self) -> Iterator[None]:
        self.apply(self.masks())
        yield

    def loss(self, batch: Batch) -> Loss:
        return self._loss(batch)

    @torch.no_grad()
    def after_backward(self) -> None:
        self.pass_on({name: self._mask_gradient(name, weight.grad) for name, weight in self._weights.items()})
        for parameter in self._frozen:
            parameter.grad = None

    def pass_on(self, gradients: Mapping[str, Tensor]) -> None:
        """Give the gradients of the masks to what is learned."""
        for name, gradient in gradients.items():
            self._scores[name].grad = gradient * self._scores[name].sign()

    def after_step(self) -> None:
        self.apply(self.masks())

    @torch.no_grad()
    def apply(self, masks: Mapping[str, Tensor]) -> None:
        """Give the model the weights that masks keep."""
        for name, weight in self._weights.items():
            weight.copy_(self._dense[name] * masks[name])

    def masks(self) -> dict[str, Tensor]:
        """Return which weights the scores keep."""
        return {name: self._constraint.mask(name, score) for name, score in self._scores.items()}

    def final_masks(self) -> dict[str, Tensor]:
        """Return the masks that the weights are trained with when the scores are learned: of exactly the budget."""
        return self.masks()

    def _mask_gradient(self, name: str, gradient: Tensor | None) -> Tensor:
        """Return ∂L/∂M = w ∂L/∂(w ∘ M); 0 for a layer that the forward pass does not use."""
        dense = self._dense[name]
        return torch.zeros_like(dense) if gradient is None else gradient * dense

    def state_dict(self) -> dict[str, Any]:
        return {"scores": {name: score.detach() for name, score in self._scores.items()}, "dense": self._dense}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, score in self._scores.items():
            score.copy_(state["scores"][name])
            self._dense[name].copy_(state["dense"][name])


class Tuning(MaskedStage):
    """Trains the weights that the scores kept."""

    def __init__(self, loss: Callable[[Batch], Loss], scoring: Scoring, masks: Masks, recipe: Recipe) -> None:
        super().__init__(loss, masks, recipe.finetune.epochs, recipe.finetune.learning_rate)
        self._scoring = scoring

    def begin(self) -> None:
        masks = self._scoring.final_masks()
        self._scoring.apply(masks)
        for name, mask in masks.items():
            self._masks.masks[name].copy_(mask)


def first_scores(weight: Tensor) -> Tensor:
    """Return √(6 / fan-in) · w / max |w|: at first the largest weights stay; all scores of a layer of zeros are 0."""
    return math.sqrt(6 / weight[0].numel()) * weight / weight.abs().max().clamp_min(torch.finfo(weight.dtype).tiny)


def mixed_loss(student: nn.Module, material: Material, recipe: Recipe) -> Callable[[Batch], Loss]:
    """Return the loss of TRADES with the divergence of training.mix of the images; cross-entropy where that is 0."""
    if not recipe.training.mix:
        return mixed_classification(student, material, recipe)
    trades, mixer = Trades(student, material, recipe), Mixer(student, material, recipe)

    def loss(batch: Batch) -> Loss:
        if recipe.training.mix == 1:
            return trades.robust_loss(batch, trades.threat)
        return trades.partial_loss(batch, trades.threat, mixer.choose(batch))

    return loss
