"""Sweeps: the grid, and real runs by the command line."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pwoa.cli import app
from pwoa.errors import InputError
from pwoa.methods import find_method
from pwoa.recipe import load_recipe, to_toml
from pwoa.report.table import text_table
from pwoa.runs.folder import Run
from pwoa.storage.folder import held
from pwoa.sweep import sweep
from pwoa.sweep.grid import expand
from pwoa.sweep.rows import fewer_images, spread

QUICK = """
recipe = "demo"
[set]
"search.epochs" = 1
"finetune.epochs" = 1
"training.batch" = 25
"data.validation" = 25
"evaluation.images" = 20
"evaluation.checks" = false
"evaluation.attacks" = ["natural", "pgd2"]
"pretrain.epochs" = 1
"pretrain.steps" = 1
"""

RESULT = {"images": 1, "training_seconds": 1.0, "device": "none"}


@pytest.fixture(scope="module")
def few(digits: Callable[[int, int], Path]) -> str:
    """A setting that names a folder of a few images."""
    return f'"data.name" = "{digits(100, 40)}"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "grid.toml"
    path.write_text(text)
    return path


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    text = (
        'recipe = "mnist"\n[set]\nfinetune.epochs = 7\n[grid]\nmethod = ["pwoa", "hydra"]\nsparsity.rate = [4, 16.5]\n'
    )
    points = expand(write(tmp_path, text))
    assert [point.name for point in points] == [
        "method=pwoa-rate=4",
        "method=pwoa-rate=16.5",
        "method=hydra-rate=4",
        "method=hydra-rate=16.5",
    ]
    assert [(point.recipe.method, point.recipe.sparsity.rate) for point in points] == [
        ("pwoa", 4.0),
        ("pwoa", 16.5),
        ("hydra", 4.0),
        ("hydra", 16.5),
    ]
    assert {point.recipe.finetune.epochs for point in points} == {7}
    assert {point.recipe.data.name for point in points} == {"mnist"}
    assert [point.name for point in expand(write(tmp_path, 'recipe = "demo"'))] == ["run"]


def test_a_grid_over_teachers(tmp_path: Path) -> None:
    text = """
    recipe = "cifar10"
    [grid]
    teacher = [
      { checkpoint = "/far/away/runs/a/model.safetensors" },
      { architecture = "wrn-34-10", checkpoint = "/far/away/runs/b/model.safetensors" },
    ]
    training.seed = [0, 1]
    """
    points = expand(write(tmp_path, text))
    assert [point.name for point in points] == [
        f"teacher={teacher}_model.safetensors-seed={seed}" for teacher in "ab" for seed in (0, 1)
    ]
    assert [point.recipe.teacher.architecture for point in points] == ["auto"] * 2 + ["wrn-34-10"] * 2
    assert points[3].recipe.teacher.checkpoint == "/far/away/runs/b/model.safetensors"
    assert [point.label for point in points] == [
        f"pwoa, rate 4, mix 0, teacher {teacher}/model.safetensors" for teacher in "aabb"
    ]


def test_a_grid_over_recipes_has_each_methods_own_settings(tmp_path: Path) -> None:
    text = '[set]\nteacher.checkpoint = "a.pt"\n[grid]\nrecipe = ["cifar10", "cifar10-hydra"]\ntraining.seed = [0, 1]\n'
    points = expand(write(tmp_path, text))
    assert [point.recipe.method for point in points] == ["pwoa", "pwoa", "hydra", "hydra"]
    assert [point.recipe.search.learning_rate for point in points] == [0.01, 0.01, 0.1, 0.1]
    assert {point.recipe.teacher.checkpoint for point in points} == {"a.pt"}
    assert points[2].name == "recipe=cifar10-hydra-seed=0"
    assert points[2].label == "hydra, rate 4, mix 1, recipe cifar10-hydra"


def test_without_a_recipe_there_is_the_preset_for_the_data(tmp_path: Path) -> None:
    text = '[set]\ndata.name = "mnist"\nfinetune.epochs = 3\n'
    (point,) = expand(write(tmp_path, text))
    assert point.recipe == load_recipe("mnist").with_settings({"finetune.epochs": 3})
    for axis in ('data.name = ["mnist", "cifar10"]', 'data = [{ name = "mnist" }, { name = "cifar10" }]'):
        points = expand(write(tmp_path, f"[grid]\n{axis}\n"))
        assert [point.recipe for point in points] == [load_recipe("mnist"), load_recipe("cifar10")]
    (point,) = expand(write(tmp_path, f'recipe = "demo"\n{text}'))
    assert point.recipe == load_recipe("demo").with_settings({"data.name": "mnist", "finetune.epochs": 3})


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        ("[grid]\nsparsity.rate = [4, 16]\n", [(4, 2), (12, 4)]),
        ("[set]\nfinetune.epochs = 3\n[grid]\nsparsity.rate = [4, 16]\n", [(4, 3), (12, 3)]),
        ("[set]\nsparsity.rate = 4\n[grid]\nsearch.epochs = [6, 9]\n", [(6, 2), (9, 2)]),
    ],
)
def test_low_rates_take_fewer_epochs_unless_the_file_sets_them(
    tmp_path: Path, text: str, epochs: list[tuple[int, int]]
) -> None:
    recipes = [point.recipe for point in expand(write(tmp_path, f'recipe = "cifar10-robust"\n{text}'))]
    assert [(recipe.search.epochs, recipe.finetune.epochs) for recipe in recipes] == epochs


def test_axes_with_the_same_last_word_have_their_whole_keys_as_names(tmp_path: Path) -> None:
    text = 'recipe = "demo"\n[grid]\nsearch.epochs = [1]\nfinetune.epochs = [2, 3]\nfinetune.learning_rate = [0.1]\n'
    points = expand(write(tmp_path, text))
    assert [point.name for point in points] == [
        f"search.epochs=1-finetune.epochs={epochs}-learning_rate=0.1" for epochs in (2, 3)
    ]
    assert points[0].label == "pwoa, rate 4, mix 0, search.epochs 1, finetune.epochs 2, learning_rate 0.1"


def test_a_method_of_robust_training_trains_lite_networks_each_once(tmp_path: Path) -> None:
    text = """
    recipe = "cifar10"
    [grid]
    method = ["magnitude", "trades"]
    teacher = [{ checkpoint = "a.pt" }, { checkpoint = "b.pt" }, { checkpoint = "c.pt", architecture = "vgg16" }]
    sparsity.rate = [4, 16]
    training.mix = [0.0, 0.5]
    """
    points = expand(write(tmp_path, text))
    pruned, lite = (
        [point for point in points if find_method(point.recipe.method).prunes is prunes] for prunes in (True, False)
    )
    assert len(pruned) == 3 * 2 * 2
    assert {point.recipe.pretrain.lite for point in pruned} == {1.0}
    assert [point.name for point in lite] == [
        "method=trades-rate=4",
        "method=trades-rate=16",
        "method=trades-teacher=vgg16-rate=4",
        "method=trades-teacher=vgg16-rate=16",
    ]
    assert [point.recipe.pretrain.lite for point in lite] == [4.0, 16.0, 4.0, 16.0]
    assert [point.recipe.teacher.architecture for point in lite] == ["resnet18"] * 2 + ["vgg16"] * 2
    assert lite[3].label == "trades (lite), rate 16, teacher vgg16"


@pytest.mark.parametrize("first", ['recipe = "demo"', 'set.data.name = "mnist-mini"', 'recipe = "mnist"'])
def test_a_lite_network_is_trained_as_the_teacher_of_its_data(tmp_path: Path, first: str) -> None:
    """The presets for pruning on MNIST have Adam, which with the learning rate of robust training ends at chance."""
    text = f'{first}\nset.pretrain.epochs = 7\n[grid]\nmethod = ["magnitude", "pgd-at"]\n'
    pruned, lite = (point.recipe for point in expand(write(tmp_path, text)))
    teacher = load_recipe("teacher-mnist")
    assert pruned.training.optimizer == "adam"
    assert lite.training == teacher.training
    assert lite.pretrain == dataclasses.replace(teacher.pretrain, epochs=7, lite=4.0)
    assert (lite.data, lite.threat) == (pruned.data, pruned.threat)


def test_a_recipe_of_ones_own_says_how_lite_networks_are_trained(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[data]\nname = 'mnist'\n[pretrain]\nlearning_rate = 0.3\n")
    text = f'recipe = "{tmp_path / "own.toml"}"\n[grid]\nmethod = ["trades"]\n'
    (point,) = expand(write(tmp_path, text))
    assert point.recipe.pretrain.learning_rate == 0.3


@pytest.mark.parametrize(
    "axis",
    [
        "search.epochs = [1, 2]",
        "finetune = [{ epochs = 1 }, { epochs = 2, learning_rate = 0.1 }]",
        'objective.balance = ["given", "auto"]',
        'sparsity.allocation = ["uniform"]',
        'sparsity.pattern = ["unstructured"]',
        "harp.gamma = [0.1, 0.2]",
        'apd.teacher = ["", "a.pt"]',
    ],
)
def test_how_others_prune_makes_no_second_lite_network(tmp_path: Path, axis: str) -> None:
    (point,) = expand(write(tmp_path, f'recipe = "cifar10"\n[grid]\nmethod = ["trades"]\n{axis}\n'))
    assert point.name == "method=trades"
    assert point.label == "trades (lite), rate 4"


@pytest.mark.parametrize(
    ("axis", "sizes", "label"),
    [
        ("pretrain.lite = [2, 8]", [2.0, 8.0], "pgd-at (lite), rate 2"),
        ("sparsity.rate = [2, 8]", [2.0, 8.0], "pgd-at (lite), rate 2"),
        ("pretrain.steps = [3]", [1.0], "pgd-at, rate 1, steps 3"),
    ],
)
def test_a_recipe_for_training_says_itself_how_small_the_network_is(
    tmp_path: Path, axis: str, sizes: list[float], label: str
) -> None:
    points = expand(write(tmp_path, f'recipe = "teacher-mnist"\n[grid]\n{axis}\n'))
    assert [point.recipe.pretrain.lite for point in points] == sizes
    assert [point.recipe.sparsity.rate for point in points] == sizes
    assert points[0].label == label


def test_settings_that_a_method_does_not_use_make_no_second_run(tmp_path: Path) -> None:
    grid = """
    method = ["pwoa", "advprune", "hydra", "apd", "harp", "magnitude"]
    search.epochs = [1, 2]
    search.rho = [0.1, 0.2]
    objective.distillation = [1.0, 2.0]
    harp.gamma = [0.1, 0.2]
    apd.weight = [0.5, 0.6]
    pretrain.beta = [1.0, 2.0]
    """
    points = expand(write(tmp_path, f'recipe = "cifar10"\n[grid]\n{grid}'))
    assert Counter(point.recipe.method for point in points) == {
        "pwoa": 2 * 2 * 2,
        "advprune": 2 * 2,
        "hydra": 2 * 2,
        "apd": 2 * 2,
        "harp": 2 * 2,
        "magnitude": 1,
    }


def test_the_same_value_in_other_words_is_one_run(tmp_path: Path) -> None:
    points = expand(write(tmp_path, 'recipe = "demo"\n[grid]\nsparsity.rate = [4, 4.0, 8]\ntraining.seed = [0, 1]\n'))
    assert [point.name for point in points] == [f"rate={rate}-seed={seed}" for rate in (4, 8) for seed in (0, 1)]


def test_what_a_method_is_not_meant_for_is_told_once(
    tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwoa.sweep.run_here", lambda tasks, ended, *rest: None)
    text = 'recipe = "cifar10"\n[set]\nsearch.epochs = 3\n[grid]\nmethod = ["pwoa", "hydra"]\ntraining.seed = [0, 1]\n'
    sweep(write(tmp_path, text), tmp_path / "runs", progress=told)
    notes = [line for line in told.said if line.startswith("note: ")]
    assert notes == ["note: these settings differ from the preset cifar10-hydra: search.epochs = 3 (20)"]
    text = 'recipe = "cifar10-robust"\n[grid]\nsparsity.rate = [4, 16]\ntraining.seed = [0, 1]\n'
    sweep(write(tmp_path, text), tmp_path / "paced", progress=told)
    (note,) = [line for line in told.said if line.startswith("note: ") and line not in notes]
    assert note.startswith("note: at rate 4, below 16, this recipe trains with fewer epochs (4 + 2, not 12 + 4) and ")


@pytest.mark.parametrize("data", ["mnist", "cifar10", "cifar100"])
@pytest.mark.parametrize("first", ['recipe = "{data}"', 'recipe = "{data}-harp"', 'set.data.name = "{data}"'])
def test_a_grid_over_methods_has_the_preset_of_each(tmp_path: Path, first: str, data: str) -> None:
    methods = ["pwoa", "advprune", "hydra", "harp", "apd", "magnitude"]
    text = f"{first.format(data=data)}\nset.sparsity.rate = 8\n[grid]\nmethod = {methods}\ntraining.mix = [0.2]\n"
    points = expand(write(tmp_path, text))
    assert [point.recipe.method for point in points] == methods
    for point in points:
        meant = load_recipe(data if point.recipe.method == "pwoa" else f"{data}-{point.recipe.method}")
        meant = find_method(meant.method).complete(meant)
        assert point.recipe == meant.with_settings({"sparsity.rate": 8, "training.mix": 0.2})


def test_a_recipe_of_ones_own_is_for_all_methods(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[data]\nname = 'cifar10'\n[search]\nlearning_rate = 0.3\n")
    points = expand(write(tmp_path, f'recipe = "{tmp_path / "own.toml"}"\n[grid]\nmethod = ["pwoa", "hydra"]\n'))
    assert [point.recipe.search.learning_rate for point in points] == [0.3, 0.3]


@pytest.mark.parametrize("where", ["[set]\nharp.gamma = 0.2\n[grid]", "[grid]\nharp = [{ gamma = 0.2 }]", "[grid]"])
def test_a_methods_own_section_goes_only_to_that_method(tmp_path: Path, where: str) -> None:
    text = f'recipe = "cifar10"\n{where}\nmethod = ["pwoa", "harp", "hydra", "trades"]\n'
    points = expand(write(tmp_path, text if "gamma" in text else f"{text}harp.gamma = [0.2]\n"))
    assert [(point.recipe.method, dict(point.recipe.own).get("gamma")) for point in points] == [
        *(("pwoa", None), ("harp", 0.2), ("hydra", None), ("trades", None)),
    ]
    assert [point for point in points if point.recipe.own] == [points[1]]


def test_hbar_is_trained_by_the_objective(tmp_path: Path) -> None:
    text = 'recipe = "cifar10"\n[grid]\nmethod = ["hbar"]\nobjective.hsic_x = [0.1, 0.2]\nsearch.epochs = [1, 2]\n'
    points = expand(write(tmp_path, text))
    assert [point.name for point in points] == ["method=hbar-hsic_x=0.1", "method=hbar-hsic_x=0.2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grids]\n", r"unknown key 'grids' \(did you mean 'grid'\?\)"),
        ("[grid]\nmethod = 'pwoa'\n", r"grid\.method = 'pwoa' is not a list of values"),
        ("[grid]\nmethod = ['pwoa', 'hidra']\n", r"unknown method 'hidra' \(did you mean 'hydra'\?\)"),
        ("[grid]\nsparsity.rate = []\n", r"grid\.sparsity\.rate = \[\] is not a list"),
        ("[grid]\nsparsity.rat = [4]\n", r"did you mean 'sparsity\.rate'"),
        ("[grid]\nteacher = ['a.pt']\n", r"'teacher' is a section"),
        ("[grid]\nobjective = [{}, 3]\n", r"'objective' is a section"),
        ("recipe = 'demo'\n[set]\nharp = 3\n", r"'harp' is a section"),
        ("recipe = 'demo'\n[set]\nharp.gama = 3\n", r"unknown key 'harp\.gama' \(did you mean 'harp\.gamma'\?\)"),
        ("[grid]\nmethod = ['trades']\nobjectve.hsic_x = [1]\n", r"did you mean 'objective\.hsic_x'"),
        ("[grid]\nmethod = ['trades']\nobjective = [{ hsicx = 1 }]\n", r"did you mean 'objective\.hsic_x'"),
        ("[grid]\ndata.name = ['a b', 'a_b']\n", "two runs would have the folder name=a_b"),
        ("[grid\n", "not valid TOML"),
        (
            "recipe = 'demo'\n[grid]\n"
            + "".join(f"{key} = [{'1, ' * 100}]\n" for key in ("search.epochs", "sparsity.rate", "training.seed")),
            "the grid has 1,000,000 runs, more than 10,000; leave some values out",
        ),
        ("a" + ".a" * 100_000 + " = 1", "not valid TOML .it is nested too deeply"),
        ("recipe = 'mnits'", "did you mean 'mnist'"),
        ("recipe = 3", "a recipe is the name of a preset or a TOML file, not 3"),
        ("[grid]\nrecipe = [['demo']]\n", "a recipe is the name of a preset or a TOML file"),
        ("set = 3", r"set = 3 is not a table; write \[set\]"),
        ("grid = ['pwoa']\n", "grid = .* is not a table"),
        ("[set]\nfinetune.epochs = 3\n[grid]\n", "nothing to run; give a recipe, a data set"),
        (
            "set.search.epochs = 3\ngrid.search.epochs = [4]\n",
            "epochs has a value for all runs and is in the grid too",
        ),
        ("recipe = 'demo'\n[grid]\nrecipe = ['mnist']\n", "recipe has a value for all runs and is in the grid too"),
        ("[set]\ndata.name = 3\n", "data.name = 3 is not a word"),
        ("[grid]\nmethod = [['pwoa', 'advprune']]\n", r"method = \['pwoa', 'advprune'\] is not a word"),
        ("recipe = 'demo'\n[set]\nmethod = ['pwoa', 'hydra']\n", "method = .* is not a word"),
        (
            "set.teacher.checkpoint = 'c.pt'\ngrid.teacher = [{ checkpoint = 'a.pt' }]\n",
            "teacher.checkpoint has a value for all runs and is in the grid too",
        ),
        (
            "[grid]\nobjective = [{ classification = 0.1 }, {}]\n'objective.classification' = [0.3]\n",
            "objective.classification is twice in the grid",
        ),
        (
            "[grid]\nmethod = ['trades']\nsparsity.rate = [4]\npretrain.lite = [8]\n",
            "sparsity.rate and pretrain.lite both say how small trades trains",
        ),
    ],
)
def test_a_wrong_grid_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        expand(write(tmp_path, text))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot read"):
        expand(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"on": "slurm"}, "--on slurm: a sweep runs on local or ray"),
        ({"address": "auto"}, "--address auto goes with --on ray"),
        ({"on": "ray", "jobs": 3}, "--jobs counts the runs at a time on this machine"),
    ],
)
def test_a_wrong_place_is_one_line(tmp_path: Path, place: dict[str, str], message: str) -> None:
    path = write(tmp_path, 'recipe = "demo"')
    with pytest.raises(InputError, match=message):
        sweep(path, tmp_path / "runs", **place)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["recipe.toml", "model.json"])
def test_a_sweep_is_not_made_in_the_folder_of_a_run(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 'recipe = "demo"\n[set]\nsparsity.rate = 100000\n')
    run = tmp_path / "run"
    run.mkdir()
    (run / name).touch()
    with pytest.raises(InputError, match="is the folder of a run; choose another --out"):
        sweep(path, run)
    assert [file.name for file in run.iterdir()] == [name]


def test_a_table_of_settings_may_have_a_label(tmp_path: Path) -> None:
    grid = """
    [grid]
    objective = [{ label = "CE + HSIC", distillation = 0, classification = 1 }, {}, { hsic_x = 0.0, hsic_y = 0.0 }]
    """
    points = expand(write(tmp_path, 'recipe = "mnist"\n' + grid))
    assert [point.label for point in points] == [
        "pwoa, rate 4, mix 0, objective CE + HSIC",
        "pwoa, rate 4, mix 0, objective unchanged",
        "pwoa, rate 4, mix 0, objective 0.0/0.0",
    ]
    assert points[0].name == "objective=CE_+_HSIC"
    assert points[0].axes == {"objective.distillation": 0, "objective.classification": 1}
    assert points[1].recipe == load_recipe("mnist")


def test_labels_stay_whole_and_with_networks_trained_from_scratch(tmp_path: Path) -> None:
    grid = """
    [grid]
    method = ["trades", "hbar"]
    training = [{ label = "plain" }, { label = "w/o average", average = 0.0 }]
    objective = [{ label = "less HSIC", hsic_x = 1e-5, hsic_y = 1e-5 }]
    teacher = [{ label = "TRADES w/o data", checkpoint = "a.pt", architecture = "lenet" }]
    """
    points = expand(write(tmp_path, 'recipe = "mnist"\n' + grid))
    assert [point.label for point in points] == [
        "trades (lite), rate 4, training plain, teacher lenet",
        "trades (lite), rate 4, training w/o average, teacher lenet",
        "hbar (lite), rate 4, training plain, objective less HSIC, teacher lenet",
        "hbar (lite), rate 4, training w/o average, objective less HSIC, teacher lenet",
    ]
    (pruned,) = expand(write(tmp_path, 'recipe = "mnist"\n[grid]\n' + grid.splitlines()[-2]))
    assert pruned.label == "pwoa, rate 4, mix 0, teacher TRADES w/o data"


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ('objective = [{ label = "" }]', r"in grid\.objective, label = '' is not a name"),
        ("objective = [{ label = 3 }]", r"in grid\.objective, label = 3 is not a name"),
        ('objective = [{ label = ["a"] }]', r"in grid\.objective, label = \['a'\] is not a name"),
        ('objectve = [{ label = "a" }]', r"grid\.objectve has a table among its values; only a section of the recipe"),
        (
            '"sparsity.rate" = [{ label = "a" }, 4]',
            r"grid\.sparsity\.rate has a table among its values; only a section",
        ),
        ('recipe = [{ label = "a" }]', r"grid\.recipe has a table among its values; only a section of the recipe can"),
    ],
)
def test_a_wrong_table_in_a_grid_is_one_line(tmp_path: Path, axis: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        expand(write(tmp_path, f"[grid]\n{axis}\n"))


def test_a_method_that_knows_no_allocation_runs_once(tmp_path: Path) -> None:
    grid = 'method = ["harp", "magnitude"]\nsparsity.allocation = ["erk", "lamp"]\n'
    path = write(tmp_path, f'recipe = "mnist"\n[grid]\n{grid}')
    assert [point.label for point in expand(path)] == [
        "harp, rate 4, mix 1",
        "magnitude, rate 4, mix 0, allocation erk",
        "magnitude, rate 4, mix 0, allocation lamp",
    ]
    finish(tmp_path / "runs", path, *[{"pruned": {}}] * 3)
    rows = sweep(path, tmp_path / "runs").rows
    assert [row["sparsity.allocation"] for row in rows] == [None, "erk", "lamp"]


def test_the_ablations_switch_the_terms_of_the_objective_on_and_off() -> None:
    """The four objectives of the paper's table, and the one with cross-entropy beside the others."""
    points = expand(Path(__file__).resolve().parents[2] / "benchmarks" / "ablations.toml")
    assert len(points) == 5 * 3
    chosen = [point.recipe.objective for point in points if point.name.endswith("-rate=8-seed=1")]
    published = load_recipe("mnist").objective
    assert [(o.distillation, o.hsic_x, o.hsic_y, o.classification) for o in chosen] == [
        (0.0, 0.0, 0.0, 1.0),
        (0.0, published.hsic_x, published.hsic_y, 1.0),
        (published.distillation, 0.0, 0.0, 0.0),
        (published.distillation, published.hsic_x, published.hsic_y, 0.0),
        (published.distillation, published.hsic_x, published.hsic_y, 0.1),
    ]
    assert all(point.recipe.training.mix == 0 and point.recipe.method == "pwoa" for point in points)


