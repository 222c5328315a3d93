"""Plans: for each table and figure of the paper a sweep's grid, and what to show of it.

A plan is a TOML file. Its tables [[grid]] are those of a sweep, with two keys more: `teacher` names the teacher that is
pruned, `lite` the one beside which a network of as many parameters is trained from scratch. Each point of a grid is a
cell: a run, known by the settings that it has, so that cells of several tables that ask for the same share one run.
"""

import dataclasses
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pwoa.errors import InputError, did_you_mean
from pwoa.methods import find_method
from pwoa.methods.pace import pace_notes
from pwoa.models.checkpoints.folder import WEIGHTS
from pwoa.recipe import Recipe, flat, load_recipe
from pwoa.recipe.sections import INCIDENTAL
from pwoa.recipe.settings import toml_value
from pwoa.storage.reading import parse_json, parse_toml
from pwoa.sweep.grid import MEASURED_BY, Point, expand_tree

_FILES = resources.files("pwoa.paper")
ORDER = (
    "pretrained",
    "ablation-mnist",
    "ablation-cifar10",
    "ablation-cifar100",
    "classification",
    "comparison-cifar10",
    "comparison-cifar100",
    "comparison-cifar100-mix0",
    "apd",
    "naive",
    "lite",
    "mix",
    "hsic-plane",
    "parameters",
    "balance",
    "security",
)
"""The plans, in the order of the paper; the last two are not in it."""
CURVES = "security"
"""The plan whose runs are measured by attacks of its own, so that its rows are for it alone."""
SCALES = ("quick", "short", "paper")
ATTACKS = ("natural", "fgsm", "pgd10", "pgd20", "cw", "autoattack")
"""What the paper's tables measure."""
TEACHER = "teacher"
"""The method of the row of a dense teacher."""

Where = Callable[[str], str]
"""The name of a teacher → its checkpoint; what is not there yet is named, too."""


@dataclass(frozen=True)
class Teacher:
    """A teacher of the paper: its data, its architecture, the preset that trains one, and the embedded checkpoint."""

    name: str
    data: str
    architecture: str
    recipe: str
    checkpoint: str = ""


@dataclass(frozen=True)
class Key:
    """What tells one line of a table from another."""

    dataset: str
    architecture: str
    teacher: str | None
    method: str
    objective: str | None
    rate: float
    mix: float

    @property
    def dense(self) -> "Key":
        """The line of its teacher."""
        return Key(self.dataset, self.architecture, self.teacher, TEACHER, None, 1.0, 0.0)


@dataclass(frozen=True)
class Cell:
    """A line of a table, or a point of a figure: what the paper calls it, what it is at this scale, and its run.

    run: the name of its folder, the same for all cells with these settings; of a dense teacher, the teacher's name.
    needs: the teachers that must be there. settings: those that were changed by hand, the seed aside; measuring: those
    of them by which its teacher is measured. notes: what is trained otherwise than asked.
    """

    paper: Key
    key: Key
    run: str
    recipe: Recipe
    needs: tuple[str, ...] = ()
    settings: str = ""
    measuring: str = ""
    notes: tuple[str, ...] = ()

    @property
    def measures(self) -> bool:
        """Whether it is a teacher, which is only measured."""
        return self.key.method == TEACHER

    @property
    def dense(self) -> "Cell":
        """The line of its teacher, measured by the same settings."""
        key, own = self.key.dense, self.measuring
        return Cell(self.paper.dense, key, str(key.teacher), self.recipe, settings=own, measuring=own)

    def run_of(self, seed: int) -> str:
        """Return the name that its run has with another seed."""
        return self.run if self.measures else run_name(self.key.teacher, self.recipe, seed)

    @property
    def comparable(self) -> bool:
        """Whether it is on the paper's data, or a part of it: in a rehearsal, most are not."""
        return self.key.dataset.partition("-")[0] == self.paper.dataset

    @property
    def point(self) -> Point:
        """The run as a point of a sweep."""
        return Point(self.run, self.run, self.recipe, notes=self.notes)


@dataclass(frozen=True)
class Plan:
    """A table or figure: how it is shown, its label in the paper's source, its cells, and what a figure's x axis is.

    attacks: what its table has columns for.
    """

    name: str
    title: str
    show: str
    label: str
    cells: tuple[Cell, ...]
    x: str = ""
    attacks: tuple[str, ...] = ATTACKS

    def shows(self, row: Mapping[str, Any]) -> bool:
        """Tell whether a row may be shown, by the table that it was measured for."""
        return (row.get("table") == CURVES) == (self.name == CURVES)


@cache
def known_teachers() -> dict[str, Teacher]:
    """Return the teachers of the paper by name."""
    return {name: Teacher(name, **values) for name, values in packaged("teachers.toml").items()}


def find_teacher(name: str) -> Teacher:
    """Return the teacher of this name; an unknown one is an error."""
    if name not in known_teachers():
        raise InputError(f"no teacher {name!r} ({did_you_mean(name, list(known_teachers()))})")
    return known_teachers()[name]


