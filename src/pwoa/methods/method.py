"""What a method declares of itself: its name, its own settings, which others it uses, hints, and the files it reads."""

from typing import ClassVar

from torch import nn

from pwoa.errors import InputError
from pwoa.recipe import Recipe, flat, load_recipe, preset_for
from pwoa.recipe.settings import toml_value
from pwoa.sparsity import Constraint
from pwoa.training import Material, Stage


class Method:
    """The base of all methods. Every list of what methods do is asked of them here.

    name: what it is called in recipes; its own section of settings, if it has one, is called the same.
    settings: a frozen dataclass of its own settings with their defaults, or None.
    common, uses, ignores: how the settings begin that make a difference to all methods of its kind, to this one
    besides, and to this one not.
    """

    name: str
    settings: ClassVar[type | None] = None
    prunes: ClassVar[bool]
    common: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()
    ignores: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def uses_setting(cls, setting: str) -> bool:
        """Tell whether a setting, as `section.key`, makes a difference to the method."""
        used = setting.startswith((*cls.common, *cls.uses, f"{cls.name}."))
        return used and not (cls.ignores and setting.startswith(cls.ignores))

    @classmethod
    def complete(cls, recipe: Recipe) -> Recipe:
        """Return the recipe with every setting of the method's own section, checked, and what follows from others."""
        if cls.settings is not None:
            return recipe.with_own(recipe.own_settings(cls.settings))
        if recipe.own:
            raise InputError(f"{cls.name} has no settings of its own, so no {cls.name}.{recipe.own[0][0]}")
        return recipe

    @classmethod
    def hints(cls, recipe: Recipe) -> list[str]:
        """Return a line for each thing in the recipe that the method is not meant for.

        Settings that somebody gave and it does not use are told by the run, out of `uses_setting`.
        """
        return []

    @classmethod
    def files(cls, recipe: Recipe) -> dict[str, str]:
        """Return the files that the method reads besides teacher and data, by the setting that names them."""
        return {}

    @classmethod
    def stage_epochs(cls, recipe: Recipe) -> tuple[int, ...]:
        """Return how many epochs each stage has."""
        return recipe.search.epochs, recipe.finetune.epochs


_PUBLISHED = ("search.", "finetune.", "objective.", "pretrain.", "training.")
_FREE = tuple(f"training.{key}" for key in ("seed", "device", "mode", "threads", "checkpoint_seconds", "tensorboard"))
"""What a preset says of how a method is trained, and what of it every run chooses for itself."""
_MIX = "training.mix"
"""Chosen by every run too, where its method has a preset for its data; without one it was nobody's choice."""


class PruningMethod(Method):
    """A way to prune: stages that change `student`, a copy of `teacher`; and whether they need adversarial examples.

    A new one is a file with a subclass, and a line in `pwoa.methods.METHODS`.

    constraint: how many weights each layer keeps; there is none where the method learns that.
    """

    prunes = True
    common = ("method", "data.", "teacher.", "threat.", "sparsity.", "training.", "evaluation.")
    stages: list[Stage]
    constraint: Constraint

    @classmethod
    def learns_allocation(cls, recipe: Recipe) -> bool:
        """Tell whether it learns how many weights each layer keeps, so that this is not known before."""
        return not cls.uses_setting("sparsity.allocation")

    @classmethod
    def hints(cls, recipe: Recipe) -> list[str]:
        """Tell in what the recipe differs from the method's preset for its data, or for data that is like it."""
        own = preset_for(recipe.data.name, cls.name)
        preset = own or preset_for("mnist" if recipe.data.name == "mnist-mini" else "cifar10", cls.name)
        if preset is None or cls.name == "pwoa":
            return []
        meant = flat(cls.complete(load_recipe(preset)))
        settings = {key: value for key, value in flat(cls.complete(recipe)).items() if cls.uses_setting(key)}
        free = (*_FREE, _MIX) if own else _FREE
        other = [
            f"{key} = {toml_value(value)} ({toml_value(meant[key])})"
            for key, value in settings.items()
            if key.startswith((*_PUBLISHED, f"{cls.name}.")) and key not in free and value != meant[key]
        ]
        than = f"these settings differ from the preset {preset}"
        if not own:
            name = recipe.data.name
            than = f"there is no preset of {cls.name} for {name}; compared with {preset} these settings differ"
        return [f"{than}: {', '.join(other)}"] if other else []

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        self.example_free = not recipe.training.mix
        if not self.learns_allocation(recipe):
            self.constraint = Constraint.of(student, recipe.sparsity, material.example())