def test_means_and_deviations_are_over_rows_with_one_label() -> None:
    row = {"natural": 90.0, "pgd20": 50.0, "cw": None, "autoattack": None}
    rows = [("a", row), ("a", {**row, "pgd20": 54.0}), ("b", row)]
    assert spread(rows) == {
        "a": {"natural": "90.00 ± 0.00", "pgd20": "52.00 ± 2.83", "cw": "", "autoattack": ""},
        "b": {"natural": "90.00", "pgd20": "50.00", "cw": "", "autoattack": ""},
    }
    others = spread([("a", {**row, "pgd10": 60.0}), ("b", row)], ["natural", "pgd10"])
    assert others == {"a": {"natural": "90.00", "pgd10": "60.00"}, "b": {"natural": "90.00", "pgd10": ""}}


def finish(folder: Path, path: Path, *results: dict[str, Any]) -> list[Path]:
    """The folders of a grid's runs, as if they had ended with these results."""
    runs = []
    for point, result in zip(expand(path), results, strict=True):
        run = folder / point.name
        run.mkdir(parents=True)
        (run / "recipe.toml").write_text(to_toml(point.recipe))
        (run / "result.json").write_text(json.dumps({**RESULT, **result}))
        runs.append(run)
    return runs


def test_a_failure_of_another_day_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, 'recipe = "demo"\n')
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run.failure.json").write_text('{"error": "of another day"}')
    monkeypatch.setattr(
        "pwoa.sweep.run_here", lambda tasks, ended, *rest: [ended(task, task.reason()) for task in tasks]
    )
    failed = sweep(path, tmp_path / "runs").failed
    assert failed == {"run": f"it ended without a word; see {tmp_path / 'runs' / 'run.log'}"}


