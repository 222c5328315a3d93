"""Recipes: every setting of a run as typed, checked, frozen values; TOML on disk.

A recipe is built in layers: the defaults of its sections, then a preset or a file, then `section.key=value` settings.
This package imports nothing heavy, so that the command line can check a recipe before it loads torch.
"""

from importlib import resources
from pathlib import Path, PurePath

from pwoa.errors import InputError, did_you_mean
from pwoa.recipe.sections import AUTO as AUTO
from pwoa.recipe.sections import Evaluation as Evaluation
from pwoa.recipe.sections import Recipe as Recipe
from pwoa.recipe.sections import SparsityRecipe as SparsityRecipe
from pwoa.recipe.sections import flat as flat
from pwoa.recipe.settings import numbers as numbers
from pwoa.recipe.settings import parse_setting as parse_setting
from pwoa.recipe.settings import toml_value
from pwoa.storage.reading import TOML_LIMIT, parse_toml, read_text

RECIPE = "recipe.toml"
"""What the complete recipe of a run is called in its folder."""
_PRESETS = resources.files("pwoa.recipe") / "presets"
_OTHER_METHODS = ("harp", "apd")
"""The sections of methods that version 0.2 wrote into every run, whatever its method."""


def presets() -> list[str]:
    """List the names of the presets that come with the package."""
    return sorted(item.name.removesuffix(".toml") for item in _PRESETS.iterdir() if item.name.endswith(".toml"))


def load_recipe(source: str | Path | Recipe | None = None) -> Recipe:
    """Load a recipe from a preset's name or a TOML file; the defaults for None. Example: `load_recipe("cifar10")`."""
    if source is None:
        return Recipe()
    if isinstance(source, Recipe):
        return source
    if not isinstance(source, (str, Path)):
        raise InputError(f"a recipe is the name of a preset or a TOML file, not {source!r}")
    if str(source) in presets():
        text = (_PRESETS / f"{source}.toml").read_text(encoding="utf-8")
    elif _is_file(source):
        text = _read(Path(source))
    else:
        raise InputError(
            f"no recipe {str(source)!r}: neither a file nor a preset ({did_you_mean(str(source), presets())})"
        )
    return Recipe().with_tree(parse_toml(text, str(source)), str(source))


def records_recipe(folder: str | Path) -> bool:
    """Tell whether a folder has the recipe of a run."""
    return (Path(folder) / RECIPE).is_file()


def recorded_recipe(folder: str | Path) -> Recipe:
    """Read the recipe of a run.

    It has every section: in one that was cut off, defaults would be taken for what is lost.
    """
    file = Path(folder) / RECIPE
    tree = parse_toml(_read(file), str(file))
    if lost := {"data", "threat", "evaluation"} - tree.keys():
        raise InputError(f"{file} is damaged: it has no section {min(lost)}; a run's recipe has every setting")
    others = [name for name in _OTHER_METHODS if name != tree.get("method")]
    return Recipe().with_tree({key: value for key, value in tree.items() if key not in others}, str(file))


def _read(path: Path) -> str:
    return read_text(path, TOML_LIMIT)


def _is_file(path: str | Path) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name that is too long, or that no file can have
        return False


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
