"""evaluate, given names: which model, which images, which settings, which folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pwoa.data.images import Data
from pwoa.data.load import load_data
from pwoa.errors import InputError
from pwoa.evaluation.evaluate import evaluate as library
from pwoa.models.border import Normalised
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.models.load import load_model
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Result
from pwoa.runs.prune import prune
from pwoa.threat import Threat

evaluate = partial(library, device="cpu")
lenet = partial(evaluate, "embedded", "mnist-mini", attacks="natural", images=10, checks=False)


@pytest.fixture
def run(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Callable[..., Recipe]) -> Result:
    plan = quick(search__epochs=1, finetune__epochs=1, evaluation__images=40, training__seed=3)
    return prune(tiny_teacher, tiny_data, recipe=plan, folder=tmp_path / "run")


def test_of_a_run_its_recipe_says_how_it_is_measured(run: Result, tiny_teacher: nn.Module, tiny_data: Data) -> None:
    measured = partial(evaluate, run.folder, tiny_data, architecture=type(tiny_teacher)())
    scores = measured()
    assert scores.accuracies == run.summary["pruned"]
    assert (scores.images, scores.threat, scores.findings) == (40, Threat(radius=0.05, step=0.0125), ())
    assert scores.folder is None
    assert measured(settings={"evaluation.images": 30}).images == 30
    assert measured(images=20).images == 20
    with pytest.raises(InputError, match=r"evaluation\.images is given twice, as 20 and as 30; leave one out"):
        measured(settings={"evaluation.images": 30}, images=20)
    assert list(measured(attacks="fgsm")) == ["natural", "fgsm"]
    assert measured(settings={"threat.radius": 0.1}).threat == Threat(radius=0.1, step=0.0125)
    assert measured(settings={"threat.radius": 0.1}, threat=Threat(radius=0.2)).threat == Threat(radius=0.2)
    assert list(measured(recipe=Recipe(), images=5, checks=False)) == [*Recipe().evaluation.attacks, "strong"]
    kept = json.loads((run.folder / "evaluation" / "model" / "evaluation.json").read_text())
    assert (kept["seed"], kept["images"], kept["attacks"]) == (3, 40, ["natural", "pgd2"])


def test_images_given_in_python_must_be_given_again(run: Result, tiny_teacher: nn.Module) -> None:
    with pytest.raises(InputError, match=r"was made from data given in Python; give --data"):
        evaluate(run.folder, architecture=type(tiny_teacher)())


@pytest.mark.parametrize(
    ("options", "threat"),
    [
        ({}, Threat(radius=0.3, step=0.01)),
        ({"settings": {"threat.radius": 0.1}}, Threat(radius=0.1, step=0.01)),
        ({"recipe": "cifar10"}, Threat(radius=8 / 255, step=2 / 255)),
        ({"threat": Threat("l2", 2.0, 0.5), "settings": {"threat.radius": 0.1}}, Threat("l2", 2.0, 0.5)),
    ],
)
def test_the_attacker_is_the_one_usual_for_the_images_unless_another_is_given(
    options: dict[str, Any], threat: Threat
) -> None:
    assert lenet(**options).threat == threat


def test_auto_chooses_a_folder_for_each_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scores = lenet(folder="auto")
    assert scores.folder is not None
    assert scores.folder.parent == Path("runs") / "evaluate"
    assert scores.folder.name.startswith("embedded-")
    result = json.loads((scores.folder / "result.json").read_text())
    assert (result["name"], result["architecture"], result["images"]) == ("embedded", "lenet", 10)
    assert lenet(folder="auto").folder == scores.folder
    others: list[dict[str, Any]] = [{"seed": 1}, {"images": 11}, {"mean": [0.1], "std": [1.0]}]
    others.append({"settings": {"threat.radius": 0.1}})
    assert len({scores.folder, *(lenet(folder="auto", **options).folder for options in others)}) == 5
    network = load_model("embedded")
    assert str(evaluate(network, "mnist-mini", attacks="natural", images=10, folder="auto").folder).startswith(
        "runs/evaluate/model-"
    )


def test_a_surrogate_may_be_named_too() -> None:
    scores = lenet(attacks="natural", surrogate="embedded", images=4, threat=Threat(radius=0.0))
    assert list(scores) == ["natural", "transfer"]
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 3))
    with pytest.raises(InputError, match="the file has 10 classes, the data has 3"):
        evaluate(network, _three_classes(), surrogate="embedded", surrogate_architecture="lenet")
    with pytest.raises(InputError, match="--surrogate-arch goes with --surrogate MODEL"):
        lenet(surrogate_architecture="lenet")


def _three_classes() -> Data:
    split = torch.rand(6, 1, 28, 28), torch.arange(6) % 3
    return load_data((split, split))


def test_a_network_is_normalised_as_said_and_stays_as_it_is(tiny_teacher: nn.Module, tiny_data: Data) -> None:
    measured = partial(evaluate, data=tiny_data, attacks="natural,fgsm", threat=Threat(radius=0.2))
    expected = measured(Normalised(tiny_teacher, [0.1], [4.0]))
    tiny_teacher.train()
    scores = measured(tiny_teacher, mean=[0.1], std=[4.0])
    assert dict(scores) == dict(expected) != dict(measured(tiny_teacher))
    assert tiny_teacher.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "lenet"}, "a TinyNet knows its architecture; leave out --arch"),
        ({"checkpoint": "a.pt"}, "--checkpoint goes with a factory"),
    ],
)
def test_what_a_network_has_no_use_for_is_refused(
    tiny_teacher: nn.Module, tiny_data: Data, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(tiny_teacher, tiny_data, **options)


def test_numbers_may_be_those_of_numpy(tiny_teacher: nn.Module, tiny_data: Data) -> None:
    given: dict[str, Any] = {"radii": np.linspace(0, 0.1, 3), "images": np.int64(8), "seed": np.int32(1)}
    scores = evaluate(tiny_teacher, tiny_data, attacks="natural", threat=Threat(radius=0.1), checks=False, **given)
    assert scores.images == 8
    assert [point.threat.radius for point in scores.curve] == [0, 0.05, 0.1]


def test_a_model_is_hashed_once(
    tiny_teacher: nn.Module, tiny_data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[nn.Module] = []

    def counting(model: nn.Module) -> str:
        hashed.append(model)
        return fingerprint(model)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pwoa.evaluation.subject.fingerprint", counting)
    library(tiny_teacher, tiny_data, attacks="natural", threat=Threat(), checks=False, folder="auto")
    assert len(hashed) == 1