def test_a_folder_has_one_sweep_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path, 'recipe = "demo"\n')
    (run,) = finish(tmp_path / "runs", path, {"pruned": {}})
    with held(tmp_path / "runs"), pytest.raises(InputError, match=r"another process is working on .*runs; wait"):
        sweep(path, tmp_path / "runs")
    assert [row["name"] for row in sweep(path, tmp_path / "runs").rows] == [run.name]
    assert sorted(file.name for file in (tmp_path / "runs").iterdir()) == ["rows.json", "run"]


def test_settings_given_beside_the_grid_are_for_all_runs(tmp_path: Path) -> None:
    path = write(tmp_path, 'recipe = "demo"\n[set]\nfinetune.epochs = 5\n[grid]\nsparsity.rate = [2, 4]\n')
    points = expand(path, ["finetune.epochs=7", "data.folder=here", 'teacher={checkpoint = "a.pt"}'])
    assert [(point.recipe.sparsity.rate, point.recipe.finetune.epochs) for point in points] == [(2.0, 7), (4.0, 7)]
    assert {(point.recipe.data.folder, point.recipe.teacher.checkpoint) for point in points} == {("here", "a.pt")}
    runs = finish(tmp_path / "runs", path, {"pruned": {}}, {"pruned": {}})
    again = ["sweep", str(path), "--out", str(tmp_path / "runs"), "--set"]
    assert CliRunner().invoke(app, [*again, "training.device=cpu"]).exit_code == 0
    other = CliRunner().invoke(app, [*again, "finetune.epochs=7"])
    assert f"{runs[0]} holds another run (finetune.epochs: there 5, now 7)" in other.stderr.replace("\n", " ")
    for wrong, message in (
        ("sparsity.rate=8", "sparsity.rate has a value for all runs and is in the grid too"),
        ("finetune.epoch=8", "unknown key 'finetune.epoch'"),
        ("finetune.epochs", "is not of the form section.key=value"),
    ):
        with pytest.raises(InputError, match=message):
            expand(path, [wrong])


