"""Recipes: every setting of a run as typed, checked, frozen values; TOML on disk.

A recipe is built in layers: the defaults of its sections, then a preset or a file, then `section.key=value` settings.
This package imports nothing heavy, so that the command line can check a recipe before it loads torch.
"""

import hashlib
import tomllib
from collections.abc import Container
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

from pwoa.errors import InputError, did_you_mean
from pwoa.recipe.sections import AUTO as AUTO
from pwoa.recipe.sections import Evaluation as Evaluation
from pwoa.recipe.sections import Recipe as Recipe
from pwoa.recipe.sections import SparsityRecipe as SparsityRecipe
from pwoa.recipe.sections import flat as flat
from pwoa.recipe.settings import is_factory, toml_value
from pwoa.recipe.settings import numbers as numbers
from pwoa.recipe.settings import parse_setting as parse_setting

RECIPE = "recipe.toml"
"""What the complete recipe of a run is called in its folder."""
_PRESETS = resources.files("pwoa.recipe") / "presets"
_SEAL = "# sha256: "
"""The first line of a run's recipe: the hash of all others."""
_OTHER_METHODS = ("harp", "apd")
"""The sections of methods that version 0.2 wrote into every run, whatever its method."""


def presets() -> list[str]:
    """List the names of the presets that come with the package."""
    return sorted(item.name.removesuffix(".toml") for item in _PRESETS.iterdir() if item.name.endswith(".toml"))


def load_recipe(source: str | Path | Recipe | None = None, given: Container[str] = ()) -> Recipe:
    """Load a recipe from a preset's name or a TOML file; the defaults for None. Example: `load_recipe("cifar10")`.

    A file cannot name Python code to run: that is for the command line and for Python.
    given: settings that the caller gives, so that what the file says of them does not matter.
    """
    if source is None:
        return Recipe()
    if isinstance(source, Recipe):
        return source
    if not isinstance(source, (str, Path)):
        raise InputError(f"a recipe is the name of a preset or a TOML file, not {source!r}")
    if str(source) in presets():
        text = (_PRESETS / f"{source}.toml").read_text(encoding="utf-8")
    elif Path(source).is_file():
        text = _read(Path(source))
    else:
        raise InputError(
            f"no recipe {str(source)!r}: neither a file nor a preset ({did_you_mean(str(source), presets())})"
        )
    tree = _parse(text, str(source))
    if isinstance(teacher := tree.get("teacher"), dict):
        tree["teacher"] = {key: value for key, value in teacher.items() if f"teacher.{key}" not in given}
    recipe = Recipe().with_tree(tree, str(source))
    refuse_code(recipe, str(source), given)
    return recipe


MAY_BE_CODE = {"teacher.architecture": "--arch", "teacher.checkpoint": "--checkpoint"}
"""The settings that may name Python code, FILE.py:NET, which is run; and their options on the command line."""


def refuse_code(recipe: Recipe, where: str, given: Container[str] = ()) -> None:
    """Refuse a recipe out of a file that names Python code in another setting than those that the caller gave."""
    for setting, option in MAY_BE_CODE.items():
        value = str(flat(recipe)[setting])
        if setting not in given and is_factory(value) and not value.startswith("hf:"):
            raise InputError(
                f"{where}: {setting} = {value!r} is Python code, which a file cannot ask to run; if you trust it, give "
                f"it yourself: {option} {value}, or --set {setting}={value} (in Python: settings=)"
            )


def records_recipe(folder: str | Path) -> bool:
    """Tell whether a folder has the recipe of a run."""
    return (Path(folder) / RECIPE).is_file()


def recorded_recipe(folder: str | Path) -> Recipe:
    """Read the recipe of a run.

    It has every section: in one that was cut off, defaults would be taken for what is lost.
    """
    file = Path(folder) / RECIPE
    text = _read(file)
    tree = _parse(text, str(file))
    if lost := {"data", "threat", "evaluation"} - tree.keys():
        raise InputError(f"{file} is damaged: it has no section {min(lost)}; a run's recipe has every setting")
    seal, _, rest = text.partition("\n")
    if seal.startswith(_SEAL) and seal != _SEAL + hashlib.sha256(rest.encode()).hexdigest():
        raise InputError(f"{file} is damaged: it was changed after the run began; a run's recipe stays as it is")
    others = [name for name in _OTHER_METHODS if name != tree.get("method")]
    return Recipe().with_tree({key: value for key, value in tree.items() if key not in others}, str(file))


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:  # tomllib's own, or Python's of a number with thousands of digits
        raise InputError(f"{source}: not valid TOML: {error}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None


def recipe_for(data: str) -> Recipe:
    """Return the preset for a data set, by its name or that of its folder, if there is one; else the defaults."""
    name = PurePath(data).name
    named = {"mnist-mini": "demo", "fashion-mnist": "mnist"}.get(name, name)
    return load_recipe(named) if named in presets() else Recipe()


def teacher_recipe_for(data: str) -> Recipe | None:
    """Return the preset for robust training on a data set, if there is one."""
    name = PurePath(data).name
    named = f"teacher-{'mnist' if name in ('mnist-mini', 'fashion-mnist') else name}"
    return load_recipe(named) if named in presets() else None


def to_toml(recipe: Recipe) -> str:
    """Write the complete recipe as TOML; `load_recipe` reads it back to an equal one."""
    lines: list[str] = []
    section = ""
    for path, value in flat(recipe).items():
        head, _, key = path.rpartition(".")
        if head != section:
            lines += ["", f"[{head}]"]
            section = head
        lines.append(f"{key} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def sealed_toml(recipe: Recipe) -> str:
    """Write the complete recipe of a run, headed by the hash that `recorded_recipe` checks."""
    text = to_toml(recipe)
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"
