"""What a user should know of the settings a method is given, before it runs for long."""

from __future__ import annotations

from pwoa.recipe import load_recipe, presets
from pwoa.recipe.sections import Recipe

SCORING = ("hydra", "harp")
"""Methods whose search trains scores instead of weights, with learning rates for SGD."""

SHARING = ("harp",)
"""Methods that learn how many weights each layer keeps, and so know no allocation."""


def hints(recipe: Recipe) -> list[str]:
    """A line for each setting that the method is not meant for, or does not use."""
    method, own, found = recipe.method, f"{recipe.data.name}-{recipe.method}", []
    if method in SCORING and recipe.training.optimizer == "adam":
        found.append(
            f"the scores of {method} are meant for SGD; the presets mnist-{method} and cifar10-{method} have it"
        )
    elif method in SCORING and own in presets():
        here, meant = recipe.search.learning_rate, load_recipe(own).search.learning_rate
        if here != meant:
            found.append(f"the learning rate of {method}'s scores is {here:g}; the preset {own} has {meant:g}")
    if method in SHARING and recipe.sparsity.allocation != "uniform":
        found.append(f"{method} learns how many weights each layer keeps; sparsity.allocation is not used")
    return found
