"""What methods declare of themselves is true: the settings they use, their epochs, their files, their kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pwoa
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.methods import METHODS, find_method, find_pruning, find_training
from pwoa.methods.apd import Apd
from pwoa.methods.harp import Harp
from pwoa.methods.hydra import Hydra
from pwoa.recipe import Recipe, flat, load_recipe, preset_for
from pwoa.recipe.methods import ApdSettings, HarpSettings

Make = Callable[..., Recipe]
PRUNING = [name for name, method in METHODS.items() if method.prunes]
TRIED: dict[str, Any] = {
    "objective.distillation": 3.0,
    "search.rho": 0.7,
    "search.learning_rate": 0.02,
    "finetune.learning_rate": 0.02,
    "sparsity.allocation": "erk",
    "pretrain.beta": 1.0,
    "pretrain.step": 0.003,
    "pretrain.steps": 2,
    "pretrain.learning_rate": 0.3,
    "training.mix": 0.5,
}
USED = {
    "pwoa": {"objective.distillation", "search.rho", "search.learning_rate", "sparsity.allocation"},
    "advprune": {"search.rho", "search.learning_rate", "sparsity.allocation"},
    "hydra": {"search.learning_rate", "sparsity.allocation", "pretrain.beta", "pretrain.step", "pretrain.steps"},
    "harp": {"search.learning_rate"},
    "apd": {"search.learning_rate", "sparsity.allocation"},
    "magnitude": {"sparsity.allocation"},
}
BY_ALL = {"finetune.learning_rate", "training.mix"}


@pytest.mark.parametrize("method", PRUNING)
def test_a_setting_makes_a_difference_to_a_method_that_uses_it_and_to_no_other(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, method: str
) -> None:
    recipe = quick(method=method, training__mix=1.0, search__epochs=1, finetune__epochs=1, evaluation__images=4)

    def weights(settings: dict[str, Any], name: str) -> bytes:
        folder = tmp_path / name
        pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, settings=settings, folder=folder)
        return (folder / "model.safetensors").read_bytes()

    plain = weights({}, "plain")
    acting = {setting for setting, value in TRIED.items() if weights({setting: value}, setting) != plain}
    assert acting == USED[method] | BY_ALL
    assert {setting for setting in TRIED if find_method(method).uses_setting(setting)} == acting


@pytest.mark.parametrize("method", [name for name in METHODS if name not in PRUNING])
def test_a_setting_makes_a_difference_to_robust_training_that_uses_it_and_to_no_other(
    tmp_path: Path, tiny_data: Data, quick: Make, method: str
) -> None:
    settings = {key: value for key, value in TRIED.items() if key.startswith("pretrain.")}
    settings |= {"pretrain.growing": 2, "objective.hsic_x": 0.3, "pretrain.learning_rate": 0.002}
    if method == "hbar":
        settings |= {"objective.hsic": "plain", "objective.hsic_y": 0.3, "objective.points": ["0"]}
        settings |= {"objective.distillation": 3.0, "objective.classification": 0.5, "objective.hidden": 0.4}
    slow = {"pretrain__learning_rate": 0.001, "pretrain__warmup": 0}
    recipe = quick(method=method, pretrain__epochs=2, evaluation__images=4, **slow)

    def weights(settings: dict[str, Any], name: str) -> bytes:
        folder = tmp_path / name
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        pwoa.pretrain(network, tiny_data, recipe=recipe, settings=settings, folder=folder)
        return (folder / "model.safetensors").read_bytes()

    plain = weights({}, "plain")
    acting = {setting for setting, value in settings.items() if weights({setting: value}, setting) != plain}
    assert acting == {setting for setting in settings if find_method(method).uses_setting(setting)}


@pytest.mark.parametrize(
    ("method", "settings", "unused"),
    [
        ("magnitude", {"search.epochs": 9, "objective.hidden": 0.4}, "objective.hidden, search.epochs"),
        ("advprune", {"objective": {"hidden": 0.4}, "search.start_rate": 2.0}, "objective.hidden"),
        ("hydra", {"search.start_rate": 2.0, "pretrain.steps": 2}, "search.start_rate"),
        ("pwoa", {"pretrain.beta": 2.0, "sparsity.allocation": "lamp", "training.seed": 3}, "pretrain.beta"),
        ("magnitude", {"finetune.epochs": 2, "data.validation": 20, "teacher.minimum": 1.0}, ""),
        ("hydra", {"objective.points": ["hidden"], "objective.hsic": "plain"}, ""),  # of the HSIC plane
        ("harp", {"sparsity.allocation": "lamp"}, ""),  # which has a hint of its own
        ("pgd-at", {"pretrain.beta": 2.0, "search.epochs": 4}, "search.epochs, pretrain.beta"),
        ("natural", {"pretrain.step": 0.01}, "pretrain.step"),
        ("trades", {"training.mix": 0.5, "teacher.checkpoint": "given"}, "training.mix"),
        ("hbar", {"objective.hsic_x": 0.1, "objective.hidden": 0.4}, "objective.hidden"),
        ("mart", {"pretrain.beta": 2.0}, ""),
    ],
)
def test_a_run_names_the_settings_that_are_given_and_not_used(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    told: Any,
    method: str,
    settings: dict[str, Any],
    unused: str,
) -> None:
    short = {"search__epochs": 1, "finetune__epochs": 1, "pretrain__epochs": 1, "pretrain__steps": 1}
    recipe = replace(quick(method=method, evaluation__images=4, **short), given=frozenset())
    given: dict[str, Any] = {"recipe": recipe, "settings": settings, "folder": tmp_path / "run", "progress": told}
    if method in PRUNING:
        pwoa.prune(tiny_teacher, tiny_data, rate=4, **given)
    else:
        pwoa.pretrain(tiny_teacher, tiny_data, **given)
    lines = [line for line in told.said[0].splitlines() if "not use" in line or "is not used" in line]
    said = [f"note: {method} does not use {unused}"] if unused else []
    hint = ["note: harp learns how many weights each layer keeps; sparsity.allocation is not used"]
    assert lines == (hint if method == "harp" else said)


def test_every_setting_that_is_declared_is_one() -> None:
    known = flat(Recipe())
    for method in METHODS.values():
        for declared in (*method.common, *method.uses, *method.ignores):
            assert any(setting.startswith(declared) for setting in known), (method.name, declared)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_found_by_its_name_and_only_as_what_it_is(method: str) -> None:
    found = find_method(method)
    assert found.name == method
    right, wrong = (find_pruning, find_training) if found.prunes else (find_training, find_pruning)
    assert right(method) is found
    verb = "prune" if found.prunes else "pretrain"
    with pytest.raises(InputError, match=rf"{method} (prunes a robust|trains a) model.*: use pwoa {verb} "):
        wrong(method)


def test_the_epochs_of_each_stage() -> None:
    settings = {"search.epochs": 2, "finetune.epochs": 3, "pretrain.epochs": 4}
    epochs = {name: method.stage_epochs(Recipe().with_settings(settings)) for name, method in METHODS.items()}
    assert {name: epochs[name] for name in PRUNING} == dict.fromkeys(PRUNING, (2, 3)) | {"magnitude": (3,)}
    assert {epochs[name] for name in METHODS if name not in PRUNING} == {(4,)}


def test_a_recipe_is_completed_with_the_methods_own_settings() -> None:
    harp = Recipe().with_settings({"method": "harp", "harp.gamma": 0.5})
    assert Harp.complete(harp).own == (("gamma", 0.5), ("minimum", HarpSettings().minimum))
    assert dict(Apd.complete(Recipe().with_settings({"method": "apd"})).own).keys() == {
        *("weight", "temperature", "teacher")
    }
    with pytest.raises(InputError, match=r"unknown key 'harp\.gama' \(did you mean 'harp\.gamma'\?\)"):
        Harp.complete(Recipe().with_settings({"method": "harp", "harp.gama": 0.5}))
    with pytest.raises(InputError, match=r"hydra has no settings of its own, so no hydra\.gamma"):
        Hydra.complete(Recipe().with_settings({"method": "hydra", "hydra.gamma": 0.5}))


def test_the_other_teacher_of_apd_is_a_file_that_it_reads() -> None:
    recipe = Recipe().with_settings({"method": "apd"})
    assert Apd.files(recipe) == {}
    named = recipe.with_own(ApdSettings(teacher="natural.pt"))
    assert Apd.files(named) == {"apd.teacher": "natural.pt"}
    assert Harp.files(recipe) == {}


def test_another_file_of_the_same_name_is_another_run(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    file, folder = tmp_path / "natural.pt", tmp_path / "run"
    recipe = quick(method="apd", apd__teacher=str(file), search__epochs=1, finetune__epochs=1)
    torch.save(tiny_teacher.state_dict(), file)
    pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=folder)
    torch.save({name: 2 * value for name, value in tiny_teacher.state_dict().items()}, file)
    with pytest.raises(InputError, match=r"holds another run \(apd\.teacher: there "):
        pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=folder)


@pytest.mark.parametrize("data", ["mnist", "cifar10", "cifar100"])
@pytest.mark.parametrize("method", PRUNING)
def test_every_method_has_a_preset_for_every_data_set(data: str, method: str) -> None:
    preset = preset_for(data, method)
    assert preset is not None
    recipe, ours = load_recipe(preset), load_recipe(data)
    assert (recipe.method, recipe.data, recipe.threat, recipe.teacher) == (method, ours.data, ours.threat, ours.teacher)
    assert find_pruning(method).hints(recipe) == []


def test_what_differs_from_the_preset_is_told() -> None:
    recipe = load_recipe("cifar100").with_settings({"method": "hydra", "training.mix": 0.5, "training.seed": 3})
    (hint,) = Hydra.hints(recipe)
    assert hint == (
        "these settings differ from the preset cifar100-hydra: search.epochs = 50 (20), "
        "search.learning_rate = 0.01 (0.1), finetune.learning_rate = 0.005 (0.01)"
    )
    (hint,) = Hydra.hints(recipe.with_settings({"data.name": "mine"}))
    than = "there is no preset of hydra for mine; compared with cifar10-hydra these settings differ: "
    assert hint.startswith(than)
    assert "search.epochs = 50 (20)" in hint
    assert "training.mix = 0.5 (1.0)" in hint  # which nobody chose there
    apd = load_recipe("mnist-apd").with_settings({"apd.weight": 0.5, "search.rho": 3.0})
    assert Apd.hints(apd) == ["these settings differ from the preset mnist-apd: apd.weight = 0.5 (0.9)"]
