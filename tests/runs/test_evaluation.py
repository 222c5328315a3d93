"""The evaluations at the end of a run: kept as `pwoa evaluate` keeps them, resumed, and read back from older runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pwoa
from pwoa.data.images import Data
from pwoa.evaluation import folder as evaluation_folder
from pwoa.evaluation.scores import load_verdicts
from pwoa.progress import Progress
from pwoa.recipe import Recipe, load_recipe, recorded_recipe, records_recipe
from pwoa.runs.folder import Result

Make = Callable[..., Recipe]
SHORT: dict[str, Any] = {"search__epochs": 1, "finetune__epochs": 1}
GATE = 1
"""The step in which the teacher is checked before anything is pruned."""
TRAINING_STEPS = 8
"""Of two epochs of `quick`: 72 images in batches of 16."""
BATCHES = 3
"""Of the 48 test images, in batches of 16."""


def read(file: Path) -> Any:
    return json.loads(file.read_text())


def without_time(value: Any) -> Any:
    """A result without what another computation of the same takes another time for."""
    if isinstance(value, dict):
        return {key: without_time(item) for key, item in value.items() if not key.endswith(("seconds", "checksum"))}
    return [without_time(item) for item in value] if isinstance(value, list) else value


def by_attack(accuracies: dict[str, float]) -> dict[str, float]:
    """Return the accuracies without that under all attacks together."""
    return {attack: accuracy for attack, accuracy in accuracies.items() if attack != "worst"}


def shape(value: Any) -> Any:
    """The keys of nested objects, and the types of what is in them."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)


def assert_same_verdicts(there: Path, here: Path) -> list[str]:
    """Return of which attacks."""
    (right, about), (again, about_again) = (load_verdicts(folder / "verdicts.safetensors") for folder in (there, here))
    assert about == about_again
    assert list(right) == list(again)
    assert all(torch.equal(verdicts, again[attack]) for attack, verdicts in right.items())
    return list(right)


@pytest.mark.parametrize("at", [1, 4, 5, 9, 12, 13, 17, 21])
def test_a_run_killed_while_it_evaluates_resumes_to_the_same_result(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    killed: Callable[[int], Progress],
    told: Any,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
) -> None:
    """In each batch of the teacher's images, and in each of the pruned model's; a batch has about four steps."""
    monkeypatch.setattr(evaluation_folder, "SAVE_SECONDS", 0.0)
    recipe = quick(evaluation__batch=16, evaluation__attacks=["natural", "fgsm", "pgd2"], **SHORT)
    whole = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "whole")
    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=cut, progress=killed(GATE + TRAINING_STEPS + at))
    assert not (cut / "result.json").exists()
    teacher, model = cut / "evaluation" / "teacher", cut / "evaluation" / "model"
    stopped = model if (teacher / "result.json").exists() else teacher
    assert (stopped == model) == (at > 4 * BATCHES)
    assert (stopped / "evaluation.json").exists()
    assert not (stopped / "result.json").exists()
    saved = (stopped / "progress.safetensors").exists()
    assert saved == ((at - 1) % (4 * BATCHES) >= 4)
    weights = (cut / "model.safetensors").read_bytes()

    resumed = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=cut, progress=told)
    assert (f"resuming {stopped}" in told.said) == saved
    assert (f"{teacher} is finished, and is used again" in told.said) == (stopped == model)
    assert without_time(resumed.summary) == without_time(whole.summary)
    assert (cut / "model.safetensors").read_bytes() == weights
    for role in ("teacher", "model"):
        there, here = whole.folder / "evaluation" / role, cut / "evaluation" / role
        assert without_time(read(here / "result.json")) == without_time(read(there / "result.json"))
        assert_same_verdicts(there, here)
        assert not (here / "progress.safetensors").exists()


