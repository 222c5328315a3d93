"""The evaluation from end to end: what it measures, what it keeps and resumes, and what it warns of."""

from __future__ import annotations

import copy
import importlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from pwoa.attacks.apgd import apgd_ce, apgd_t_rounds
from pwoa.attacks.fab import fab_t_rounds
from pwoa.attacks.registry import ATTACKS
from pwoa.attacks.square import square_rounds
from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.evaluation import behaviour, checks, folder, measure
from pwoa.evaluation.checks import Finding
from pwoa.evaluation.evaluate import evaluate as library
from pwoa.evaluation.examples import EXAMPLES
from pwoa.evaluation.folder import EvaluationFolder
from pwoa.evaluation.robustness import Measurement, robustness
from pwoa.evaluation.scores import FILE, Scores, load_verdicts, wilson
from pwoa.evaluation.subject import Subject
from pwoa.models.onnx import OnnxModel
from pwoa.progress import Progress
from pwoa.recipe import Evaluation
from pwoa.storage.folder import held
from pwoa.threat import Threat

THREAT = Threat(radius=0.1, step=0.025)
PARTS = ("apgd-ce", "apgd-t", "fab-t", "square")
evaluate = partial(library, threat=THREAT, device="cpu")


def seeded(seed: int, *layers: Callable[[], nn.Module]) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), *(layer() for layer in layers))