def choose(names: Sequence[str]) -> list[str]:
    """Return the named plans, in the order of the paper; all for none."""
    for name in names:
        if name not in ORDER:
            raise InputError(f"no table or figure {name!r} ({did_you_mean(name, ORDER)}); `pwoa reproduce` lists them")
    return [name for name in ORDER if name in names or not names]


def load_plan(name: str, scale: str, where: Where, settings: Sequence[str] = ()) -> Plan:
    """Return a plan with its cells at a scale, with the teachers at their places.

    settings: as `section.key=value`, for all runs.
    """
    tree = packaged(f"plans/{name}.toml")
    cells = [_dense(name, teacher, scale, where, settings) for teacher in tree.get("teachers", [])]
    for grid in tree.get("grid", []):
        cells += _cells(name, grid, scale, where, settings)
    kept = _kept(cells, scale)
    attacks = tuple(tree.get("attacks", ATTACKS))
    return Plan(name, tree["title"], tree["show"], tree["label"], tuple(kept), tree.get("x", ""), attacks)


def _cells(plan: str, grid: Mapping[str, Any], scale: str, where: Where, settings: Sequence[str]) -> list[Cell]:
    """Return the cells of a grid."""
    rest = {key: value for key, value in grid.items() if key not in ("teacher", "lite")}
    teacher = find_teacher(grid.get("teacher") or grid["lite"])
    fixed = {"teacher.architecture": teacher.architecture}
    if "teacher" in grid:
        fixed["teacher.checkpoint"] = where(teacher.name)
    name = teacher.name if "teacher" in grid else None
    needs = [name] if name else []
    if "apd.teacher" in rest:
        needs.append(rest["apd.teacher"])
        path = Path(where(rest["apd.teacher"]))
        rest["apd.teacher"] = str(path if path.suffix else path / WEIGHTS)  # a folder may be trained first
    points = expand_tree({"recipe": teacher.data, "set": fixed, "grid": [rest]}, f"the plan {plan}")
    cells = [_cell(plan, name, point.recipe, scale, settings) for point in points]
    embedded = "rehearsal" in scales()[scale]
    return [dataclasses.replace(cell, needs=() if embedded else tuple(needs)) for cell in cells]


def _cell(plan: str, teacher: str | None, recipe: Recipe, scale: str, settings: Sequence[str]) -> Cell:
    plain = scaled(recipe, scale, plan)
    asked = plain.with_settings(settings)
    changed = find_method(asked.method).complete(asked)
    here = rehearsed(teacher, scale)
    keys, notes = (key_of(recipe, teacher), key_of(changed, here)), tuple(pace_notes(asked, changed))
    run, by_hand = run_name(here, changed, changed.training.seed), _changed_by_hand(plain, asked)
    return Cell(*keys, run, changed, (), _text(by_hand), _text(by_hand, MEASURED_BY), notes)


def run_name(teacher: str | None, recipe: Recipe, seed: int) -> str:
    """Name the run of a recipe with this seed by what it is, and by a hash of what it has that is not the default.

    So new settings change no name.
    """
    recipe = recipe.with_settings({"training.seed": seed})
    usual = flat(find_method(recipe.method).complete(Recipe(method=recipe.method)))
    unusual = {key: str(value) for key, value in flat(recipe).items() if value != usual.get(key)}
    known = {key: text for key, text in unusual.items() if key not in (*INCIDENTAL, "apd.teacher")}
    code = zlib.crc32(json.dumps([teacher, known], sort_keys=True).encode())
    return f"{teacher or recipe.teacher.architecture}-{_short(recipe)}-{code:08x}"


def _changed_by_hand(plain: Recipe, changed: Recipe) -> dict[str, Any]:
    """Return the settings in which a run is another than its plan's; another seed is none."""
    before, now = flat(plain), flat(changed)
    keys = [key for key in now if now[key] != before.get(key) and key not in (*INCIDENTAL, "training.seed")]
    return {key: now[key] for key in keys}


def _text(settings: Mapping[str, Any], sections: Sequence[str] | None = None) -> str:
    """Write settings, those of some sections or all."""
    own = {key: value for key, value in settings.items() if sections is None or key.partition(".")[0] in sections}
    return ", ".join(f"{key}={toml_value(value)}" for key, value in own.items())


def _dense(plan: str, name: str, scale: str, where: Where, settings: Sequence[str]) -> Cell:
    teacher = find_teacher(name)
    own = {"teacher.architecture": teacher.architecture, "teacher.checkpoint": where(name)}
    recipe = load_recipe(teacher.data).with_settings(own)
    here = find_teacher(rehearsed(name, scale) or name)
    dense = Key(teacher.data, teacher.architecture, name, TEACHER, None, 1.0, 0.0)
    plain = scaled(recipe, scale, plan)
    changed = plain.with_settings(settings)
    key = dataclasses.replace(dense, dataset=changed.data.name, architecture=here.architecture, teacher=here.name)
    by_hand = _text(_changed_by_hand(plain, changed), MEASURED_BY)
    return Cell(dense, key, here.name, changed, (here.name,), by_hand, by_hand)