def test_a_training_killed_while_it_evaluates_resumes_to_the_same_result(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, killed: Callable[[int], Progress], told: Any
) -> None:
    recipe = quick(method="pgd-at", pretrain__epochs=2, pretrain__steps=1, evaluation__batch=16)
    whole = pwoa.pretrain(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "whole")
    progress = killed(TRAINING_STEPS + 2)
    with pytest.raises(KeyboardInterrupt):
        pwoa.pretrain(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "cut", progress=progress)
    assert not (tmp_path / "cut" / "result.json").exists()
    resumed = pwoa.pretrain(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "cut", progress=told)
    assert "resuming" in told.said
    assert without_time(resumed.summary) == without_time(whole.summary)


def test_an_evaluation_of_a_run_is_one_as_evaluate_makes_it(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    recipe = quick(evaluation__checks=True, evaluation__radii=[0.02], **SHORT)
    result = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run")
    for role, network in (("model", result.model), ("teacher", tiny_teacher)):
        place, other = result.folder / "evaluation" / role, tmp_path / role
        scores = pwoa.evaluate(network, tiny_data, recipe=recipe, device="cpu", folder=other)
        assert {path.name for path in place.iterdir()} == {path.name for path in other.iterdir()}
        assert read(place / "evaluation.json") == read(other / "evaluation.json")
        there, here = read(place / "result.json"), read(other / "result.json")
        assert shape(there) == shape(here)
        assert without_time(there | {"name": ""}) == without_time(here)
        assert result.summary["pruned" if role == "model" else role] == scores.accuracies
        assert assert_same_verdicts(place, other) == ["natural", "pgd2", "natural@0.02", "pgd2@0.02"]
    findings = [warning for warning in result.summary["warnings"] if warning["check"] != "thin layers"]
    assert findings == read(result.folder / "evaluation" / "model" / "result.json")["warnings"]


def test_evaluate_gives_back_what_the_run_has_measured(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    class Refusing(Progress):
        def start(self, task: str, total: int, done: int = 0) -> None:
            assert task.startswith("loading"), "nothing should be measured again"

    result = pwoa.prune(tiny_teacher, tiny_data, recipe=quick(**SHORT), folder=tmp_path / "run")
    scores = pwoa.evaluate(
        result.folder,
        tiny_data,
        architecture=type(tiny_teacher)(),
        device="cpu",
        folder=result.folder / "evaluation" / "model",
        progress=Refusing(),
    )
    assert scores.accuracies == result.summary["pruned"]


def test_warnings_are_in_the_result_of_a_run(tmp_path: Path, tiny_data: Data, quick: Make) -> None:
    """Logits so large that float32 has no gradient left: what makes a model only look robust."""
    torch.manual_seed(0)
    masking = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    with torch.no_grad():
        for parameter in masking.parameters():
            parameter.mul_(1e6)
    assert Recipe().evaluation.checks
    recipe = quick(method="pgd-at", evaluation__checks=True, pretrain__epochs=1, pretrain__learning_rate=0.0)
    result = pwoa.pretrain(masking, tiny_data, recipe=recipe, folder=tmp_path / "run")
    assert result.summary["warnings"]
    assert {"check", "message"} <= result.summary["warnings"][0].keys()
    assert read(result.folder / "result.json")["warnings"] == result.summary["warnings"]
    assert read(result.folder / "evaluation" / "model" / "result.json")["unreliable"] is True


@pytest.mark.parametrize(
    ("attacks", "measured"),
    [("pgd2", ["natural", "pgd2"]), ("paper", ["natural", "fgsm", "pgd10", "pgd20", "cw", "autoattack"])],
)
def test_the_attacks_of_a_recipe_mean_what_they_mean_to_evaluate(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, attacks: str, measured: list[str]
) -> None:
    recipe = quick(evaluation__attacks=[attacks], evaluation__images=8, **SHORT)
    result = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run")
    assert list(result.summary["pruned"]) == [*measured, "worst"]
    scores = pwoa.evaluate(result.model, tiny_data, recipe=recipe, device="cpu")
    assert scores.accuracies == result.summary["pruned"]


def make_older(folder: Path) -> None:
    """Turn a run into one as version 0.2 kept it.

    Its recipe had the sections of HARP and APD whatever the method, and fewer keys for evaluation; the verdicts were
    beside the recipe, there were no evaluation folders, no warnings in the result, and no hashes anywhere.
    """
    file = folder / "recipe.toml"
    keys = ("seed", "precision", "radii", "checks", "strong")
    _, _, whole = file.read_text().partition("\n")
    head, evaluation = whole.split("[evaluation]\n")
    lines = [line for line in evaluation.splitlines() if line.split(" = ")[0] not in keys]
    text = head + "\n".join(["[evaluation]", *lines]) + "\n"
    if "[harp]" not in text:
        text += "[harp]\ngamma = 0.01\nminimum = 0.1\n"
    if "[apd]" not in text:
        text += '[apd]\nweight = 0.9\ntemperature = 5.0\nteacher = ""\n'
    file.write_text(text)
    shutil.move(folder / "evaluation" / "model" / "verdicts.safetensors", folder / "verdicts.safetensors")
    shutil.rmtree(folder / "evaluation")
    for name in ("result.json", "model.json", "teacher.json"):
        about = read(folder / name)
        for key in {"checksum", "fingerprint", "model", "warnings", "identity", "metrics_checksum"} & about.keys():
            del about[key]
        (folder / name).write_text(json.dumps(about))


@pytest.fixture(params=["pwoa", "harp", "apd"])
def older(
    request: pytest.FixtureRequest, tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> tuple[Result, Recipe]:
    recipe = quick(method=request.param, evaluation__checks=True, evaluation__strong=256, **SHORT)
    result = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "older")
    make_older(result.folder)
    return result, recipe


def test_a_run_of_version_0_2_is_loaded_evaluated_and_compared(
    tmp_path: Path, older: tuple[Result, Recipe], tiny_teacher: nn.Module, tiny_data: Data
) -> None:
    result, recipe = older
    assert records_recipe(result.folder)
    recorded = recorded_recipe(result.folder)
    assert recorded.method == recipe.method
    assert recorded.evaluation == recipe.evaluation
    loaded = pwoa.load_model(result.folder, tiny_data, architecture=type(tiny_teacher)())
    weights = result.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items())
    network = type(tiny_teacher)()
    scores = pwoa.evaluate(
        result.folder, tiny_data, architecture=network, checks=False, device="cpu", folder=tmp_path / "again"
    )
    assert scores.accuracies == result.summary["pruned"]
    comparison = pwoa.compare(result.folder, tmp_path / "again")
    assert comparison.images == 48
    assert {row.attack: row.accuracy_a for row in comparison.rows} == by_attack(result.summary["pruned"])
    assert [row.difference for row in comparison.rows] == [0, 0, 0]
    assert not comparison.notes


def test_a_finished_run_of_version_0_2_is_given_back(
    older: tuple[Result, Recipe], tiny_teacher: nn.Module, tiny_data: Data, told: Any
) -> None:
    result, recipe = older
    again = pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=result.folder, progress=told)
    assert told.said == [f"{result.folder} is finished, nothing is left to do"]
    assert again.summary["pruned"] == result.summary["pruned"]


def test_a_run_of_today_is_compared_by_its_folder(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    first, second = (
        pwoa.prune(tiny_teacher, tiny_data, rate=rate, recipe=quick(**SHORT), folder=tmp_path / f"x{rate}")
        for rate in (2, 8)
    )
    comparison = pwoa.compare(first.folder, second.folder)
    assert {row.attack: row.accuracy_a for row in comparison.rows} == by_attack(first.summary["pruned"])
    assert {row.attack: row.accuracy_b for row in comparison.rows} == by_attack(second.summary["pruned"])
    teacher = pwoa.compare(first.folder / "evaluation" / "teacher", first.folder)
    assert {row.attack: row.accuracy_a for row in teacher.rows} == by_attack(first.summary["teacher"])


def test_the_sections_of_other_methods_are_unknown_in_a_recipe_that_is_given(older: tuple[Result, Recipe]) -> None:
    """Only in what version 0.2 recorded are they passed over: elsewhere they are a mistake."""
    with pytest.raises(pwoa.InputError, match=r"'(harp|apd)' is a section of the method"):
        load_recipe(older[0].folder / "recipe.toml")
