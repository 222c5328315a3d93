"""HARP (Zhao and Wressnegger 2023, "Holistic adversarially robust pruning").

As in HYDRA, stage one learns a score for each weight; here it also learns how many weights each layer keeps. A layer
keeps the fraction a_l = a_min + (1 − a_min) σ(r_l) of its weights, those with the largest scores, and

    L = CE(mixed batch) + γ max(kept / budget − 1, 0)

is minimised over scores and r, with gradients straight through the mask: ∂L/∂a_l = Σ ∂L/∂M_i. γ grows by `harp.gamma`
each epoch, and stays as it is once the budget is met; in a search of other than the published 20 epochs the steps are
such that it ends where it would after 20. Stage two trains the weights that are kept.

The layers' shares are learned, so sparsity.allocation does not matter; in the end they are scaled to sum up to the
budget exactly, where the published method stops at or below it. At first every layer keeps 1/√rate: the 10 % from
which the released code starts for 1 %. Published: the mix ratio 1; 20 epochs at 0.1, then 100.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.methods.hydra import Hydra, Scoring, Tuning
from pwoa.methods.method import PruningMethod
from pwoa.methods.pruning import mixed_classification
from pwoa.recipe import Recipe, SparsityRecipe
from pwoa.recipe.methods import HarpSettings
from pwoa.sparsity import Constraint, Masks, affordable, budget, select, shared_out, sizes
from pwoa.sparsity.allocation import ONE_EACH, Costs, cost
from pwoa.sparsity.patterns import unstructured
from pwoa.training.stage import Batch, Loss, Material

PUBLISHED_EPOCHS = 20
MET = 5e-5
"""A penalty below this counts as none."""


class Harp(Hydra):
    """Scores and layers' shares, then weights."""

    name, settings = "harp", HarpSettings
    uses = ("search.epochs", "search.learning_rate", "finetune.")
    ignores = ("sparsity.allocation", "sparsity.budget")

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        PruningMethod.__init__(self, student, teacher, material, recipe)
        if recipe.sparsity.budget != "weights":
            raise InputError(f"{self.name} learns its shares of a budget of weights; set sparsity.budget to weights")
        loss = mixed_classification(student, material, recipe)
        settings, search = recipe.own_settings(HarpSettings), recipe.search
        scoring = ShareScoring(student, loss, recipe.sparsity, search.epochs, search.learning_rate, settings)
        self.stages = [scoring, Tuning(loss, scoring, Masks(scoring.constraint), recipe)]

    @classmethod
    def hints(cls, recipe: Recipe) -> list[str]:
        allocation = f"{cls.name} learns how many weights each layer keeps; sparsity.allocation is not used"
        return super().hints(recipe) + ([allocation] if recipe.sparsity.allocation != "uniform" else [])


