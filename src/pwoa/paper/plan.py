"""Plans: for each table and figure of the paper a sweep's grid, and what to show of it.

A plan is a TOML file. Its tables [[grid]] are those of a sweep, with two keys more: `teacher` names the teacher that is
pruned, `lite` the one beside which a network of as many parameters is trained from scratch. Each point of a grid is a
cell.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pwoa.errors import InputError, did_you_mean
from pwoa.methods import find_method
from pwoa.methods.pace import pace_notes
from pwoa.models.checkpoints.folder import WEIGHTS
from pwoa.paper.cells import (
    FILES,
    Cell,
    Key,
    find_teacher,
    is_measuring,
    key_of,
    known_teachers,
    measurement_name,
    packaged,
    setup_name,
)
from pwoa.recipe import Recipe, flat, load_recipe
from pwoa.recipe.sections import INCIDENTAL
from pwoa.recipe.settings import parse_setting, toml_value
from pwoa.storage.reading import parse_json
from pwoa.sweep.grid import check_known, expand_tree
from pwoa.sweep.rows import TEACHER

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
Where = Callable[[str], str]
"""The name of a teacher → its checkpoint; what is not there yet is named, too."""


@dataclass(frozen=True)
class Plan:
    """A table or figure: how it is shown, its label in the paper's source, its cells, and what a figure's x axis is.

    attacks: what its table has columns for. stand_in: what it is rehearsed on, if it is.
    """

    name: str
    title: str
    show: str
    label: str
    cells: tuple[Cell, ...]
    x: str = ""
    attacks: tuple[str, ...] = ATTACKS
    stand_in: str = ""

    @property
    def heading(self) -> str:
        """What its table and its figure are called."""
        return f"{self.title}: a rehearsal on {self.stand_in}" if self.stand_in else self.title

    def shows(self, row: Mapping[str, Any]) -> bool:
        """Tell whether a row may be shown, by the table that it was measured for."""
        return (row.get("table") == CURVES) == (self.name == CURVES)


def choose(names: Sequence[str]) -> list[str]:
    """Return the named plans, in the order of the paper; all for none."""
    for name in names:
        if name not in ORDER:
            raise InputError(f"no table or figure {name!r} ({did_you_mean(name, ORDER)}); `pwoa reproduce` lists them")
    return [name for name in ORDER if name in names or not names]


def load_plan(name: str, scale: str, where: Where, settings: Sequence[str] = ()) -> Plan:
    """Return a plan with its cells at a scale, with the teachers at their places.

    settings: as `section.key=value`, each for all runs of methods that use it.
    """
    given = dict(map(parse_setting, settings))
    check_known(given, "--set")
    tree = packaged(f"plans/{name}.toml")
    cells = [_dense(name, teacher, scale, where, given) for teacher in tree.get("teachers", [])]
    for grid in tree.get("grid", []):
        cells += _cells(name, grid, scale, where, given)
    kept = _kept(cells, scale)
    attacks = tuple(tree.get("attacks", ATTACKS))
    stand_in = scales()[scale].get("stand_in", "") if kept else ""
    return Plan(name, tree["title"], tree["show"], tree["label"], tuple(kept), tree.get("x", ""), attacks, stand_in)


def setups(plan: str, scale: str) -> frozenset[str]:
    """Return the setups of the runs that a plan has at a scale, as the presets are now."""
    return frozenset(cell.setup for cell in load_plan(plan, scale, str).cells)


def _cells(plan: str, grid: Mapping[str, Any], scale: str, where: Where, given: Mapping[str, Any]) -> list[Cell]:
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
    cells = [_cell(plan, name, point.recipe, scale, given) for point in points]
    embedded = "rehearsal" in scales()[scale]
    return [dataclasses.replace(cell, needs=() if embedded else tuple(needs)) for cell in cells]


def _cell(plan: str, teacher: str | None, recipe: Recipe, scale: str, given: Mapping[str, Any]) -> Cell:
    plain = scaled(recipe, scale, plan)
    method = find_method(plain.method)
    asked = plain.with_settings({key: value for key, value in given.items() if method.uses_setting(key)})
    trained, here = find_method(asked.method).complete(asked), rehearsed(teacher, scale)
    key, meant = key_of(trained, here), key_of(plain, here)
    for field in ("method", "objective", "rate", "mix"):
        own, other = getattr(meant, field), getattr(key, field)
        if own != other:
            raise InputError(f"--set: the lines of {plan} are told apart by the {field}; {own} would become {other}")
    notes = tuple(pace_notes(asked, trained))
    return Cell(key_of(recipe, teacher), key, setup_name(here, trained), trained, (), _by_hand(plain, asked), notes)


def _by_hand(plain: Recipe, changed: Recipe) -> tuple[tuple[str, str], ...]:
    """Return the settings in which a run is another than its plan's; another seed is none."""
    before, now = flat(plain), flat(changed)
    keys = [key for key in now if now[key] != before.get(key) and key not in (*INCIDENTAL, "training.seed")]
    return tuple((key, toml_value(now[key])) for key in keys)


def _dense(plan: str, name: str, scale: str, where: Where, given: Mapping[str, Any]) -> Cell:
    teacher = find_teacher(name)
    own = {"teacher.architecture": teacher.architecture, "teacher.checkpoint": where(name)}
    plain = scaled(load_recipe(teacher.data).with_settings(own), scale, plan)
    asked = plain.with_settings({key: value for key, value in given.items() if is_measuring(key) or key in INCIDENTAL})
    here = find_teacher(rehearsed(name, scale) or name)
    key = Key(asked.data.name, here.architecture, here.name, TEACHER, None, 1.0, 0.0)
    paper = Key(teacher.data, teacher.architecture, name, TEACHER, None, 1.0, 0.0)
    return Cell(paper, key, measurement_name(here.name, asked), asked, (here.name,), _by_hand(plain, asked))


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


@cache
def published() -> list[dict[str, Any]]:
    """Return the paper's own numbers, a flat row for each line of its tables."""
    rows: list[dict[str, Any]] = parse_json((FILES / "published.json").read_text(encoding="utf-8"), "published.json")
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
