"""Methods: ways to prune, and to train a robust model, by name. A method is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import nn

from pwoa.errors import InputError, counted, did_you_mean
from pwoa.methods.adversarial import Mart, PgdAt, RobustTraining, Trades
from pwoa.methods.advprune import AdvPrune, Magnitude
from pwoa.methods.apd import Apd
from pwoa.methods.fast_at import FastAt
from pwoa.methods.harp import Harp
from pwoa.methods.hbar import Hbar
from pwoa.methods.hints import SCORING, SHARING, hints
from pwoa.methods.hydra import Hydra
from pwoa.methods.lbgat import Lbgat
from pwoa.methods.pwoa import Pwoa
from pwoa.recipe.sections import Recipe
from pwoa.training.stage import Material, Stage

__all__ = [
    "METHODS",
    "ONE_STAGE",
    "PRETRAINING",
    "SCORING",
    "SHARING",
    "Method",
    "epochs_in_words",
    "find_method",
    "find_pretraining",
    "hints",
]


class Method(Protocol):
    """What the engine is given: stages, and whether they may ask for the gradient of an input."""

    @property
    def example_free(self) -> bool: ...

    @property
    def stages(self) -> Sequence[Stage]: ...


METHODS: dict[str, Callable[[nn.Module, nn.Module, Material, Recipe], Method]] = {
    "pwoa": Pwoa,
    "advprune": AdvPrune,
    "hydra": Hydra,
    "apd": Apd,
    "harp": Harp,
    "magnitude": Magnitude,
}
"""Name → function of (student, teacher, material, recipe)."""

ONE_STAGE = ("magnitude",)
"""Methods that search nothing: they train the weights that stay from the start."""

PRETRAINING: dict[str, Callable[[nn.Module, Material, Recipe], RobustTraining]] = {
    "pgd-at": PgdAt,
    "trades": Trades,
    "mart": Mart,
    "hbar": Hbar,
    "lbgat": Lbgat,
    "fast-at": FastAt,
}
"""Name → function of (model, material, recipe)."""


def epochs_in_words(recipe: Recipe) -> str:
    """The epochs of the search and of the weights, as `50 + 100 epochs`."""
    if recipe.method in ONE_STAGE:
        return counted(recipe.finetune.epochs, "epoch")
    return f"{recipe.search.epochs} + {recipe.finetune.epochs} epochs"


def find_pretraining(name: str) -> Callable[[nn.Module, Material, Recipe], RobustTraining]:
    """The robust training method of that name."""
    if name in METHODS:
        raise InputError(f"{name} prunes a robust model: use pwoa prune (in Python: pwoa.prune)")
    if name not in PRETRAINING:
        raise InputError(f"unknown method of robust training {name!r} ({did_you_mean(name, PRETRAINING)})")
    return PRETRAINING[name]


def find_method(name: str) -> Callable[[nn.Module, nn.Module, Material, Recipe], Method]:
    """The method of that name."""
    if name in PRETRAINING:
        raise InputError(f"{name} trains a robust model from scratch: use pwoa pretrain (in Python: pwoa.pretrain)")
    if name not in METHODS:
        raise InputError(f"unknown method {name!r} ({did_you_mean(name, METHODS)})")
    return METHODS[name]
