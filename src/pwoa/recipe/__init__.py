"""Recipes: every setting of a run as typed, checked, frozen values; TOML on disk.

A recipe is built in layers: the defaults of its sections, then a preset or a file, then `section.key=value` settings.
This package imports nothing heavy, so that the command line can check a recipe before it loads torch.
"""

import hashlib
import itertools
from collections.abc import Container
from importlib import resources
from pathlib import Path, PurePath

from pwoa.errors import InputError, did_you_mean
from pwoa.recipe.methods import METHOD_SECTIONS
from pwoa.recipe.sections import AUTO as AUTO
from pwoa.recipe.sections import Evaluation as Evaluation
from pwoa.recipe.sections import Recipe as Recipe
from pwoa.recipe.sections import SparsityRecipe as SparsityRecipe
from pwoa.recipe.sections import explain
from pwoa.recipe.sections import flat as flat
from pwoa.recipe.settings import is_factory, toml_value
from pwoa.recipe.settings import numbers as numbers
from pwoa.recipe.settings import parse_setting as parse_setting
from pwoa.storage.reading import TOML_LIMIT, parse_toml, read_text

RECIPE = "recipe.toml"
"""What the complete recipe of a run is called in its folder."""
_PRESETS = resources.files("pwoa.recipe") / "presets"
_SEAL = "# sha256: "
"""The first line of a run's recipe: the hash of all others."""


def presets() -> list[str]:
    """List the names of the presets that come with the package."""
    return sorted(item.name.removesuffix(".toml") for item in _PRESETS.iterdir() if item.name.endswith(".toml"))


def about_preset(name: str) -> str:
    """Return what a preset says of itself, in the comment that it begins with."""
    lines = (_PRESETS / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("#").strip() for line in itertools.takewhile(lambda line: line[:1] == "#", lines))


def load_recipe(source: str | Path | Recipe | None = None, given: Container[str] = ()) -> Recipe:
    """Load a recipe from a preset's name or a TOML file; the defaults for None. Example: `load_recipe("cifar10")`.

    A file cannot name Python code to run: that is for the command line and for Python.
    source: as said; a Recipe is returned as it is.
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
    elif _is_file(source):
        text = read_text(Path(source), TOML_LIMIT)
    else:
        raise InputError(
            f"no recipe {str(source)!r}: neither a file nor a preset ({did_you_mean(str(source), presets())})"
        )
    tree = parse_toml(text, str(source))
    if tree.keys() & {"grid", "set"}:
        raise InputError(f"{source}: this is a grid of a sweep; use pwoa sweep")
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
    text = read_text(file, TOML_LIMIT)
    tree = parse_toml(text, str(file))
    if lost := {"data", "threat", "evaluation"} - tree.keys():
        raise InputError(f"{file} is damaged: it has no section {min(lost)}; a run's recipe has every setting")
    seal, _, rest = text.partition("\n")
    if seal.startswith(_SEAL) and seal != _SEAL + hashlib.sha256(rest.encode()).hexdigest():
        raise InputError(f"{file} is damaged: it was changed after the run began; a run's recipe stays as it is")
    others = [name for name in METHOD_SECTIONS if name != tree.get("method")]  # version 0.2 wrote them into every run
    return Recipe().with_tree({key: value for key, value in tree.items() if key not in others}, str(file))


def preset_for(data: str, method: str = "pwoa") -> str | None:
    """Name the preset of a method for a data set, by its name or that of its folder; None if there is none.

    Example: `preset_for("cifar100", "hydra")`.
    """
    name = PurePath(data).name
    named = {"mnist-mini": "demo", "fashion-mnist": "mnist"}.get(name, name)
    named = named if method == "pwoa" else f"{named}-{method}"
    return named if named in presets() else None


def _is_file(path: str | Path) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name that is too long, or that no file can have
        return False


def recipe_for(data: str, method: str = "pwoa") -> Recipe:
    """Return a method's preset for a data set, by its name or that of its folder; else PwoA's; else the defaults."""
    return load_recipe(preset_for(data, method) or preset_for(data))


def teacher_recipe_for(data: str) -> Recipe | None:
    """Return the preset for robust training on a data set, if there is one."""
    name = PurePath(data).name
    named = f"teacher-{'mnist' if name in ('mnist-mini', 'fashion-mnist') else name}"
    return load_recipe(named) if named in presets() else None


def to_toml(recipe: Recipe, explained: bool = False) -> str:
    """Write the complete recipe as TOML; `load_recipe` reads it back to an equal one.

    explained: with a comment on each setting, and every setting of the method's own section.
    """
    if explained and (kind := METHOD_SECTIONS.get(recipe.method)):
        recipe = recipe.with_own(recipe.own_settings(kind))
    words = explain(recipe) if explained else {}
    lines: list[str] = []
    section = ""
    for path, value in flat(recipe).items():
        head, _, key = path.rpartition(".")
        if head != section:
            lines += ["", f"[{head}]"]
            section = head
        lines.append(f"{key} = {toml_value(value)}" + (f"  # {words[path]}" if words.get(path) else ""))
    return "\n".join(lines) + "\n"


def sealed_toml(recipe: Recipe) -> str:
    """Write the complete recipe of a run, headed by the hash that `recorded_recipe` checks."""
    text = to_toml(recipe)
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"