def test_every_attack_that_was_measured_has_a_column(tmp_path: Path) -> None:
    path = write(tmp_path, 'recipe = "demo"\n[grid]\nsparsity.rate = [2, 4]\n')
    finish(tmp_path / "runs", path, {"pruned": {"natural": 90.0}}, {"pruned": {"natural": 80.0, "pgd10": 60.0}})
    done = CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path / "runs")])
    first, second = json.loads((tmp_path / "runs" / "rows.json").read_text())
    assert (first["natural"], first["pgd20"], first["cw"], first["autoattack"]) == (90.0, None, None, None)
    assert (second["natural"], second["pgd20"], second["pgd10"]) == (80.0, None, 60.0)
    assert "PGD-10" in done.output
    assert "60.00" in done.output
    assert "PGD-20" not in done.output


def test_the_table_tells_which_attacks_saw_fewer_images(tmp_path: Path) -> None:
    path = write(tmp_path, 'recipe = "demo"\n[grid]\nsparsity.rate = [2, 4]\n')
    measured = {"images": 40, "pruned": {"natural": 90.0, "strong": 50.0, "worst": 50.0}}
    results = ({**measured, "fewer": {"strong": 10, "worst": worst}} for worst in (10, 20))
    finish(tmp_path / "runs", path, *results)
    assert sweep(path, tmp_path / "runs").fewer == {"strong": 10}
    done = CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path / "runs"), "--no-report"])
    for part in ("┃ strong, ┃ ┃", "┃ first ┃ worst ┃", "┃ natural ┃ 10 ┃ case ┃"):
        assert part in " ".join(done.output.split())


