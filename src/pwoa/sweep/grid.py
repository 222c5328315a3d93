"""The grid of a sweep: from a TOML file to one recipe a run."""

import dataclasses
import itertools
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pwoa.errors import InputError, did_you_mean
from pwoa.methods import METHODS, Method, find_method
from pwoa.methods.pace import pace_notes
from pwoa.recipe import load_recipe, preset_for, presets, recipe_for, refuse_code, teacher_recipe_for
from pwoa.recipe.sections import Recipe, flat
from pwoa.recipe.settings import key_hint, parse_setting, toml_value
from pwoa.storage.reading import read_toml

LARGEST_GRID = 10_000
"""Runs of a grid."""
_PARTS = ("recipe", "set", "grid")
_LABEL = "label"
"""What a table among the values of an axis is called in names, if it says so."""
_PATHS = ("recipe", "teacher", "checkpoint", "folder", "name")
"""Axes whose values may be paths; in names the ends that tell them apart are enough."""
MEASURED_BY = ("recipe", "data", "teacher", "threat", "evaluation")
"""The sections that tell how robust a teacher is found."""
_IN_EVERY_LABEL = ("method", "sparsity.rate", "sparsity.budget", "pretrain.lite", "training.mix", "training.seed")
_IN_EVERY_ROW = (*_IN_EVERY_LABEL, "data.name", "teacher.architecture", "teacher.checkpoint")


@dataclass(frozen=True)
class Point:
    """One run of a sweep: the name of its folder, its line in the table (the same for all seeds), and its recipe.

    axes: the values of the grid that it has and that no column of its row tells.
    teacher: the line of its teacher, as it is measured by it. notes: what is otherwise in it than one might think.
    """

    name: str
    label: str
    recipe: Recipe
    axes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    teacher: str = field(default="", compare=False)
    notes: Sequence[str] = field(default=(), compare=False)


def expand(path: str | Path, settings: Iterable[str] = ()) -> list[Point]:
    """Return all points of the grids in a file, the last setting changing fastest; each once.

    Example: `[point.name for point in expand("grid.toml")]`.
    settings: as `section.key=value`, for all of them, on top of the table set.
    """
    return expand_tree(_read(path), path, settings)


def expand_tree(tree: Mapping[str, Any], path: str | Path, settings: Iterable[str] = ()) -> list[Point]:
    """Return all points of the grids in what a file holds; path: what the file is called in messages."""
    given = _flat(dict(map(parse_setting, settings)))
    points: dict[str, Point] = {}
    runs: dict[tuple[str, Recipe], str] = {}
    tables = tree.get("grid", {})
    for table in tables if isinstance(tables, list) else [tables]:
        fixed, grid = {**_flat(tree.get("set", {})), **given}, _flat(table)
        if isinstance(tables, list):  # in one of several grids, a single value is for all runs of that grid
            single = {key: value for key, value in grid.items() if not isinstance(value, list)}
            _check_twice({key: [value] for key, value in single.items()}, [*fixed], path)
            fixed, grid = fixed | single, {key: grid[key] for key in grid if key not in single}
        for point in _expand(tree.get("recipe"), fixed, grid, path, given):
            refuse_code(point.recipe, str(path), given)
            if runs.setdefault((point.label, point.recipe), point.name) != point.name:
                continue  # the same run in other words, as rate 4 and 4.0
            if points.setdefault(point.name, point) != point:
                raise InputError(f"{path}: two runs would have the folder {point.name}; give their values other names")
    return list(points.values())