class ShareScoring(Scoring):
    """Learns scores, and the share of its weights that each layer keeps.

    units: what the budget counts of a weight of each layer, if it is not 1. first: the shares at first, if they are not
    the same in every layer.
    """

    def __init__(
        self,
        student: nn.Module,
        loss: Callable[[Batch], Loss],
        sparsity: SparsityRecipe,
        epochs: int,
        learning_rate: float,
        settings: HarpSettings,
        units: Costs = ONE_EACH,
        first: Mapping[str, float] | None = None,
    ) -> None:
        chosen = select(student, sparsity)
        numbers, self._units = sizes(chosen.weights), units
        self._budget = budget(chosen.weights, sparsity.rate, units)
        least = affordable(chosen.least, self._budget, units)
        kept = shared_out(numbers, numbers, self._budget, least, units)
        constraint = Constraint(chosen.weights, kept, sparsity.pattern, least)
        super().__init__(student, loss, constraint, epochs, learning_rate)
        dense, total = list(self._dense.values()), cost(numbers, units)
        self._least = settings.minimum * self._budget / total
        even = math.sqrt(self._budget / total)
        shares = [(first or {}).get(name, even) for name in self._dense]
        free = [(share - self._least) / (1 - self._least) if self._least < 1 else 1.0 for share in shares]
        within = torch.tensor([min(max(share, 0.01), 0.99) for share in free], device=dense[0].device)
        self.rates = nn.Parameter(torch.logit(within))
        self._sizes = torch.tensor([weight.numel() for weight in dense], dtype=within.dtype, device=within.device)
        self._prices = torch.tensor([float(units.get(name, 1)) for name in self._dense]).to(within)
        self._lowest = torch.tensor([float(constraint.least.get(name, 0)) for name in self._dense]).to(within)
        self._growth = settings.gamma * PUBLISHED_EPOCHS / self.epochs
        self.gamma, self._met = torch.zeros_like(within[0]), False

    def parameters(self) -> Iterable[nn.Parameter]:
        return [*super().parameters(), self.rates]

    def before_epoch(self, epoch: int) -> None:
        if not self._met:
            self.gamma.fill_(self._growth * (epoch + 1))

    def loss(self, batch: Batch) -> Loss:
        # The gradients of the shares are written down in closed form, so only the penalty's value joins the loss.
        loss, penalty = self._loss(batch), self.penalty()
        return Loss(loss.total + self.gamma * penalty, {**loss.parts, "budget": penalty}, loss.logits)

    @torch.no_grad()
    def wanted(self) -> Tensor:
        """Return how many weights each layer is to keep, a_l n_l; no fewer than the constraint's least."""
        shares = self._least + (1 - self._least) * torch.sigmoid(self.rates)
        return torch.maximum(self._sizes * shares, self._lowest)

    def penalty(self) -> Tensor:
        """Return max(kept / budget − 1, 0), both as the budget counts."""
        return (self._cost() / self._budget - 1).clamp_min(0)

    def _cost(self) -> Tensor:
        return (self.wanted() * self._prices).sum()

    def pass_on(self, gradients: Mapping[str, Tensor]) -> None:
        super().pass_on(gradients)
        slope = torch.sigmoid(self.rates) * torch.sigmoid(-self.rates) * (1 - self._least)
        through = torch.stack([gradient.sum() for gradient in gradients.values()])
        over = (self._cost() > self._budget) * self.gamma / self._budget
        self.rates.grad = slope * (through + over * self._sizes * self._prices)

    def masks(self) -> dict[str, Tensor]:
        counts = self.wanted().round().clamp_min(1).unbind()
        return {name: largest(score, count) for (name, score), count in zip(self._scores.items(), counts, strict=True)}

    @property
    def constraint(self) -> Constraint:
        """The constraint as far as it is learned: what each layer is to keep, scaled to the budget."""
        wanted = dict(zip(self._scores, self.wanted().tolist(), strict=True))
        kept = shared_out(wanted, sizes(self._dense), self._budget, self._constraint.least, self._units)
        return self._constraint.with_kept(kept)

    def final_masks(self) -> dict[str, Tensor]:
        self._constraint = self.constraint
        return super().masks()

    def after_epoch(self, epoch: int, validation: Mapping[str, float]) -> Mapping[str, Any]:
        self._met = self._met or validation["budget"] < MET
        wanted = dict(zip(self._scores, self.wanted().tolist(), strict=True))
        return {"gamma": self.gamma.item(), "wanted": wanted}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rates": self.rates.detach(), "gamma": self.gamma.item(), "met": self._met}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.rates.copy_(state["rates"])
        self.gamma.fill_(state["gamma"])
        self._met = state["met"]


@torch.no_grad()
def largest(scores: Tensor, count: Tensor) -> Tensor:
    """Return the mask of the `count` scores largest in absolute value."""
    on_host = scores.device.type == "cpu"  # which need not be waited for, and is slow at sorting
    return unstructured(scores, int(count)) if on_host else largest_by_rank(scores, count)


def largest_by_rank(scores: Tensor, count: Tensor) -> Tensor:
    """Return the same mask for a count that only the device knows."""
    order = scores.abs().flatten().argsort(descending=True)
    chosen = torch.arange(len(order), device=order.device) < count
    return torch.empty_like(chosen).scatter_(0, order, chosen).view_as(scores)
