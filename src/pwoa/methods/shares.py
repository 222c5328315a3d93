"""A learned allocation: how many weights each layer keeps, by what the objective of the method says of it.

As HARP does, a stage learns scores for the weights and the share that each layer keeps, straight through the masks,
with a penalty on what is over the budget; but on the loss of the method that it comes before, so without an adversarial
example where that has none. The shares alone are taken over: they are scaled to the budget, and the weights are the
teacher's again when the search begins.

Every layer begins between HARP's share, 1/√rate, and that of LAMP: their geometric mean. The shares of small layers
hardly move, for neither the loss nor the penalty has much to say of few weights, so where they begin matters.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from torch import Tensor, nn

from pwoa.methods.harp import ShareScoring
from pwoa.models.hidden import multiply_adds
from pwoa.recipe.methods import HarpSettings
from pwoa.recipe.sections import Recipe
from pwoa.sparsity import prunable
from pwoa.sparsity.allocation import ONE_EACH, allocate
from pwoa.training.stage import Batch, Loss

LEARNING_RATE = 0.1
"""That of the scores and shares in HARP."""


class Shares(ShareScoring):
    """Learns the shares on a loss, and leaves the student as it was before."""

    name, section = "allocation", "search"

    def __init__(
        self,
        student: nn.Module,
        loss: Callable[[Batch], Loss],
        watching: Callable[[], AbstractContextManager[None]],
        recipe: Recipe,
        x: Tensor,
    ) -> None:
        sparsity, epochs = recipe.sparsity, recipe.search.allocation_epochs
        weights = prunable(student, sparsity)
        units = multiply_adds(student, x, weights) if sparsity.budget == "macs" else ONE_EACH
        lamp = replace(sparsity, allocation="lamp-macs" if units else "lamp")
        even = sparsity.rate**-0.5
        first = {
            name: math.sqrt(even * kept / weights[name].numel())
            for name, kept in allocate(weights, lamp, costs=units).items()
        }
        super().__init__(student, loss, sparsity, epochs, LEARNING_RATE, HarpSettings(), units, first)
        self._student, self._watching = student, watching
        self._before = {name: value.clone() for name, value in student.state_dict().items()}

    @contextmanager
    def running(self) -> Iterator[None]:
        with super().running(), self._watching():
            yield

    def leave(self) -> None:
        """Give the student back the weights and statistics that it began with."""
        self._student.load_state_dict(self._before)
