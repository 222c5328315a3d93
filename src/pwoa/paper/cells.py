"""Cells: the lines of the tables, what tells one from another, the names of their runs, and the teachers they are of.

A run is named by its setup, which is all of its settings but the seed. So cells of several tables that ask for the same
share their runs, and no rows but those of one setup are ever averaged.
"""

import dataclasses
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from pwoa.errors import InputError, did_you_mean
from pwoa.methods import find_method
from pwoa.recipe import Recipe, flat
from pwoa.recipe.sections import INCIDENTAL
from pwoa.storage.reading import parse_toml
from pwoa.sweep.grid import MEASURED_BY, Point
from pwoa.sweep.rows import TEACHER

FILES = resources.files("pwoa.paper")


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
    """A line of a table, or a point of a figure: what the paper calls it, what it is at this scale, and its runs.

    setup: what its runs are called but for the seed, or the measurement of its teacher; the same for all cells with
    these settings. needs: the teachers that must be there. changed: the settings that were changed by hand, as
    (key, value), the seed aside. notes: what is trained otherwise than asked.
    """

    paper: Key
    key: Key
    setup: str
    recipe: Recipe
    needs: tuple[str, ...] = ()
    changed: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def measures(self) -> bool:
        """Whether it is a teacher, which is only measured."""
        return self.key.method == TEACHER

    @property
    def run(self) -> str:
        """The run behind it, by the name of its folder."""
        return self.setup if self.measures else f"{self.setup}-seed{self.recipe.training.seed}"

    @property
    def settings(self) -> str:
        """The settings that were changed by hand."""
        return ", ".join(f"{key}={value}" for key, value in self.changed)

    @property
    def dense(self) -> "Cell":
        """The line of its teacher, measured by the same settings."""
        own = tuple((key, value) for key, value in self.changed if is_measuring(key))
        setup = measurement_name(str(self.key.teacher), self.recipe)
        return Cell(self.paper.dense, self.key.dense, setup, self.recipe, (), own)

    @property
    def comparable(self) -> bool:
        """Whether it is on the paper's data, or a part of it: in a rehearsal, most are not."""
        return self.key.dataset.partition("-")[0] == self.paper.dataset

    @property
    def point(self) -> Point:
        """The run as a point of a sweep."""
        return Point(self.run, self.run, self.recipe, notes=self.notes)


@cache
def known_teachers() -> dict[str, Teacher]:
    """Return the teachers of the paper by name."""
    return {name: Teacher(name, **values) for name, values in packaged("teachers.toml").items()}


def find_teacher(name: str) -> Teacher:
    """Return the teacher of this name; an unknown one is an error."""
    if name not in known_teachers():
        raise InputError(f"no teacher {name!r} ({did_you_mean(name, list(known_teachers()))})")
    return known_teachers()[name]


def setup_name(teacher: str | None, recipe: Recipe) -> str:
    """Name the runs of a recipe by what they are, and by a hash of all but the seed that is not the default.

    So new settings change no name.
    """
    usual = flat(find_method(recipe.method).complete(Recipe(method=recipe.method)))
    passed = (*INCIDENTAL, "training.seed", "apd.teacher")
    known = {key: value for key, value in flat(recipe).items() if key not in passed and value != usual.get(key)}
    return f"{teacher or recipe.teacher.architecture}-{_short(recipe)}-{_hash(teacher, known)}"


def measurement_name(teacher: str, recipe: Recipe) -> str:
    """Name the measurement of a teacher, likewise."""
    usual, own = flat(Recipe()), flat(dataclasses.replace(recipe, evaluation=recipe.seeded_evaluation()))
    known = {key: value for key, value in own.items() if is_measuring(key) and value != usual.get(key)}
    return f"{teacher}-{_hash(teacher, known)}"


def setup_of(run: str) -> str:
    """Return the setup of a run: what it is called but for the seed."""
    return re.sub(r"-seed\d+$", "", run)


_OF_TRAINING = ("data.images", "data.validation", "data.augment", "teacher.minimum")
_UNMEASURED = (*INCIDENTAL, *_OF_TRAINING, "teacher.architecture", "evaluation.checks")


def is_measuring(key: str) -> bool:
    """Tell whether a setting says how accurate a teacher is found."""
    return key.partition(".")[0] in MEASURED_BY and key not in _UNMEASURED


def _hash(teacher: str | None, settings: Mapping[str, Any]) -> str:
    known = {key: str(value) for key, value in settings.items()}
    return f"{zlib.crc32(json.dumps([teacher, known], sort_keys=True).encode()):08x}"


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
    text = f"{recipe.method}{objective}-rate{recipe.sparsity.rate:g}{mix}"
    return re.sub(r"[^\w.+-]+", "", text)


def packaged(name: str) -> dict[str, Any]:
    """Read a TOML file that comes with the plans."""
    tree: dict[str, Any] = parse_toml((FILES / name).read_text(encoding="utf-8"), name)
    return tree
