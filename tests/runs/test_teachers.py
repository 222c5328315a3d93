"""What a teacher's own run says holds where nobody says otherwise, and defaults that nobody chose are announced."""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import pwoa
from pwoa.cli import app
from pwoa.errors import InputError, ThreatWarning
from pwoa.models.architectures.registry import build
from pwoa.models.load import trained_threat
from pwoa.progress import Progress
from pwoa.recipe import load_recipe, recorded_recipe
from pwoa.runs.folder import Result
from pwoa.runs.pretrain import robust_accuracy
from pwoa.threat import Threat

QUICK: dict[str, Any] = {
    "data.validation": 40,
    "training.batch": 20,
    "training.group": 20,
    "search.epochs": 1,
    "finetune.epochs": 1,
    "evaluation.images": 10,
    "evaluation.attacks": "natural",
    "evaluation.checks": False,
}
TRAINED = Threat("l2", 1.5, 0.2)
NET = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10))
"""
MAKE = """
def make():
    return Net(8)
"""


class Lines(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines += message.splitlines()

    @property
    def notes(self) -> list[str]:
        return [line for line in self.lines if line.startswith("note:")]


@pytest.fixture(scope="module")
def own() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Data of one's own: few digits."""
    data = pwoa.load_data("mnist-mini")
    return (data.train.pixels[:80], data.train.labels[:80]), (data.test.pixels[:10], data.test.labels[:10])