def scaled(recipe: Recipe, scale: str, plan: str) -> Recipe:
    """Return a recipe of the paper's schedule as a plan has it at a scale."""
    about = scales()[scale]
    if "rehearsal" in about:
        recipe = _rehearsed(recipe, load_recipe(about["rehearsal"]))
    own = {"data": recipe.data.name, "methods": recipe.method, "plans": plan}
    for rule in about["rule"]:
        if all(value in rule.get(key, [value]) for key, value in own.items()):
            recipe = recipe.with_settings(rule["set"])
    return recipe


def scales() -> dict[str, Any]:
    """Return what is said of the scales."""
    return packaged("scales.toml")


def rehearsed(teacher: str | None, scale: str) -> str | None:
    """Return the teacher that stands in for another at a scale: in a rehearsal that is always the embedded one."""
    if teacher is None or "rehearsal" not in scales()[scale]:
        return teacher
    return next(name for name, known in known_teachers().items() if known.checkpoint)


def _rehearsed(recipe: Recipe, small: Recipe) -> Recipe:
    """Return a small recipe with what makes a cell of a plan what it is: its method, rate, mix ratio, and objective."""
    weights = {key: value for key, value in flat(recipe).items() if key.startswith("objective.")}
    off = {key: 0.0 for key in ("distillation", "hsic_x", "hsic_y") if not weights[f"objective.{key}"]}
    kept = {"classification": weights["objective.classification"], "balance": weights["objective.balance"], **off}
    changed = small.with_settings({"method": recipe.method, "sparsity.rate": recipe.sparsity.rate})
    changed = changed.with_settings({f"objective.{key}": value for key, value in kept.items()})
    method = find_method(recipe.method)
    if method.prunes:
        changed = changed.with_settings({"training.mix": recipe.training.mix})
    else:
        lite = {"pretrain.lite": recipe.sparsity.rate, "pretrain.epochs": 3, "pretrain.steps": 3}
        changed = changed.with_settings({**lite, "training.batch": 64})
    return method.complete(changed)


def _kept(cells: Sequence[Cell], scale: str) -> list[Cell]:
    """Return the cells that a scale keeps, each once."""
    about = scales()[scale]
    rates = about.get("rates")
    kept = [cell for cell in cells if rates is None or cell.measures or cell.paper.rate in rates]
    return list({cell.key: cell for cell in reversed(kept)}.values())[::-1] if "rehearsal" in about else kept


def key_of(recipe: Recipe, teacher: str | None) -> Key:
    """Return what tells the line of a run from others."""
    prunes = find_method(recipe.method).prunes
    architecture = find_teacher(teacher).architecture if teacher else recipe.teacher.architecture
    objective = objective_of(recipe) if recipe.method == "pwoa" else None
    mix = recipe.training.mix if prunes else 1.0
    return Key(recipe.data.name, architecture, teacher, recipe.method, objective, recipe.sparsity.rate, mix)


def objective_of(recipe: Recipe) -> str:
    """Name the terms of PwoA's objective that a recipe has."""
    weights = recipe.objective
    terms = ["distillation"] if weights.distillation else []
    terms += ["CE"] if weights.classification and not terms else []
    terms += ["HSIC"] if weights.hsic_x or weights.hsic_y else []
    terms += [f"{weights.classification:g} CE"] if weights.classification and weights.distillation else []
    return " + ".join(terms) + (", balanced" if weights.balance == "auto" else "")


def _short(recipe: Recipe) -> str:
    """Name a run by what it is."""
    objective = f"-{objective_of(recipe)}" if recipe.method == "pwoa" else ""
    mix = f"-mix{recipe.training.mix:g}" if find_method(recipe.method).prunes else "-lite"
    text = f"{recipe.method}{objective}-rate{recipe.sparsity.rate:g}{mix}-seed{recipe.training.seed}"
    return re.sub(r"[^\w.+-]+", "", text)


@cache
def published() -> list[dict[str, Any]]:
    """Return the paper's own numbers, a flat row for each line of its tables."""
    rows: list[dict[str, Any]] = parse_json((_FILES / "published.json").read_text(encoding="utf-8"), "published.json")
    return rows


def published_row(table: str, key: Key) -> dict[str, Any]:
    """Return the paper's own numbers for a line; an empty row where it has none."""
    for row in published():
        own = (row["table"], row["teacher"], row["method"], row["objective"], row["rate"], row["mix"])
        if own == (table, key.teacher, key.method, key.objective, key.rate, key.mix):
            return row
    elsewhere = table in ("naive", "lite", "mix")  # figures, of which the tables have some points
    own_tables = [row["table"] for row in published() if row["table"] not in ("pretrained", "apd", table)]
    found = [published_row(other, key) for other in dict.fromkeys(own_tables)] if elsewhere else []
    return next((row for row in found if row), {})


def packaged(name: str) -> dict[str, Any]:
    """Read a TOML file that comes with the plans."""
    tree: dict[str, Any] = parse_toml((_FILES / name).read_text(encoding="utf-8"), name)
    return tree