def test_rows_without_an_attack_have_no_say_in_how_many_images_it_saw() -> None:
    strong = {"natural": 90.0, "strong": 50.0}
    few = {**strong, "n_strong": 10}
    assert fewer_images([few, {"natural": 80.0, "strong": None}, few]) == {"strong": 10}
    assert fewer_images([few, strong]) == fewer_images([strong]) == {}


def test_finished_runs_are_skipped_and_failed_ones_left_out(tmp_path: Path, few: str, told: Any) -> None:
    """Real runs: one prunes, one fails, and one trains a Lite network."""
    grid = '[grid]\nmethod = ["magnitude", "pgd-at"]\nsparsity.rate = [64, 100000]\n'
    path = write(tmp_path, QUICK + few + grid)
    found = sweep(path, tmp_path / "runs", retries=0, progress=told)
    teacher, pruned, lite, narrowest = found.rows
    assert set(pruned) == {
        *("name", "label", "dataset", "architecture", "teacher", "method", "rate", "budget"),
        *("overall_rate", "macs_rate", "mix", "seed", "epochs"),
        *("strong", "worst"),
        *("natural", "pgd20", "cw", "autoattack", "pgd2", "n", "seconds", "device"),
    }
    assert (pruned["method"], pruned["rate"], pruned["n"], pruned["mix"]) == ("magnitude", 64.0, 20, 0.0)
    assert (pruned["architecture"], pruned["teacher"], pruned["pgd20"]) == ("lenet", "embedded", None)
    assert (lite["method"], lite["rate"], lite["teacher"], lite["mix"]) == ("pgd-at", 64.0, None, 1.0)
    assert lite["architecture"].startswith("lenet@0.")
    assert set(lite) == {*pruned, "parameters"}
    assert lite["parameters"] > narrowest["parameters"] > 0
    assert narrowest["rate"] == 100000.0
    assert list(found.failed) == ["method=magnitude-rate=100000"]
    assert "leaves layer" in found.failed["method=magnitude-rate=100000"]
    assert told.said[0] == f"4 runs, 0 finished before; sweep folder, with a log for each run: {tmp_path / 'runs'}"
    accuracies = ", ".join(f"{name} {pruned[name]:.1f} %" for name in ("natural", "pgd2", "strong", "worst"))
    notes, ran = told.said[1:2], told.said[2:]
    assert notes[0].startswith("note: there is no preset of magnitude for ")
    assert ran[0] == f"method=magnitude-rate=64: {accuracies}, 1 of 4 runs"
    assert ran[1].startswith("method=magnitude-rate=100000 failed: rate 100000 leaves layer")
    assert [line.rpartition(", ")[2] for line in ran[2:]] == ["2 of 4 runs", "3 of 4 runs"]
    assert json.loads((tmp_path / "runs" / "rows.json").read_text()) == found.rows
    assert set(teacher) == set(pruned)
    assert (teacher["method"], teacher["rate"], teacher["epochs"], teacher["seconds"]) == ("teacher", 1.0, "0", 0.0)
    assert teacher["natural"] > 90 > pruned["pgd2"]
    assert list(found.table) == [
        "teacher",
        "magnitude, rate 64, mix 0",
        "pgd-at (lite), rate 64",
        "pgd-at (lite), rate 1e+05",
    ]
    assert [cells["overall_rate"] for cells in found.table.values()] == ["1", f"{pruned['overall_rate']:.4g}", "", ""]
    assert [cells["macs_rate"] for cells in found.table.values()] == ["1", f"{pruned['macs_rate']:.4g}", "", ""]
    assert [column.header for column in text_table(found.table).columns[1:3]] == ["overall", "MACs"]

    result = tmp_path / "runs" / "method=magnitude-rate=64" / "result.json"
    before = result.stat().st_mtime_ns
    done = CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path / "runs")])
    assert "4 runs, 3 finished before" in done.output.replace("\n", " ")
    assert "pgd-at (lite), " in done.output
    assert done.exit_code == 1
    assert "error: 1 of the runs failed" in done.stderr
    assert result.stat().st_mtime_ns == before

    changed = write(tmp_path, QUICK + few + '"finetune.learning_rate" = 0.02\n' + grid)
    differs = r"holds another run \(finetune\.learning_rate: there 0\.01, now 0\.02\); choose another --out"
    with pytest.raises(InputError, match=differs):
        sweep(changed, tmp_path / "runs")