def settings_words(settings: dict[str, Any]) -> list[str]:
    texts = (f"{key}={str(value).lower()}" for key, value in settings.items())
    return [word for text in texts for word in ("--set", text)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained a LeNet of few filters for another attacker than is usual."""
    folder = tmp_path_factory.mktemp("runs") / "teacher"
    threat = {"threat.norm": "l2", "threat.radius": 1.5, "threat.step": 0.2}
    few = {"data.name": "mnist-mini", "data.validation": 9900, "pretrain.epochs": 1, "pretrain.steps": 1}
    network = {"teacher.architecture": "lenet@0.05"}
    pwoa.pretrain(recipe="teacher-mnist", settings=QUICK | threat | few | network, folder=folder)
    return folder


def test_a_run_or_a_folder_says_what_its_model_was_trained_for(teacher: Path, tmp_path: Path) -> None:
    pwoa.save_pretrained(teacher, tmp_path / "folder")
    for source in (teacher, teacher / "model.safetensors", tmp_path / "folder", str(tmp_path / "folder")):
        assert trained_threat(source) == TRAINED
    assert trained_threat("embedded") == Threat("linf", 0.3, 0.01)
    pwoa.save_pretrained(nn.Linear(2, 2), tmp_path / "plain")
    assert [trained_threat(source) for source in (tmp_path / "plain", nn.Linear(2, 2), "a.pt", "")] == [None] * 4


def test_a_run_as_teacher_gives_architecture_threat_and_data(teacher: Path, tmp_path: Path) -> None:
    few = QUICK | {"data.validation": 9900}
    words = ["prune", "--checkpoint", str(teacher), "--force", "--out", str(tmp_path / "pruned"), *settings_words(few)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    recipe = recorded_recipe(tmp_path / "pruned")
    assert recipe.threat == TRAINED
    assert recipe.teacher.architecture == "lenet@0.05"
    assert recipe.data.name == "mnist-mini"
    assert re.findall("note: (.*?),", done.output) == ["no recipe was given"]  # but nothing of another threat
    assert "l2 1.5" in done.output


def test_settings_and_a_recipe_say_otherwise_which_is_told(teacher: Path, own: Any, tmp_path: Path) -> None:
    lines = Lines()
    pwoa.prune(teacher, own, settings=QUICK | {"threat.radius": 0.5}, folder=tmp_path / "a", force=True, progress=lines)
    assert recorded_recipe(tmp_path / "a").threat == Threat("l2", 0.5, 0.2)
    assert lines.notes == ["note: the teacher was trained for l2 1.5, and is pruned for l2 0.5"]
    lines = Lines()
    pwoa.prune(teacher, own, recipe="mnist", settings=QUICK, folder=tmp_path / "b", force=True, progress=lines)
    assert recorded_recipe(tmp_path / "b").threat == load_recipe("mnist").threat
    assert lines.notes == ["note: the teacher was trained for l2 1.5, and is pruned for l∞ 0.3"]


def test_a_model_is_tested_at_the_radius_it_was_trained_for_unless_another_is_given(
    teacher: Path, own: Any, tmp_path: Path
) -> None:
    pwoa.save_pretrained(teacher, tmp_path / "folder")
    lines = Lines()
    options: Any = {"attacks": "natural", "checks": False, "progress": lines}
    for source in (teacher, tmp_path / "folder", teacher / "model.safetensors"):
        assert pwoa.evaluate(source, own, **options).threat == TRAINED
    assert lines.notes == []
    pwoa.evaluate(teacher, own, threat=Threat("linf", 0.1, 0.01), **options)
    assert lines.notes == ["note: the model was trained for l2 1.5, and is tested at l∞ 0.1"]


def test_a_run_of_data_given_in_python_needs_data(own: Any, tmp_path: Path) -> None:
    pwoa.prune("embedded", own, recipe="mnist", settings=QUICK, folder=tmp_path / "run", force=True)
    with pytest.raises(InputError, match=r"was made from data given in Python; give --data \(in Python: data=\)"):
        pwoa.prune(tmp_path / "run")


def test_own_data_without_a_preset_announces_epochs_and_threat(own: Any, tmp_path: Path) -> None:
    lines = Lines()
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    epochs = {key: value for key, value in QUICK.items() if not key.endswith("epochs")}
    with pytest.raises(InputError, match="method"):
        pwoa.prune(network, own, method="none", settings=epochs, progress=lines)
    short = {"search.epochs": 1}
    no_hsic = {"objective.hsic_x": 0, "objective.hsic_y": 0}
    options: Any = {"force": True, "progress": lines}
    pwoa.prune(network, own, settings=QUICK | no_hsic, folder=tmp_path / "a", **options)
    how = "choose by --recipe or --set (in Python: recipe=, settings=)"
    assert lines.notes == [f"note: custom has no preset, so defaults hold: the threat l∞ 8/255; {how}"]
    lines.lines.clear()
    pwoa.prune(network, own, settings=QUICK | no_hsic | {"threat.radius": 0.1}, folder=tmp_path / "b", **options)
    pwoa.prune(network, own, recipe="mnist", settings=QUICK | no_hsic | short, folder=tmp_path / "c", **options)
    assert lines.notes == []


def test_epochs_that_nobody_chose_are_announced() -> None:
    from pwoa.recipe import Recipe
    from pwoa.runs.prepare import note_defaults

    plan = Recipe().with_settings({"data.name": "flowers"})
    (note,) = note_defaults(plan, {"data.name": "flowers"}, None, (50, 100), Lines())
    assert note.startswith("flowers has no preset, so defaults hold: 50 + 100 epochs, the threat l∞ 8/255; choose by")
    assert note_defaults(plan, {"search.epochs": 1, "threat.radius": 0.1}, None, (50, 100), Lines()) == []
    assert note_defaults(plan, {"search.epochs": 1}, Threat(), (50, 100), Lines()) == []  # the teacher's run says it
    (note,) = note_defaults(plan, {"search.epochs": 1, "threat.norm": "l2"}, None, (50, 100), Lines())
    assert "so defaults hold: the threat" in note  # of a radius that nobody chose
    (note,) = note_defaults(plan, {"threat.radius": 0.1}, None, (50, 100), Progress())  # which is no warning
    assert "so defaults hold: 50 + 100 epochs; choose by" in note


def test_a_threat_that_nobody_chose_is_a_warning_where_nothing_else_would_say_it(
    own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())  # no terminal
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    few = QUICK | {"objective.hsic_x": 0, "objective.hsic_y": 0, "pretrain.epochs": 1, "pretrain.steps": 1}
    few |= {"teacher.minimum": 0}
    short: Any = {"attacks": "natural", "checks": False}
    calls: list[tuple[str, Callable[..., object]]] = [
        ("l∞ 8/255", partial(pwoa.prune, network, own, settings=few, folder=tmp_path / "a")),
        ("l∞ 0.3", partial(pwoa.pretrain, network, own, settings=few, folder=tmp_path / "b")),
        ("l∞ 8/255", partial(pwoa.evaluate, network, own, **short)),
        ("l2 0.03137", partial(pwoa.evaluate, network, own, settings={"threat.norm": "l2"}, **short)),
    ]
    for threat, call in calls:
        for progress in (None, False):
            with pytest.warns(ThreatWarning, match=f"custom has no preset.* {threat}; choose by ") as caught:
                call(progress=progress)
            (warning,) = caught
            assert warning.filename == __file__
            assert "\n" not in str(warning.message)
        call(progress=Lines())  # says it itself


def test_a_threat_that_is_known_is_no_warning(teacher: Path, own: Any, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    few = QUICK | {"objective.hsic_x": 0, "objective.hsic_y": 0, "teacher.minimum": 0}
    short: Any = {"attacks": "natural", "checks": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pwoa.prune(network, own, settings=few | {"threat.radius": 0.1}, folder=tmp_path / "a")
        pwoa.prune(network, own, settings=few | {"threat": {"radius": 0.1}}, folder=tmp_path / "b")
        pwoa.prune(network, own, recipe="mnist", settings=few, folder=tmp_path / "c")
        pwoa.prune(teacher, own, settings=QUICK | {"teacher.minimum": 0}, folder=tmp_path / "d")
        pwoa.prune(data=own, settings=QUICK, folder=tmp_path / "e")  # the embedded teacher
        assert recorded_recipe(tmp_path / "e").threat == trained_threat("embedded")
        pwoa.evaluate(network, own, threat=Threat(), **short)
        pwoa.evaluate(network, own, recipe="mnist", **short)
        pwoa.evaluate(network, "mnist-mini", images=10, **short)
        pwoa.evaluate(teacher, own, **short)


def test_an_evaluation_on_own_data_announces_its_threat(own: Any) -> None:
    lines = Lines()
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    options: Any = {"attacks": "natural", "checks": False, "progress": lines}
    pwoa.evaluate(network, own, **options)
    how = "choose by --radius or --set threat.… (in Python: threat=)"
    assert lines.notes == [f"note: no threat was given, and custom has no preset: l∞ 8/255; {how}"]
    lines.lines.clear()
    pwoa.evaluate(network, own, threat=Threat("linf", 0.1, 0.01), **options)
    pwoa.evaluate(network, own, settings={"threat.radius": 0.1}, **options)
    pwoa.evaluate(network, "mnist-mini", images=10, **options)
    assert lines.notes == []


def test_own_data_are_trained_on_as_mnist_is_which_is_announced(own: Any, tmp_path: Path) -> None:
    lines = Lines()
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    few = QUICK | {"pretrain.epochs": 1, "pretrain.steps": 1}
    pwoa.pretrain(network, own, settings=few, folder=tmp_path / "run", progress=lines)
    how = "choose by --recipe or --set (in Python: recipe=, settings=)"
    assert lines.notes == [
        "note: pgd-at does not use search.epochs, finetune.epochs",
        f"note: custom has no preset, so defaults hold: the threat l∞ 0.3; {how}",
    ]


def test_a_checkpoint_is_of_the_architecture_that_it_is_of_whatever_the_recipe_says(own: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(build("smallcnn@0.1", 10, 1).state_dict(), tmp_path / "small.pt")
    plan = load_recipe("mnist")
    assert plan.teacher.architecture == "lenet"
    assert plan.with_settings({"teacher.checkpoint": "small.pt"}).teacher.architecture == "auto"
    told = {"teacher.checkpoint": "small.pt", "teacher.architecture": "lenet"}
    assert plan.with_settings(told).teacher.architecture == "lenet"
    own_class = plan.with_settings({"teacher.architecture": "mynet.py:Net"})
    assert own_class.with_settings({"teacher.checkpoint": "w.pt"}).teacher.architecture == "mynet.py:Net"
    folder = tmp_path / "run"
    pwoa.prune(tmp_path / "small.pt", own, recipe="mnist", settings=QUICK, folder=folder, force=True)
    assert recorded_recipe(folder).teacher.architecture == "smallcnn@0.1"
    with pytest.raises(InputError, match=r"name the architecture to train, or your own class: --arch"):
        pwoa.pretrain(data=own, recipe=pwoa.Recipe(method="trades"), settings=QUICK | {"teacher.checkpoint": ""})
    same = {"teacher.checkpoint": str(tmp_path / "small.pt"), "pretrain.epochs": 1, "pretrain.steps": 1}
    trained = pwoa.pretrain(data=own, recipe="teacher-mnist", settings=QUICK | same, folder=tmp_path / "trained")
    assert trained.summary["architecture"] == recorded_recipe(trained.folder).teacher.architecture == "smallcnn@0.1"


def test_a_run_trains_on_a_part_of_the_images(own: Any, tmp_path: Path) -> None:
    lines = Lines()
    few = {key: value for key, value in QUICK.items() if key != "data.validation"} | {"data.images": 50}
    pwoa.prune("embedded", own, recipe="mnist", settings=few, folder=tmp_path / "run", force=True, progress=lines)
    assert "45 images (5 held out)" in "".join(lines.lines)
    file = tmp_path / "run" / "recipe.toml"
    assert (recorded_recipe(tmp_path / "run").data.images, recorded_recipe(tmp_path / "run").data.validation) == (50, 5)
    _, _, unsealed = file.read_text().partition("\n")
    file.write_text(unsealed.replace("images = 50\n", "", 1))  # as an earlier version wrote it
    assert recorded_recipe(tmp_path / "run").data.images == 0
    with pytest.raises(InputError, match=r"custom has 80 training images: set data.images to at most that"):
        pwoa.prune("embedded", own, recipe="mnist", settings=QUICK | {"data.images": 81}, force=True)


def test_how_robust_a_trained_model_is_tells_the_selected_epoch() -> None:
    lines = [{"epoch": epoch, "validation": {"robust_error": 60.0 + epoch}} for epoch in range(3)]
    result = Result(nn.Identity(), Path(), {"selected_epoch": 1, "accuracy": {"natural": 97.0, "worst": 9.0}}, lines)
    assert robust_accuracy(result) == 39.0
    assert robust_accuracy(dataclasses.replace(result, metrics=[{"epoch": 1, "validation": {"error": 3.0}}])) == 9.0


def test_a_class_of_ones_own_is_trained_and_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pwoa.runs.pretrain.robust_accuracy", lambda result: 20.0)  # which an epoch does not reach
    (tmp_path / "mynet.py").write_text(NET)
    factory, folder = f"{tmp_path / 'mynet.py'}:Net", tmp_path / "run"
    few = QUICK | {"data.name": "mnist-mini", "data.validation": 9900, "pretrain.steps": 1}
    words = ["pretrain", "--arch", factory, "--epochs", "1", *settings_words(few), "--out", str(folder)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert f"prune it: pwoa prune --checkpoint {folder} --arch {factory}\n" in done.output
    again = CliRunner().invoke(app, words)
    assert "is finished, nothing is left to do" in again.output
    command = ["prune", "--checkpoint", str(folder), "--arch", factory, "--force", "--out", str(tmp_path / "pruned")]
    no_hsic = {"objective.hsic_x": 0, "objective.hsic_y": 0}
    done = CliRunner().invoke(app, [*command, *settings_words(QUICK | no_hsic | {"data.validation": 9900})])
    assert done.exit_code == 0, done.output
    assert recorded_recipe(tmp_path / "pruned").threat == load_recipe("teacher-mnist").threat
    refused = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "lite"), "--lite", "4"])
    assert "pretrain.lite narrows an architecture by name" in refused.output


def test_a_run_of_ones_own_code_asks_for_it_wherever_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mynet.py").write_text(NET.replace("(self)", "(self, width)").replace(" 8", " width") + MAKE)
    few = QUICK | {"data.name": "mnist-mini", "data.validation": 9900, "objective.hsic_x": 0, "objective.hsic_y": 0}
    made = ["--arch", "mynet.py:make"]

    def call(*words: str) -> Any:
        return CliRunner().invoke(app, list(words))

    training = settings_words(few | {"pretrain.steps": 1, "pretrain.epochs": 1})
    assert call("pretrain", *made, *training, "--out", "teacher", "--no-report").exit_code == 0
    pruning = ["prune", "--checkpoint", "teacher", "--force", *settings_words(few), "--no-report"]
    assert call(*pruning, *made, "--out", "run").exit_code == 0
    timing = ["bench", "run", "--teacher", "teacher", "--routes", "torch", "--threads", "1", "--seconds", "0.01"]
    commands = [
        ("run", ["evaluate", "run", "--attacks", "natural", "--no-report"]),
        ("teacher", [*pruning, "--out", "again"]),
        ("run", ["export", "run", "--to", "packed", "--to", "onnx"]),
        ("teacher", timing),
        (str(tmp_path / "run"), ["evaluate", "run/export/model.onnx", "--attacks", "natural", "--no-report"]),
    ]
    for holder, command in commands:
        refused = call(*command)
        assert refused.exit_code == 2
        said = f"error: {holder} holds a mynet.py:make, which only your own code can build, and no file can ask"
        assert refused.stderr.startswith(said)
        assert refused.stderr.endswith(
            "give it yourself: --arch mynet.py:make (in Python: architecture= of load_model)\n"
        )
        assert refused.stderr.count("\n") == 1
        done = call(*command, *made)
        assert done.exit_code == 0, done.output
    for words in (["compare", "run"], ["compare", "teacher", "run"], ["report", "run"], ["models", "inspect", "run"]):
        done = call(*words)
        assert done.exit_code == 0, done.output


def test_what_stands_in_the_place_of_a_network_is_named_in_one_short_line(own: Any) -> None:
    weights: Any = dict(build("lenet", 10, 1).state_dict())
    network: Any = nn.ReLU
    for given, told in ((weights, "a dictionary of weights; give its file"), (network, "ReLU()")):
        with pytest.raises(InputError, match=re.escape(told)) as caught:
            pwoa.prune(given, own)
        assert len(str(caught.value)) < 200
