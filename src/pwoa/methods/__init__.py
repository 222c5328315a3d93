"""Methods: ways to prune, by name. A method is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import nn

from pwoa.errors import InputError, did_you_mean
from pwoa.methods.pwoa import Pwoa
from pwoa.recipe import Recipe
from pwoa.training import Material, Stage


class Method(Protocol):
    """What the engine is given: stages, and whether they may ask for the gradient of an input."""

    @property
    def example_free(self) -> bool: ...

    @property
    def stages(self) -> Sequence[Stage]: ...


METHODS: dict[str, Callable[[nn.Module, nn.Module, Material, Recipe], Method]] = {"pwoa": Pwoa}
"""Name → function of (student, teacher, material, recipe)."""


def find_method(name: str) -> Callable[[nn.Module, nn.Module, Material, Recipe], Method]:
    """The method of that name."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r} ({did_you_mean(name, METHODS)})")
    return METHODS[name]