def _expand(
    recipe: Any, fixed: Mapping[str, Any], grid: Mapping[str, Any], path: str | Path, given: Container[str]
) -> Iterator[Point]:
    """Return all points of one grid, with the settings that are for all of its runs; those given are no file's."""
    fixed = dict(fixed)
    recipe = fixed.pop("recipe", recipe)
    if recipe is None and "data.name" not in fixed and not grid:
        raise InputError(f"{path}: nothing to run; give a recipe, a data set (data.name in the table set), or a grid")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            how = "" if isinstance(values, list) else f"; write [{toml_value(values)}], or put it in the table set"
            raise InputError(f"{path}: grid.{key} = {values!r} is not a list of values{how}")
        for table in (value for value in values if isinstance(value, Mapping)):
            _check_table(key, table, path)
    if (count := math.prod(len(values) for values in grid.values())) > LARGEST_GRID:
        raise InputError(f"{path}: the grid has {count:,} runs, more than {LARGEST_GRID:,}; leave some values out")
    check_known((key for key in (*fixed, *_keys(grid)) if key != "recipe"), path)
    _check_twice(grid, [*fixed, *(["recipe"] if recipe is not None else [])], path)
    texts = {key: _texts(key, values) for key, values in grid.items()}
    grid = {key: [_unlabelled(value) for value in values] for key, values in grid.items()}
    names = _names(list(grid))
    for places in itertools.product(*(range(len(values)) for values in grid.values())):
        chosen = {key: (grid[key][place], texts[key][place]) for key, place in zip(grid, places, strict=True)}
        settings = {"recipe": recipe, **fixed, **_values(chosen)}
        unsaid = settings["recipe"] is None and "data.name" in settings
        base = recipe_for(str(settings["data.name"])) if unsaid else load_recipe(settings["recipe"], given)
        method = find_method(base.with_settings({"method": settings.get("method", base.method)}).method)
        if base.method != method.name and _is_for_pruning(settings["recipe"]):
            base = load_recipe(preset_for(base.data.name, method.name) or base)
        if not method.prunes and _is_for_pruning(settings["recipe"]):
            base = _for_training(base, str(settings.get("data.name", base.data.name)))
        by_rate = _by_rate(base, method, settings, path)
        common = {key: value for key, value in fixed.items() if not _is_of_another(key, method)}
        base = base.with_settings({**common, "method": method.name})
        yield _point(base, _of_use(chosen, method), method, names, by_rate)


def _by_rate(base: Recipe, method: type[Method], given: Mapping[str, Any], path: str | Path) -> bool:
    """Tell whether a network that is trained from scratch is made as small as the rate says, or as pretrain.lite."""
    if not method.prunes and {"sparsity.rate", "pretrain.lite"} <= set(given):
        raise InputError(
            f"{path}: sparsity.rate and pretrain.lite both say how small {method.name} trains; leave one out"
        )
    return "sparsity.rate" in given or ("pretrain.lite" not in given and find_method(base.method).prunes)


def _is_of_another(key: str, method: type[Method]) -> bool:
    """Tell whether a setting is in the section of another method."""
    section = key.partition(".")[0]
    return section in METHODS and section != method.name


def _is_for_pruning(recipe: Any) -> bool:
    return recipe is None or (recipe in presets() and not recipe.startswith("teacher-"))


def _for_training(base: Recipe, data: str) -> Recipe:
    """Return a preset for pruning says how to prune; a network of the same data is trained as a teacher is."""
    teacher = teacher_recipe_for(data)
    return base if teacher is None else dataclasses.replace(base, training=teacher.training, pretrain=teacher.pretrain)


def _point(
    base: Recipe,
    chosen: Mapping[str, tuple[Any, str]],
    method: type[Method],
    names: Mapping[str, str],
    by_rate: bool,
) -> Point:
    """Return the point with these values, each with its text, on top of a recipe; their axes have these names."""
    asked = base.with_settings(_settings(chosen))
    recipe, trained = method.complete(asked), not method.prunes
    notes = pace_notes(asked, recipe)
    if trained:
        size = recipe.sparsity.rate if by_rate else recipe.pretrain.lite
        recipe = recipe.with_settings({"pretrain.lite": size, "sparsity.rate": size})
    name = "-".join(f"{names[key]}={text}" for key, (_, text) in chosen.items()) or "run"
    lite = " (lite)" if recipe.pretrain.lite > 1 and trained else ""
    label = f"{recipe.method}{lite}, rate {recipe.sparsity.rate:.4g}"
    if not trained:
        label += (" of MACs" if recipe.sparsity.budget == "macs" else "") + f", mix {recipe.training.mix:g}"
    others = {key: text for key, (_, text) in chosen.items() if key not in _IN_EVERY_LABEL}
    label += "".join(f", {names[key]} {text}" for key, text in others.items())
    axes = {key: value for key, value in _values(chosen).items() if key not in _IN_EVERY_ROW}
    dense = {key: text for key, text in others.items() if key.partition(".")[0] in MEASURED_BY}
    teacher = ", ".join(["teacher", *(f"{names[key]} {text}" for key, text in dense.items())])
    return Point(re.sub(r"[^\w.=+-]+", "_", name), label, recipe, axes, teacher, notes)


def _settings(chosen: Mapping[str, tuple[Any, str]]) -> dict[str, Any]:
    return {key: value for key, value in _values(chosen).items() if key != "recipe"}


def _values(chosen: Mapping[str, tuple[Any, str]]) -> dict[str, Any]:
    return _flat({key: value for key, (value, _) in chosen.items()})


