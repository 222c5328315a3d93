"""Methods: ways to prune, by name. A method is one file and one line here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import nn

from pwoa.errors import InputError
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
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(METHODS)}"
        raise InputError(f"unknown method {name!r} ({hint})")
    return METHODS[name]