def test_runs_that_recorded_the_rate_their_epochs_are_for_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr("pwoa.sweep.run_here", lambda tasks, *rest: begun.extend(task.name for task in tasks))
    grid = write(tmp_path, 'recipe = "cifar10-robust"\n[grid]\nsparsity.rate = [16, 64]\n')
    for point in expand(grid):
        assert point.recipe.search.full_rate == 0
        then = point.recipe.with_settings({"search.full_rate": 16})
        Run(tmp_path / "runs" / point.name).begin(then, {})
    sweep(grid, tmp_path / "runs")
    assert begun == ["rate=16", "rate=64"]


def test_runs_that_began_before_a_method_had_more_settings_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr("pwoa.sweep.run_here", lambda tasks, *rest: begun.extend(task.name for task in tasks))
    text = '[set]\nmethod = "lbgat"\ndata.name = "mnist-mini"\n[grid]\ntraining.seed = [0]\n'
    grid = write(tmp_path, text)
    (point,) = expand(grid)
    assert point.recipe.own
    Run(tmp_path / "runs" / point.name).begin(dataclasses.replace(point.recipe, own=()), {})
    sweep(grid, tmp_path / "runs")
    assert begun == [point.name]


def test_rows_are_told_apart_by_the_values_of_the_grid(tmp_path: Path) -> None:
    grid = """
    method = ["pwoa", "trades"]
    finetune.learning_rate = [0.0, 0.1]
    teacher = [{ checkpoint = "a.pt", mean = "0.5" }]
    objective = [{ label = "as ever" }]
    recipe = ["demo"]
    training.seed = [3]
    """
    path = write(tmp_path, f"[grid]\n{grid}")
    lite = {"accuracy": {}, "architecture": "lenet@0.5", "parameters": 7}
    runs = finish(tmp_path / "runs", path, {"pruned": {}}, {"pruned": {}}, lite)
    rows = sweep(path, tmp_path / "runs").rows
    assert [row["name"] for row in rows] == [run.name for run in runs]
    assert [row["finetune.learning_rate"] for row in rows] == [0.0, 0.1, None]
    assert [row["teacher.mean"] for row in rows] == ["0.5", "0.5", "0.5"]
    assert [row["recipe"] for row in rows] == ["demo"] * 3
    assert [row.get("parameters") for row in rows] == [None, None, 7]
    assert {"method", "seed", "teacher"} <= set(rows[0])
    assert not {"training.seed", "teacher.checkpoint"} & set(rows[0])


