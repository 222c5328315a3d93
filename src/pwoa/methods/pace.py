"""How long a search and its fine-tuning take at a rate, where the recipe says it for a higher one."""

import math
from typing import Any

from pwoa.recipe.sections import Recipe
from pwoa.sparsity.allocation import LEARNED

_LEAST = 1 / 6
"""So much of the epochs is left at the lowest rates."""
_MULTIPLY_ADDS = 2
"""A budget of multiply-adds is about as hard to meet as one of weights at this many times the rate."""


def paced(recipe: Recipe) -> Recipe:
    """Return the recipe with the epochs and the learning rates for its own rate, which may be below `search.full_rate`.

    Epochs follow the logarithm of the rate, from `search.start_rate` on, and learning rates the rate. ρ, with fewer
    updates, grows faster: to the same. Settings that were given on top of a preset or a file stay as they are. What
    comes back is for this rate, so its `search.full_rate` is 0.
    """
    if not recipe.search.full_rate:
        return recipe
    taken = {key: value for key, value in _for_its_rate(recipe).items() if key not in recipe.given}
    return recipe.with_settings({**taken, "search.full_rate": 0.0})


def _for_its_rate(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that are others at the recipe's rate: none from `search.full_rate` on."""
    search, finetune = recipe.search, recipe.finetune
    rate = recipe.sparsity.rate * _counts(recipe)
    if rate >= search.full_rate:
        return {}
    start, part = search.start_rate or 1.0, rate / search.full_rate
    share = max(math.log(rate / start) / math.log(search.full_rate / start), _LEAST) if rate > start else _LEAST

    def some(epochs: int) -> int:
        return math.ceil(round(share * epochs, 9))

    epochs = search.epochs if "search.epochs" in recipe.given else some(search.epochs)
    return {
        "search.epochs": epochs,
        "search.allocation_epochs": some(search.allocation_epochs),
        "search.learning_rate": search.learning_rate * part,
        "search.rho_growth": search.rho_growth ** (search.epochs / epochs),
        "finetune.epochs": some(finetune.epochs),
        "finetune.learning_rate": finetune.learning_rate * part,
    }


def _counts(recipe: Recipe) -> int:
    """Return how many times the recipe's rate counts, by what its budget is of."""
    return _MULTIPLY_ADDS if recipe.sparsity.budget == "macs" else 1


def pace_notes(asked: Recipe, taken: Recipe) -> list[str]:
    """Return a line if the epochs or the learning rates that are taken are not those that a recipe asked for."""

    def changed(setting: str, name: str, joined: str) -> str:
        before, after = (
            joined.join(f"{getattr(part, setting):.4g}" for part in (recipe.search, recipe.finetune))
            for recipe in (asked, taken)
        )
        return "" if before == after else f"{name} ({after}, not {before})"

    changes = [changed("epochs", "fewer epochs", " + "), changed("learning_rate", "lower learning rates", " and ")]
    before, after = (recipe.search.allocation_epochs for recipe in (asked, taken))
    if asked.sparsity.allocation == LEARNED and before != after:
        changes.append(f"fewer epochs of the allocation ({after}, not {before})")
    changes = [words for words in changes if words]
    if not changes:
        return []
    return [
        f"at {asked.sparsity.rate_text}, below {asked.search.full_rate / _counts(asked):g}, this recipe trains with "
        f"{' and '.join(changes)}; --set still wins, and --set search.full_rate=0 turns this off"
    ]
