"""The grids of benchmarks/ are the runs whose rows are in results/, with the intended settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.rows import load_rows
from pwoa.recipe import load_recipe, preset_for
from pwoa.recipe.sections import Recipe
from pwoa.sweep.grid import expand
from pwoa.sweep.rows import TEACHER, epochs_of

ROOT = Path(__file__).resolve().parents[2]
GRIDS = ROOT / "benchmarks"
TEACHER_FILE = ("teacher.checkpoint=teacher.pt",)
FASTER = {"cifar10": 3.0, "mnist": 1.0}
"""By how much learning rates of weights are higher than the preset's."""


def recipes(name: str, settings: Sequence[str] = ()) -> list[Recipe]:
    return [point.recipe for point in expand(GRIDS / f"{name}.toml", settings)]


def competition(dataset: str) -> list[Recipe]:
    return recipes(f"competition-{dataset}", TEACHER_FILE if dataset == "cifar10" else ())


@pytest.mark.parametrize("dataset", ["cifar10", "mnist"])
def test_the_competition_is_what_was_measured(dataset: str) -> None:
    """But for rows of an earlier form, and one longer run of PwoA."""
    measured = {
        (row["method"], row["rate"], row["mix"], row["seed"], row["epochs"], row.get("allocation") or "uniform")
        for row in load_rows(ROOT / "results" / "competition.json")
        if row["dataset"] == dataset and row["square"] == "reference" and row["method"] != TEACHER
    }
    measured = {run for run in measured if "," not in run[0] and run[4] != "10+30"}
    runs = [
        (recipe.method, recipe.sparsity.rate, recipe.training.mix, recipe.training.seed, epochs_of(recipe), allocation)
        for recipe in competition(dataset)
        for allocation in (recipe.sparsity.allocation,)
    ]
    assert len(runs) == len(set(runs)) == {"cifar10": 42, "mnist": 39}[dataset]
    assert set(runs) == measured


@pytest.mark.parametrize("dataset", ["cifar10", "mnist"])
def test_every_method_of_the_competition_has_its_preset(dataset: str) -> None:
    for recipe in competition(dataset):
        preset = load_recipe(preset_for(dataset, recipe.method))
        faster = FASTER[dataset]
        assert recipe.finetune.learning_rate == pytest.approx(faster * preset.finetune.learning_rate)
        if recipe.method in ("hydra", "harp"):
            assert recipe.search.learning_rate == preset.search.learning_rate == 0.1  # of scores, not of weights
        elif recipe.method != "magnitude":
            assert recipe.search.learning_rate == pytest.approx(faster * preset.search.learning_rate)
        for section in ("threat", "objective", "pretrain"):
            assert getattr(recipe, section) == getattr(preset, section)
        assert recipe.training.optimizer == preset.training.optimizer
        decay = preset.training.weight_decay if dataset == "cifar10" else 1e-4  # those for MNIST had it then
        assert recipe.training.weight_decay == decay
        assert recipe.data.validation == 1024
        last = ("autoattack",) if dataset == "mnist" else ()  # on CIFAR-10 it runs afterwards
        assert recipe.evaluation.attacks == ("natural", "pgd20", "cw", *last)
        assert recipe.evaluation.images == {"cifar10": 2000, "mnist": 0}[dataset]


@pytest.mark.parametrize("dataset", ["cifar10", "mnist"])
def test_rho_comes_to_its_limit_in_the_epochs_there_are(dataset: str) -> None:
    for recipe in competition(dataset):
        search = recipe.search
        updates = sum(epoch % search.interval == 0 for epoch in range(1, search.epochs))
        assert search.rho * search.rho_growth**updates == pytest.approx(search.rho_limit)


@pytest.mark.parametrize(("name", "values"), [("ablations", 5), ("allocations", 3)])
def test_the_smaller_grids_have_three_seeds_of_every_value(name: str, values: int) -> None:
    points = recipes(name)
    assert len(set(points)) == len(points) == 3 * values
    measured = [row for row in load_rows(ROOT / "results" / f"{name}.json") if row["method"] != TEACHER]
    names = {point.name for point in expand(GRIDS / f"{name}.toml")}
    assert len(measured) == len(points)
    assert names == {row["name"] for row in measured}


def test_the_choices_are_those_that_were_measured() -> None:
    rows = load_rows(ROOT / "results" / "choices.json")
    points = expand(GRIDS / "choices.toml")
    assert len(rows) == len(points) + 1
    assert {row["name"] for row in rows} == {TEACHER, *(point.name for point in points)}
    decays = {point.name: point.recipe.training.weight_decay for point in points}
    assert {name for name, decay in decays.items() if not decay} == {name for name in decays if "no_" in name}