def _of_use(chosen: Mapping[str, tuple[Any, str]], method: type[Method]) -> dict[str, tuple[Any, str]]:
    """Return the values without those that make no difference to the method."""
    kept: dict[str, tuple[Any, str]] = {}
    for key, (value, text) in chosen.items():
        if isinstance(value, Mapping):
            left = {inner: item for inner, item in value.items() if method.uses_setting(f"{key}.{inner}")}
            if left or not (value or not method.uses_setting(f"{key}.")):
                kept[key] = left, text if left == value else _whole(left)
        elif key == "recipe" or method.uses_setting(key):
            kept[key] = value, text
    return kept


def check_known(keys: Iterable[str], where: str | Path) -> None:
    """Refuse a key that is neither a setting of recipes nor one of a method's own."""
    own = [f"{name}.{f.name}" for name, method in METHODS.items() for f in fields(method.settings or _Nothing)]
    known = {*flat(Recipe()), *own}
    sections = {key.partition(".")[0] for key in known if "." in key}
    for key in keys:
        if key in sections:
            raise InputError(f"{where}: {key!r} is a section; give {key}.KEY a value")
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r} ({key_hint(key, sorted(known))})")


def _keys(grid: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Return the settings that the axes of a grid change, also those in tables."""
    for axis, values in grid.items():
        tables = [value for value in values if isinstance(value, Mapping)]
        yield from (f"{axis}.{key}" for table in tables for key in table if key != _LABEL)
        if len(tables) < len(values):
            yield axis


@dataclass(frozen=True)
class _Nothing:
    """The settings of a method that has none of its own."""


def _check_table(key: str, table: Mapping[str, Any], path: str | Path) -> None:
    """Return a table among the values of an axis is of settings of one section."""
    sections = {*(setting.partition(".")[0] for setting in flat(Recipe()) if "." in setting), *METHODS}
    if key not in sections:
        raise InputError(f"{path}: grid.{key} has a table among its values; only a section of the recipe can")
    if not isinstance(label := table.get(_LABEL, "-"), str) or not label.strip():
        raise InputError(f"{path}: in grid.{key}, label = {label!r} is not a name")


def _check_twice(grid: Mapping[str, Sequence[Any]], fixed: Sequence[str], path: str | Path) -> None:
    """No setting may have a value for all runs, or be in another axis, beside one in the grid."""
    known = dict.fromkeys(fixed, "has a value for all runs and is in the grid too")
    for key, values in grid.items():
        tables = [value for value in values if isinstance(value, Mapping)]
        own = {f"{key}.{inner}" for table in tables for inner in table if inner != _LABEL} if tables else {key}
        if twice := sorted(own & set(known)):
            raise InputError(f"{path}: {twice[0]} {known[twice[0]]}; leave one of them out")
        known |= dict.fromkeys(own, "is twice in the grid")


def _names(keys: Sequence[str]) -> dict[str, str]:
    """Return the last word of each axis; the whole key where another axis has the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)}


def _texts(key: str, values: Sequence[Any]) -> list[str]:
    """Write the values of an axis as texts; of paths without labels, the shortest ends that tell them apart."""
    whole = [_whole(value) for value in values]
    if key.rpartition(".")[2] not in _PATHS or any(isinstance(value, Mapping) and _LABEL in value for value in values):
        return whole
    for length in itertools.count(1):
        ends = ["/".join(text.split("/")[-length:]) for text in whole]
        if len(set(ends)) == len(set(whole)):
            break
    return ends


def _whole(value: Any) -> str:
    """Return a value as text; of a table its label, or else all of its values."""
    if not isinstance(value, Mapping):
        return str(value)
    return str(value.get(_LABEL, "/".join(map(str, value.values())) or "unchanged"))


def _unlabelled(value: Any) -> Any:
    return {key: item for key, item in value.items() if key != _LABEL} if isinstance(value, Mapping) else value


def _read(path: str | Path) -> dict[str, Any]:
    tree = read_toml(Path(path))
    if unknown := [key for key in tree if key not in _PARTS]:
        raise InputError(f"{path}: unknown key {unknown[0]!r} ({did_you_mean(unknown[0], _PARTS)})")
    for part in ("set", "grid"):
        tables = tree.get(part, {})
        several = part == "grid" and isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
        if not isinstance(tables, dict) and not several:
            raise InputError(f"{path}: {part} = {tree[part]!r} is not a table; write [{part}], and its settings below")
    return tree


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings as `section.key`, whether they were written so or as tables."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found