def test_a_row_has_what_a_table_of_the_grid_leaves_as_it_is(tmp_path: Path) -> None:
    grid = 'objective = [{ label = "plain" }, { label = "more", temperature = 4.0 }]'
    path = write(tmp_path, f'recipe = "demo"\n[grid]\n{grid}')
    finish(tmp_path / "runs", path, {"pruned": {}}, {"pruned": {}})
    rows = sweep(path, tmp_path / "runs").rows
    assert [row["objective.temperature"] for row in rows] == [load_recipe("demo").objective.temperature, 4.0]
    assert not any(key.endswith(".label") for row in rows for key in row)
    assert rows[1]["label"] == "pwoa, rate 4, mix 0, objective more"
    (point,) = expand(write(tmp_path, f'recipe = "demo"\n[grid]\nmethod = ["hbar"]\n{grid}'))
    assert point.axes == {}  # it has no temperature
    grid = grid.replace("temperature", "hsic_x")
    path = write(tmp_path, f'recipe = "demo"\n[grid]\nmethod = ["hbar", "trades"]\n{grid}')
    lite = {"accuracy": {}, "architecture": "lenet@0.5", "parameters": 7}
    finish(tmp_path / "lite", path, lite, lite, lite)
    rows = sweep(path, tmp_path / "lite").rows
    assert [row["objective.hsic_x"] for row in rows] == [load_recipe("demo").objective.hsic_x, 4.0, None]


def test_each_teacher_has_a_line_for_each_way_it_is_measured(tmp_path: Path) -> None:
    grid = """
    teacher = [{ label = "A", checkpoint = "a.pt" }, { label = "B", checkpoint = "b.pt" }]
    threat.radius = [0.1, 0.2]
    sparsity.rate = [2, 4]
    training.seed = [0, 1]
    """
    path = write(tmp_path, f'recipe = "demo"\n[grid]\n{grid}')
    results = [{"teacher": {"natural": 90.0 + number}, "pruned": {"natural": 80.0}} for number in range(16)]
    finish(tmp_path / "runs", path, *results)
    found = sweep(path, tmp_path / "runs")
    teachers = [row for row in found.rows if row["method"] == "teacher"]
    assert [(row["teacher"], row["threat.radius"], row["seed"], row["natural"]) for row in teachers] == [
        *(("a.pt", 0.1, 0, 90.0), ("a.pt", 0.1, 1, 91.0), ("a.pt", 0.2, 0, 94.0), ("a.pt", 0.2, 1, 95.0)),
        *(("b.pt", 0.1, 0, 98.0), ("b.pt", 0.1, 1, 99.0), ("b.pt", 0.2, 0, 102.0), ("b.pt", 0.2, 1, 103.0)),
    ]
    assert list(found.table)[:5] == [
        *(f"teacher, teacher {name}, radius {radius}" for name in "AB" for radius in (0.1, 0.2)),
        "pwoa, rate 2, mix 0, teacher A, radius 0.1",
    ]
    assert found.table["teacher, teacher A, radius 0.1"]["natural"] == "90.50 ± 0.71"


