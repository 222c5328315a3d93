"""How long a search and its fine-tuning take at a rate, where the recipe says it for a higher one."""

import math
from dataclasses import replace

from pwoa.recipe.sections import Recipe

_LEAST = 1 / 6
"""So much of the epochs is left at the lowest rates."""
_MULTIPLY_ADDS = 2
"""A budget of multiply-adds is about as hard to meet as one of weights at this many times the rate."""


def paced(recipe: Recipe) -> Recipe:
    """Return the recipe with the epochs and the learning rates for its own rate, which may be below `search.full_rate`.

    Epochs follow the logarithm of the rate, from `search.start_rate` on, and learning rates the rate. ρ, with fewer
    updates, grows faster: to the same.
    """
    search, finetune, sparsity = recipe.search, recipe.finetune, recipe.sparsity
    rate = sparsity.rate * (_MULTIPLY_ADDS if sparsity.budget == "macs" else 1)
    if rate >= search.full_rate:
        return recipe
    start, part = search.start_rate or 1.0, rate / search.full_rate
    share = max(math.log(rate / start) / math.log(search.full_rate / start), _LEAST) if rate > start else _LEAST

    def some(epochs: int) -> int:
        return math.ceil(round(share * epochs, 9))

    epochs = some(search.epochs)
    slower = replace(
        search,
        epochs=epochs,
        allocation_epochs=some(search.allocation_epochs),
        learning_rate=search.learning_rate * part,
        rho_growth=search.rho_growth ** (search.epochs / epochs),
    )
    shorter = replace(finetune, epochs=some(finetune.epochs), learning_rate=finetune.learning_rate * part)
    return replace(recipe, search=slower, finetune=shorter)