def curved(seed: int = 0, bend: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    return seeded(seed, lambda: nn.Linear(9, 12), bend, lambda: nn.Linear(12, 3))


def linear() -> nn.Sequential:
    """Two classes, with the boundary through the middle of the images."""
    model = seeded(0, lambda: nn.Linear(9, 2))
    layer = cast(nn.Linear, model[1])
    with torch.no_grad():
        layer.bias.copy_(-0.5 * layer.weight.sum(1))
    return model


def data_for(model: nn.Module, n: int = 20, seed: int = 0) -> Data:
    """Images which the model gets right, but for the first three."""
    pixels = torch.rand(n, 1, 3, 3, generator=torch.Generator().manual_seed(seed))
    logits = model(pixels)
    labels = logits.argmax(1)
    classes = logits.shape[1]
    labels[:3] = (labels[:3] + 1) % classes
    return Data("mine", Images(pixels, labels), Images(pixels, labels), classes)


def closed_form(model: nn.Sequential, images: Images, radius: float) -> list[bool]:
    """For each image whether a linear model with two classes is right when each pixel is where it hurts most."""
    layer = cast(nn.Linear, model[1])
    weight, bias = layer.weight.detach(), layer.bias.detach()
    right = []
    for x, label in zip(images.pixels.flatten(1), images.labels.tolist(), strict=True):
        lead = weight[label] - weight[1 - label]
        worst = torch.where(lead > 0, (x - radius).clamp_min(0), (x + radius).clamp_max(1))
        right.append(bool(lead @ worst + bias[label] - bias[1 - label] > 0))
    return right


def saved_as_onnx(model: nn.Sequential, path: Path) -> Path:
    """A linear model as an ONNX file."""
    layer = cast(nn.Linear, model[1])
    weights = {"w": layer.weight, "b": layer.bias}
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("Gemm", ["flat", "w", "b"], ["y"], transB=1)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(value.detach().numpy(), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


class Masked(nn.Module):
    """A network behind something that hides its gradients."""

    def __init__(self, net: nn.Module, mask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.mask = net, mask

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(self.mask(x))
        return logits


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """All attacks and checks with few steps, and progress that is saved after each batch, if not for a power cut."""
    rounds = {
        "apgd-t": partial(apgd_t_rounds, steps=3),
        "fab-t": partial(fab_t_rounds, steps=3),
        "square": partial(square_rounds, queries=15),
        "square-paper": partial(square_rounds, queries=15, paper=True),
    }
    monkeypatch.setitem(ATTACKS, "apgd-ce", replace(ATTACKS["apgd-ce"], run=partial(apgd_ce, steps=3)))
    for name, fewer in rounds.items():
        monkeypatch.setitem(ATTACKS, name, replace(ATTACKS[name], rounds=fewer))
    monkeypatch.setattr(checks, "APGD_STEPS", 2)
    monkeypatch.setattr(checks, "QUERIES", 20)
    monkeypatch.setattr(checks, "WIDE_STEPS", 5)
    monkeypatch.setattr(folder, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(os, "fsync", lambda file: None)


def everything(where: Path | None = None, **options: Any) -> Scores:
    """All kinds of attacks, and a curve."""
    chosen: dict[str, Any] = {
        "model": curved(),
        "data": data_for(curved()),
        "attacks": "natural,pgd3,transfer,autoattack",
        "surrogate": curved(1),
        "radii": [0, 0.05],
        "batch": 8,
        "name": "curved",
        "folder": where,
    }
    return evaluate(**(chosen | options))


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(inner) for key, inner in value.items() if key not in ("seconds", "checksum")}
    return [without_seconds(inner) for inner in value] if isinstance(value, list) else value


def result_in(where: Path) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads((where / "result.json").read_text(encoding="utf-8")))


def assert_same_folder(one: Path, other: Path) -> None:
    assert without_seconds(result_in(one)) == without_seconds(result_in(other))
    assert (one / "evaluation.json").read_bytes() == (other / "evaluation.json").read_bytes()
    (right, about), (others, about_other) = load_verdicts(one / FILE), load_verdicts(other / FILE)
    assert (list(right), about) == (list(others), about_other)
    assert all(torch.equal(right[name], others[name]) for name in right)
    names = ["evaluation.json", EXAMPLES, "result.json", FILE]
    assert sorted(os.listdir(one)) == sorted(os.listdir(other)) == names
    assert (one / EXAMPLES).read_bytes() == (other / EXAMPLES).read_bytes()


def assert_same_scores(one: Scores, other: Scores) -> None:
    assert (one.threat, one.findings) == (other.threat, other.findings)
    assert one.seconds == pytest.approx(other.seconds, abs=1e-3)  # kept to a thousandth
    for mine, theirs in ((one.right, other.right), (one.after, other.after)):
        assert list(mine) == list(theirs)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    for point, same in zip(one.curve, other.curve, strict=True):
        assert_same_scores(point, same)


# Broken off and resumed


class Stopped(Exception):
    pass


def test_stopped_at_every_save_it_ends_with_the_same_result(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = everything(tmp_path / "whole")
    save = EvaluationFolder.save

    def save_and_stop(self: EvaluationFolder, measurements: list[Measurement]) -> None:
        save(self, measurements)
        raise Stopped

    monkeypatch.setattr(EvaluationFolder, "save", save_and_stop)

    def in_pieces() -> tuple[Scores, int]:
        for stops in range(200):
            try:
                return everything(tmp_path / "pieces"), stops
            except Stopped:
                assert not (tmp_path / "pieces" / "result.json").exists()
        raise AssertionError("it does not come to an end")

    found, stops = in_pieces()
    assert stops > 30
    assert_same_folder(tmp_path / "whole", tmp_path / "pieces")
    assert [dict(point) for point in found.curve] == [dict(point) for point in whole.curve]
    assert list(found.seconds) == list(whole.seconds)


class Killer(Progress):
    """Raises at the so-manieth thing it is told; counts what a task was said to be and what was done of it."""

    def __init__(self, left: int = 10**6) -> None:
        self.left = left
        self.tasks: list[list[int]] = []
        self.said: list[str] = []

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped

    def start(self, task: str, total: int, done: int = 0) -> None:
        self.tasks.append([total, done])
        self._count()

    def advance(self, units: int = 1) -> None:
        self.tasks[-1][1] += units
        self._count()

    def say(self, message: str) -> None:
        self.said.append(message)
        self._count()


def test_killed_at_any_moment_it_ends_with_the_same_result(tmp_path: Path, short: None) -> None:
    options: dict[str, Any] = {"attacks": "pgd3,apgd-ce", "radii": [0.05]}
    watch = Killer()
    everything(tmp_path / "whole", progress=watch, **options)
    events = 10**6 - watch.left
    assert events > 20
    for moment in range(0, events, 2):
        where = tmp_path / str(moment)
        with pytest.raises(Stopped):
            everything(where, progress=Killer(moment), **options)
        again = Killer()
        everything(where, progress=again, **options)
        assert_same_folder(tmp_path / "whole", where)
        assert all(total == done for total, done in again.tasks[:-1])  # the last are the checks


def test_a_model_that_cannot_take_no_images_is_resumed(tmp_path: Path, short: None) -> None:
    class Views(nn.Module):
        """Flattens as people do, which torch refuses for a batch of no images."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = linear()[1]

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.layer(x.view(x.size(0), -1))
            return logits

    options: dict[str, Any] = {"attacks": "natural,apgd-ce", "batch": 8}
    with pytest.raises(Stopped):
        evaluate(Views(), data_for(linear()), folder=tmp_path / "a", progress=Killer(8), **options)
    asked = json.loads((tmp_path / "a" / "evaluation.json").read_text())
    del asked["checksum"]
    assert EvaluationFolder(tmp_path / "a", asked).resume(torch.device("cpu"), 3)[0].done == 20
    evaluate(Views(), data_for(linear()), folder=tmp_path / "a", **options)
    evaluate(Views(), data_for(linear()), folder=tmp_path / "b", **options)
    assert_same_folder(tmp_path / "a", tmp_path / "b")


def test_it_says_where_it_goes_on_and_how_to(tmp_path: Path, short: None) -> None:
    class Interrupted(Killer):
        def _count(self) -> None:
            try:
                super()._count()
            except Stopped:
                self.left = 10**6
                raise KeyboardInterrupt from None

    where = tmp_path / "a"
    stopped, resumed, finished = Interrupted(30), Killer(), Killer()
    with pytest.raises(KeyboardInterrupt):
        everything(where, progress=stopped)
    everything(where, progress=resumed)
    everything(where, progress=finished)
    again = f"stopped; the same command, with the folder {where}, resumes"
    assert stopped.said == [f"evaluation folder: {where}", again]
    assert resumed.said[:2] == [f"evaluation folder: {where}", f"resuming {where}"]
    assert finished.said == [f"evaluation folder: {where}", f"{where} is finished, nothing is left to do"]
    without = Interrupted(3)
    with pytest.raises(KeyboardInterrupt):
        everything(progress=without)
    assert without.said == ["stopped"]


def test_each_check_is_told_before_it_runs(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Teller(Progress):
        def say(self, message: str) -> None:
            told.append(message)

    def watched(module: ModuleType, name: str) -> None:
        check = getattr(module, name)

        def run(*args: Any, **options: Any) -> Any:
            told.append(name)
            return check(*args, **options)

        monkeypatch.setattr(module, name, run)

    watched(behaviour, "_check_random")
    watched(checks, "square")
    watched(checks, "pgd")
    scores = evaluate(curved(), data_for(curved()), attacks="pgd3", progress=Teller())
    left = int(scores.worst.sum())
    assert told == [
        "defence check of the model's answers",
        "_check_random",
        f"defence check more-iterations: pgd3 with 5 times the steps, on {left} images",
        "pgd",
        f"defence check black-box: square-paper with 20 queries, on {left} images",
        "square",
        f"defence check radius: pgd5 at l∞ 0.5, on {left} images",
        "pgd",
    ]
    told.clear()
    evaluate(curved(), data_for(curved()), attacks="pgd3", checks=False, progress=Teller())
    assert told == []
    subject = Subject.of(curved(), data_for(curved()), 0, torch.device("cpu"))
    of_run: dict[str, Any] = {"name": "teacher", "task": "evaluating the teacher", "progress": Teller()}
    measure.measure(subject, Evaluation(attacks=("natural",), strong=0), THREAT, **of_run)
    assert told[0] == "teacher: defence check of the model's answers"


def test_a_finished_folder_is_read_and_nothing_attacked_again(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Masked(curved(), lambda x: (x * 8).round() / 8)
    scores = everything(tmp_path / "a", model=model)
    assert scores.findings
    assert list(scores.after) == list(scores.curve[1].after) == list(PARTS)

    def forbidden(*args: Any, **options: Any) -> Any:
        raise AssertionError("attacked again")

    for name in ("robustness", "check_behaviour", "check_attacks"):
        monkeypatch.setattr(measure, name, forbidden)
    assert_same_scores(everything(tmp_path / "a", model=model), scores)


def test_without_a_folder_nothing_is_written(tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    everything()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": curved(7)}, "model"),
        ({"model": curved(0, nn.Sigmoid)}, "architecture"),
        ({"data": data_for(curved(), seed=1)}, "data"),
        ({"images": 10}, "images"),
        ({"attacks": "natural,pgd3"}, "attacks"),
        ({"threat": Threat(radius=0.1, step=0.05)}, "threat"),
        ({"threat": Threat("l2", 0.1, 0.025)}, "threat"),
        ({"precision": "float32"}, "precision"),
        ({"radii": [0.2]}, "radii"),
        ({"batch": 7}, "batch"),
        ({"seed": 1}, "seed"),
        ({"checks": False}, "checks"),
    ],
)
def test_another_evaluation_in_the_same_folder_is_refused_by_what_differs(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    same: dict[str, Any] = {"model": curved(), "data": data_for(curved()), "attacks": "natural", "folder": tmp_path}
    evaluate(**same)
    evaluate(**same, device="cpu", name="another name")  # that is no other evaluation
    with pytest.raises(InputError) as caught:
        evaluate(**(same | changed))
    assert str(caught.value).startswith(f"{tmp_path} holds another evaluation ({named}: there ")


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(InputError, match="another process is working on"):
        evaluate(curved(), data_for(curved()), attacks="natural", folder=tmp_path)
    evaluate(curved(), data_for(curved()), attacks="natural", folder=tmp_path)
    assert not (tmp_path / ".lock").exists()


def test_another_surrogate_is_another_evaluation(tmp_path: Path, short: None) -> None:
    everything(tmp_path)
    with pytest.raises(InputError, match=r"holds another evaluation \(surrogate: there "):
        everything(tmp_path, surrogate=curved(2))


def test_a_folder_that_will_not_do_is_refused_before_any_work(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*args: Any, **options: Any) -> Any:
        raise AssertionError("began to work")

    monkeypatch.setattr(measure, "robustness", forbidden)
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(InputError, match="exists and holds no evaluation"):
        everything(tmp_path)
    with pytest.raises(InputError, match=r"cannot write to .*mine.txt/a: "):
        everything(tmp_path / "mine.txt" / "a")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=f"cannot write to {tmp_path}; choose another folder"):
        everything(tmp_path / "a")
    assert os.listdir(tmp_path) == ["mine.txt"]


# What is measured


def test_the_scores(short: None) -> None:
    scores = everything()
    names = ["natural", "pgd3", "transfer", "autoattack"]
    assert list(scores.right) == list(scores) == names
    assert scores["natural"] == 85.0
    assert dict(scores) == {name: 5.0 * sum(scores.right[name].tolist()) for name in names}
    assert scores.worst.tolist() == [all(scores.right[name][image] for name in names) for image in range(20)]
    assert 0 < int(scores.worst.sum()) < 17
    assert scores.interval("natural") == wilson(17, 20)
    assert scores.images == 20
    assert list(scores.after) == list(PARTS)
    assert torch.equal(scores.after["square"], scores.right["autoattack"])
    assert {f"autoattack:{part}" for part in PARTS} < set(scores.seconds)
    assert sum(scores.seconds[f"autoattack:{part}"] for part in PARTS) <= scores.seconds["autoattack"]


def test_the_result_says_the_same_as_the_scores(tmp_path: Path, short: None) -> None:
    scores = everything(tmp_path, images=15)
    found = result_in(tmp_path)
    assert {row["attack"]: row["accuracy"] for row in found["attacks"] if ":" not in row["attack"]} == dict(scores)
    assert found["worst_case"]["right"] == int(scores.worst.sum())
    assert found["autoattack_acc"] == f"{scores['autoattack']:.2f}"
    assert (found["name"], found["dataset"], found["eps"]) == ("curved", "mine", "0.1")
    assert found["architecture"] == "torch.nn.modules.container:Sequential"
    assert found["footnote"] == "the first 15 of 20 test images"
    assert found["size"]["parameters"] == 9 * 12 + 12 + 12 * 3 + 3
    assert set(found["versions"]) == {"pwoa", "torch"}
    right, about = load_verdicts(tmp_path / FILE)
    assert torch.equal(right["autoattack"], scores.right["autoattack"])
    assert (about["model"], about["data"]) == (found["model"], found["data"])


def test_a_model_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.name = linear()

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.name(x)
            return logits

    evaluate(Named(), data_for(linear()), attacks="natural", folder=tmp_path)
    assert result_in(tmp_path)["architecture"].endswith("Named")


class TestCurve:
    def test_a_linear_model_has_the_accuracy_of_the_closed_form_at_each_radius(self, tmp_path: Path) -> None:
        model = linear()
        data = data_for(model, 40)
        scores = evaluate(model, data, attacks="natural,pgd20", radii=[0.2, 0, 0.05], folder=tmp_path)
        radii = [0, 0.05, 0.1, 0.2]
        assert [point.threat.radius for point in scores.curve] == radii
        assert [point.threat.step for point in scores.curve] == pytest.approx([r / 4 for r in radii])
        for point in scores.curve:
            assert point.right["pgd20"].tolist() == closed_form(model, data.test, point.threat.radius)
            assert point.right["natural"].tolist() == closed_form(model, data.test, 0)
        accuracy = [point["pgd20"] for point in scores.curve]
        assert accuracy == sorted(accuracy, reverse=True)
        assert len(set(accuracy)) == 4
        assert scores.threat == scores.curve[2].threat == THREAT
        assert scores.right == scores.curve[2].right
        right, _ = load_verdicts(tmp_path / FILE)
        others = [f"{attack}@{r}" for r in ("0", "0.05", "0.2") for attack in ("natural", "pgd20")]
        assert list(right) == ["natural", "pgd20", *others]
        assert right["pgd20@0.05"].tolist() == closed_form(model, data.test, 0.05)
        rows = [(row["radius"], row["attack"]) for row in result_in(tmp_path)["curve"]]
        assert rows == [(r, attack) for r in radii for attack in ("natural", "pgd20")]

    @pytest.mark.parametrize(
        ("radii", "measured"),
        [
            ([0.1], [0.1]),
            ([0.1, 0.1], [0.1]),
            ([0.3 - 0.2, 0.05], [0.1, 0.05]),  # 0.3 − 0.2 is not quite 0.1
            ([0.2, 0.05, 0.2], [0.1, 0.05, 0.2]),
        ],
    )
    def test_no_radius_is_measured_twice_and_the_attackers_own_first(
        self, radii: list[float], measured: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[float] = []

        def watched(model: nn.Module, images: Images, threat: Threat, *args: Any, **options: Any) -> Scores:
            seen.append(threat.radius)
            return robustness(model, images, threat, *args, **options)

        monkeypatch.setattr(measure, "robustness", watched)
        scores = evaluate(linear(), data_for(linear()), attacks="natural,fgsm", radii=radii, checks=False)
        assert seen == measured
        assert [point.threat.radius for point in scores.curve] == sorted(measured)

    def test_at_radius_0_nothing_is_attacked_and_all_is_natural(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(
            ATTACKS, "apgd-ce", replace(ATTACKS["apgd-ce"], run=lambda *args, **options: pytest.fail("attacked"))
        )
        names = "pgd3,apgd-ce"
        model = linear()
        scores = evaluate(model, data_for(model), attacks=names, threat=Threat(radius=0.0), checks=False)
        assert list(scores.right) == ["natural", "pgd3", "apgd-ce"]
        assert scores["pgd3"] == scores["apgd-ce"] == 85.0

    def test_without_radii_there_is_none(self) -> None:
        assert evaluate(linear(), data_for(linear()), attacks="natural").curve == ()

    @pytest.mark.parametrize("radius", [-0.1, 1.5, float("nan")])
    def test_a_radius_out_of_range_is_refused(self, radius: float) -> None:
        with pytest.raises(InputError, match=r"threat.radius = .*; allowed: from 0 to 1 in linf"):
            evaluate(linear(), data_for(linear()), radii=[radius])


class TestTransfer:
    def test_a_surrogate_equal_to_the_model_gives_the_closed_form(self) -> None:
        model = linear()
        data = data_for(model, 40)
        scores = evaluate(model, data, attacks="transfer", surrogate=linear(), checks=False)
        assert scores.right["transfer"].tolist() == closed_form(model, data.test, 0.1)
        assert 0 < scores["transfer"] < 92.5

    def test_one_that_is_wrong_about_everything_finds_next_to_nothing(self) -> None:
        model = linear()
        opposite = copy.deepcopy(model)
        for parameter in opposite.parameters():
            parameter.data.neg_()
        scores = evaluate(model, data_for(model, 40), attacks="natural,transfer", surrogate=opposite, checks=False)
        assert scores["transfer"] == scores["natural"]

    def test_it_needs_one(self) -> None:
        with pytest.raises(InputError, match="the attack transfer needs a surrogate: --surrogate MODEL"):
            evaluate(linear(), data_for(linear()), attacks="natural,transfer")

    def test_the_surrogate_is_checked_as_the_model_is(self) -> None:
        with pytest.raises(InputError, match="gives 3 classes, the data has 2"):
            evaluate(linear(), data_for(linear()), attacks="transfer", surrogate=curved())

    def test_neither_is_changed(self, short: None) -> None:
        model, surrogate = linear().train(), linear().train()
        evaluate(model, data_for(model), attacks="pgd3,transfer", surrogate=surrogate)
        assert model.training
        assert surrogate.training
        assert all(parameter.grad is None for net in (model, surrogate) for parameter in net.parameters())


class TestOnnx:
    @pytest.fixture
    def model(self, tmp_path: Path) -> OnnxModel:
        return OnnxModel(saved_as_onnx(linear(), tmp_path / "net.onnx"), 2)

    def test_the_default_is_what_needs_no_gradients(self, model: OnnxModel, tmp_path: Path, short: None) -> None:
        data = data_for(linear(), 40)
        scores = evaluate(model, data, surrogate=linear(), folder=tmp_path / "a")
        assert list(scores.right) == ["natural", "square", "transfer"]
        assert scores.right["natural"].tolist() == closed_form(linear(), data.test, 0)
        assert scores.right["transfer"].tolist() == closed_form(linear(), data.test, 0.1)
        assert scores["transfer"] <= scores["square"] < scores["natural"]
        assert list(evaluate(model, data).right) == ["natural", "square"]
        scores = evaluate(model, data, attacks="square-paper", threat=Threat(radius=0.1))
        assert list(scores.right) == ["natural", "square-paper"]
        assert scores["square-paper"] < scores["natural"]
        found = result_in(tmp_path / "a")
        assert found["architecture"] == "net.onnx"
        assert found["model"] == model.fingerprint
        assert found["size"]["parameters"] == 0

    @pytest.mark.parametrize("attack", ["pgd20", "autoattack", "apgd-ce"])
    def test_an_attack_that_needs_gradients_is_refused_in_one_line(self, model: OnnxModel, attack: str) -> None:
        with pytest.raises(InputError) as caught:
            evaluate(model, data_for(linear()), attacks=f"natural,{attack}")
        message = (
            f"{attack} needs gradients, which this model has not; use natural, square, square-paper, transfer, replica"
        )
        assert str(caught.value) == message

    def test_as_a_surrogate_it_is_refused(self, model: OnnxModel) -> None:
        with pytest.raises(InputError, match="transfer needs gradients, which the surrogate does not give"):
            evaluate(linear(), data_for(linear()), attacks="transfer", surrogate=model)

    def test_nothing_is_wrong_with_it(self, model: OnnxModel) -> None:
        data = data_for(linear(), 40)
        assert evaluate(model, data, attacks="natural,transfer", surrogate=linear()).findings == ()


# What it warns of


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (lambda x: x.detach() + 0 * x, "vanishing-gradients"),
        (lambda x: (x * 8).round() / 8, "vanishing-gradients"),
        (lambda x: x + 0.1 * torch.randn_like(x), "randomised"),
    ],
)
def test_a_model_that_masks_its_gradients_is_found_out(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, mask: Callable[[Tensor], Tensor], found: str
) -> None:
    torch.manual_seed(0)
    chosen: dict[str, Any] = {"attacks": "natural,pgd20", "threat": Threat(radius=0.3, step=0.05)}
    scores = evaluate(Masked(tiny_teacher, mask), tiny_data, folder=tmp_path, **chosen)
    assert found in [finding.check for finding in scores.findings]
    result = result_in(tmp_path)
    assert result["unreliable"] is True
    assert [Finding(**warning) for warning in result["warnings"]] == list(scores.findings)
    plain = evaluate(tiny_teacher, tiny_data, **chosen)
    assert plain["pgd20"] < scores["pgd20"]  # what the warning is about
    assert found not in [finding.check for finding in plain.findings]


def test_without_checks_nothing_is_found(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data) -> None:
    model = Masked(tiny_teacher, lambda x: x.detach() + 0 * x)
    scores = evaluate(model, tiny_data, attacks="natural,fgsm", checks=False, folder=tmp_path)
    assert scores.findings == ()
    assert result_in(tmp_path)["unreliable"] is False


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (Tensor.detach, "appears to not have been used in the graph"),
        (lambda x: torch.from_numpy(x.numpy()), "Can't call numpy"),
    ],
)
def test_one_without_any_gradient_is_refused_by_attacks_that_need_it(
    mask: Callable[[Tensor], Tensor], reason: str, short: None
) -> None:
    model = Masked(curved(), mask)
    with pytest.raises(
        InputError, match=rf"^pgd3 needs gradients, which the model does not give \(.*{reason}"
    ) as caught:
        everything(model=model)
    assert str(caught.value).endswith("); without them there are natural, square, square-paper, transfer, replica")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="transfer needs gradients, which the surrogate does not give"):
        everything(surrogate=model)
    scores = everything(model=model, attacks="natural,square,transfer")
    assert scores["transfer"] < scores["natural"]
    assert "vanishing-gradients" in [finding.check for finding in scores.findings]


# What it is given


class Several(nn.Module):
    def __init__(self, others: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.others = curved(), others

    def forward(self, x: Tensor) -> Any:
        return self.others(self.net(x))


@pytest.mark.parametrize(
    "others",
    [
        lambda logits: (logits, torch.zeros(len(logits), 7)),
        lambda logits: [torch.zeros(len(logits), 3, 1), logits],
        lambda logits: {"logits": logits, "features": logits},
    ],
)
def test_a_model_that_returns_several_things_is_attacked_all_the_same(
    others: Callable[[Tensor], Any], short: None
) -> None:
    options: dict[str, Any] = {"attacks": "natural,pgd3,transfer,autoattack", "surrogate": Several(others), "batch": 8}
    expected = evaluate(curved(), data_for(curved()), **(options | {"surrogate": curved()}))
    found = evaluate(Several(others), data_for(curved()), **options)
    assert dict(found) == dict(expected)
    assert found["autoattack"] < found["natural"]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (lambda logits: (logits, -logits), "returns 2 things, of which 2 could be the logits; wrap it"),
        (lambda logits: {"a": logits}, r"returns a dict without 'logits' \(keys: a\)"),
        (lambda logits: (logits.mean(), 1), "returns 2 things, of which 0 could be the logits"),
    ],
)
def test_one_whose_logits_cannot_be_told_is_refused(others: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(Several(others), data_for(curved()), attacks="autoattack")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "float16"}, "precision = 'float16'; allowed: auto, float32"),
        ({"batch": 0}, "evaluation.batch = 0; allowed: at least 1"),
        ({"images": -1}, "evaluation.images = -1; allowed: at least 0"),
        ({"attacks": "pdg20"}, "unknown attack 'pdg20'"),
        ({"attacks": "standard"}, "unknown attack 'standard' .it is now autoattack, .* or paper"),
        ({"attacks": ""}, "no attack is named"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"model": "resnet18"}, "resnet18 does not exist; give a run folder"),
        ({"model": 18}, "the model must be an nn.Module or the name of a model, not a int"),
        ({"model": None}, "the model must be an nn.Module or the name of a model, not a NoneType"),
        ({"data": 3}, "cannot load data from a int"),
        ({"data": None}, "the model is no run folder; give --data NAME"),
        ({"surrogate": "resnet18"}, "resnet18 does not exist; give a run folder"),
        ({"surrogate": 18}, "the surrogate must be an nn.Module or the name of a model, not a int"),
        ({"threat": "linf"}, "the threat must be as pwoa.Threat"),
        ({"attacks": 20}, "evaluation.attacks = 20 is not a list of words"),
        ({"attacks": ["natural", 20]}, "evaluation.attacks = .* is not a list of words"),
        ({"radii": 0.1}, "evaluation.radii = 0.1 is not a list of numbers"),
        ({"radii": "near"}, "evaluation.radii = 'near' is not a number"),
        ({"images": 2.5}, "evaluation.images = 2.5 is not a whole number"),
        ({"batch": "all"}, "evaluation.batch = 'all' is not a whole number"),
        ({"seed": -2}, "evaluation.seed = -2; allowed: at least -1"),
        ({"seed": 2**64}, "evaluation.seed is too large; allowed: whole numbers up to 9223372036854775807"),
        ({"settings": {"evaluation.batch": 0}}, "evaluation.batch = 0; allowed: at least 1"),
        ({"settings": {"evaluation.bach": 1}}, "did you mean 'evaluation.batch'"),
        ({"settings": 5}, "settings must be"),
        ({"recipe": "mnits"}, "did you mean 'mnist'"),
        ({"device": None}, "device None cannot be used"),
    ],
)
def test_what_is_wrong_is_said_before_a_folder_is_made(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": curved(), "data": data_for(curved()), "folder": tmp_path / "a"} | options
    with pytest.raises(InputError, match=message) as caught:
        evaluate(**given)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("attacks", "precision", "built"),
    [("natural,pgd3", "auto", 1), ("natural", "auto", 0), ("natural,pgd3,apgd-ce", "float32", 0)],
)
def test_a_faster_copy_is_made_only_where_it_may_search(
    attacks: str, precision: str, built: int, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("pwoa.evaluation.robustness")
    made: list[nn.Module] = []

    def watched(model: nn.Module, *args: Any) -> None:
        made.append(model)

    monkeypatch.setattr(module, "attack_copy", watched)
    evaluate(curved(), data_for(curved()), attacks=attacks, precision=precision)
    assert len(made) == built