def test_a_label_is_printed_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, 'recipe = "demo"\n[grid]\nobjective = [{ label = "[/x] a [hsic]" }]')
    finish(tmp_path / "runs", path, {"pruned": {"natural": 90.0}})
    done = CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path / "runs")], env={"COLUMNS": "200"})
    assert "objective [/x] a [hsic]" in done.output


@pytest.mark.parametrize("text", ["{", "[]", "{}", "3", '{"pruned": 3}', '{"pruned": {}}', "\xff"])
def test_a_damaged_result_is_a_failure_of_one_run(tmp_path: Path, told: Any, text: str) -> None:
    path = write(tmp_path, 'recipe = "demo"\n[grid]\nsparsity.rate = [2, 4]\n')
    damaged, _ = finish(tmp_path / "runs", path, {}, {"pruned": {}})
    (damaged / "result.json").write_bytes(text.encode("latin-1"))
    found = sweep(path, tmp_path / "runs", progress=told)
    assert [row["rate"] for row in found.rows] == [4.0]
    reason = f"{damaged / 'result.json'} is damaged; remove {damaged} to run it again"
    assert found.failed == {"rate=2": reason}
    assert told.said[-1] == f"rate=2 failed: {reason}"


def test_a_run_whose_recipe_is_gone_is_a_failure_of_one_run(tmp_path: Path) -> None:
    path = write(tmp_path, 'recipe = "demo"\n[grid]\nsparsity.rate = [2, 4]\n')
    damaged, _ = finish(tmp_path / "runs", path, {"pruned": {}}, {"pruned": {}})
    (damaged / "recipe.toml").unlink()
    found = sweep(path, tmp_path / "runs")
    assert [row["rate"] for row in found.rows] == [4.0]
    assert found.failed == {"rate=2": f"cannot read {damaged / 'recipe.toml'}: No such file or directory"}


def test_what_a_run_chose_itself_makes_it_no_other(tmp_path: Path) -> None:
    path = write(tmp_path, 'recipe = "demo"\n[set]\nteacher.architecture = "auto"\n')
    (point,) = expand(path)
    (folder,) = finish(tmp_path / "runs", path, {"pruned": {}})
    (folder / "recipe.toml").write_text(to_toml(point.recipe.with_settings({"teacher.architecture": "lenet"})))
    assert [row["architecture"] for row in sweep(path, tmp_path / "runs").rows] == ["lenet"]


LONG = '"training.checkpoint_seconds" = 0\n[grid]\nfinetune.epochs = [2000]\n'


def begun(folder: Path, few: str, before: Callable[[], object] | None = None) -> subprocess.Popen[str]:
    """The sweep of a grid with one long run, which has begun; `before` is called in its process before it starts."""
    path = write(folder.parent, QUICK.replace('"finetune.epochs" = 1\n', "") + few + LONG)
    command = [sys.executable, "-m", "pwoa", "sweep", str(path), "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before)
    while not (folder / "epochs=2000" / "checkpoint" / "state.pt").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, "stopped; the same command goes on\n"),
        (signal.SIGTERM, 143, "ended by SIGTERM; start the same command again to go on\n"),
    ],
)
def test_ctrl_c_and_sigterm_stop_the_runs_to_be_resumed(
    tmp_path: Path, few: str, number: signal.Signals, code: int, line: str
) -> None:
    process = begun(tmp_path / "runs", few)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert (out + err).endswith(line)
    assert "Traceback" not in err
    assert "stopped; the same command" in (tmp_path / "runs" / "epochs=2000.log").read_text()


def test_runs_of_a_background_job_of_a_shell_stop_to_be_resumed(tmp_path: Path, few: str) -> None:
    process = begun(tmp_path / "runs", few, before=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    log = (tmp_path / "runs" / "epochs=2000.log").read_text()
    assert "stopped; the same command" in log
    assert "Warning" not in log


def test_when_the_sweep_is_killed_its_runs_end_to_be_resumed(tmp_path: Path, few: str) -> None:
    process = begun(tmp_path / "runs", few)
    process.kill()
    process.communicate()
    log, limit = tmp_path / "runs" / "epochs=2000.log", time.monotonic() + 30
    while not log.read_text().endswith("ended by SIGTERM; start the same command again to go on\n"):
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.05)
    assert "Traceback" not in log.read_text()


def test_a_teacher_is_measured_once_for_all_runs_that_measure_it_alike(
    tmp_path: Path, few: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'{QUICK}{few}"evaluation.seed" = 3\n[grid]\nsparsity.rate = [2, 4]\n'
    found = sweep(write(tmp_path, text), tmp_path / "runs")
    (shared,) = (tmp_path / "runs" / "teachers").iterdir()
    kept = [
        json.loads((tmp_path / "runs" / f"rate={rate}" / "evaluation/teacher/result.json").read_text())
        for rate in (2, 4)
    ]
    assert kept == [json.loads((shared / "result.json").read_text())] * 2
    assert len(found.rows) == 1 + 2


def test_when_the_time_is_over_there_are_the_rows_so_far(tmp_path: Path, few: str, told: Any) -> None:
    path = write(tmp_path, f"{QUICK}{few}[grid]\nsparsity.rate = [2, 4]\n")
    found = sweep(path, tmp_path / "runs", minutes=1e-6, progress=told)
    assert (found.rows, found.failed, found.left) == ([], {}, ("rate=2", "rate=4"))
    assert told.said[-1] == "the time is over; 2 runs left, with which the same command goes on"
    with pytest.raises(InputError, match="--minutes 0: give a number above 0"):
        sweep(path, tmp_path / "runs", minutes=0)
