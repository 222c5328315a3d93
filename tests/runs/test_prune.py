"""Pruning from end to end on tiny data, through the Python interface."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pwoa
from pwoa.data.images import Data, Images
from pwoa.demo import NAIVE
from pwoa.errors import InputError
from pwoa.evaluation.comparison import compare
from pwoa.evaluation.folder import OF_TEACHER
from pwoa.guard import ExampleFreeViolation
from pwoa.methods import METHODS
from pwoa.methods.pwoa import Pwoa, Search
from pwoa.progress import Progress
from pwoa.recipe import load_recipe, recorded_recipe, to_toml
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Result, Run
from pwoa.runs.pretrain import pretrain
from pwoa.runs.prune import prune
from pwoa.sparsity import constraint
from pwoa.sparsity.allocation import allocate
from pwoa.storage.folder import replacing, unsealed
from pwoa.sweep import sweep
from pwoa.training.stage import Batch, Loss, Material
from pwoa.training.validation import hsic_plane

Make = Callable[..., Recipe]


@pytest.fixture
def result(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> Result:
    return prune(tiny_teacher, tiny_data, rate=4, recipe=quick(), folder=tmp_path / "run")


def test_the_rate_is_met_exactly_in_every_layer(result: Result, tiny_teacher: nn.Module) -> None:
    kept = {row["layer"]: row["kept"] for row in result.summary["sparsity"]}
    assert kept == {"conv.weight": 9, "hidden.weight": 576, "out.weight": 12, "total": 597}
    for name, weight in result.model.named_parameters():
        if name in kept:
            assert int(torch.count_nonzero(weight)) == kept[name]
    assert result.summary["rate"] == 4.0


def test_the_teacher_is_not_touched(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    before = {name: value.clone() for name, value in tiny_teacher.state_dict().items()}
    prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "run")
    assert all(torch.equal(value, before[name]) for name, value in tiny_teacher.state_dict().items())
    assert all(parameter.requires_grad for parameter in tiny_teacher.parameters())


def test_the_run_folder_tells_everything(result: Result) -> None:
    names = {path.name for path in result.folder.iterdir()}
    assert names == {
        "recipe.toml",
        "teacher.json",
        "metrics.jsonl",
        "model.safetensors",
        "model.json",
        "result.json",
        "evaluation",
    }
    recipe = recorded_recipe(result.folder)
    assert recipe.sparsity.rate == 4
    assert recipe.teacher.checkpoint == "given"
    about = json.loads((result.folder / "model.json").read_text())
    assert about["threat"] == {"norm": "linf", "radius": 0.05, "step": 0.0125}
    assert len(about["teacher"]) == 64
    summary = json.loads((result.folder / "result.json").read_text())
    assert unsealed(summary, "result.json") == result.summary
    assert summary["example_free"] is True
    assert set(summary["teacher"]) == set(summary["pruned"]) == {"natural", "pgd2", "worst"}
    loaded = pwoa.load_model(result.folder, architecture=type(result.model)())
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in result.model.state_dict().items())


def test_metrics_name_every_part_of_the_loss(result: Result) -> None:
    search, finetune = result.metrics[0], result.metrics[-1]
    assert search["stage"] == "search"
    assert set(search["train"]) == {"loss", "distillation", "hsic_x", "hsic_y", "admm", "accuracy"}
    assert set(finetune["validation"]) == {"loss", "distillation", "hsic_x", "hsic_y", "accuracy"}
    assert {"hsic_x_last", "hsic_y_last", "learning_rate", "seconds"} <= set(finetune)
    parts = search["train"]
    total = parts["distillation"] + 1e-4 * parts["hsic_x"] - 1e-4 * parts["hsic_y"] + parts["admm"]
    assert parts["loss"] == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("method", ["pwoa", "hydra"])
def test_the_first_line_has_the_teachers_own_point_of_the_hsic_plane(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    killed: Callable[[int], Progress],
    method: str,
) -> None:
    recipe = quick(method=method)
    measure = hsic_plane(tiny_teacher, Material.of(tiny_data, recipe, torch.device("cpu")), (), normalised=True)
    with pytest.raises(KeyboardInterrupt):
        prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run", progress=killed(10))
    metrics = prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run").metrics
    assert metrics[0]["start"] == pytest.approx(measure())
    assert metrics[0]["hsic_x_last"] != metrics[0]["start"]["hsic_x_last"]
    assert not any("start" in line for line in metrics[1:])


def test_after_a_loss_that_is_not_finite_the_advice_can_be_followed_in_the_same_folder(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    wild = quick(search__learning_rate=1e30)
    with pytest.raises(InputError, match=r"lower search.learning_rate or .*; the folder can be given again"):
        prune(tiny_teacher, tiny_data, recipe=wild, folder=tmp_path / "run")
    result = prune(tiny_teacher, tiny_data, recipe=quick(search__learning_rate=0.01), folder=tmp_path / "run")
    assert len(result.metrics) == result.summary["trained_epochs"] == 6


def test_the_state_of_another_run_is_refused(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, killed: Callable[[int], Progress]
) -> None:
    for name, rate, seed in (("ours", 4.0, 0), ("theirs", 16.0, 9)):
        recipe = quick(sparsity__rate=rate, training__seed=seed)
        with pytest.raises(KeyboardInterrupt):
            prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / name, progress=killed(10))
    state = (tmp_path / "theirs" / "checkpoint" / "state.pt").read_bytes()
    (tmp_path / "ours" / "checkpoint" / "state.pt").write_bytes(state)
    with pytest.raises(InputError, match=r"state.pt is of a run with another recipe, teacher or data"):
        prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "ours")


def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    first, again, other = (
        prune(tiny_teacher, tiny_data, recipe=quick(training__seed=seed), folder=tmp_path / name).model.state_dict()
        for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_distillation_follows_the_teacher_and_cross_entropy_does_not(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    def distance(settings: dict[str, Any], name: str) -> float:
        recipe = quick(finetune__epochs=20, search__learning_rate=0.005, finetune__learning_rate=0.005)
        recipe = recipe.with_settings(settings)
        model = prune(tiny_teacher, tiny_data, rate=2, recipe=recipe, folder=tmp_path / name).model
        x, _ = tiny_data.test.batch(torch.arange(48))
        with torch.no_grad():
            difference: Tensor = model(x) - tiny_teacher(x)
        return (difference - difference.mean(1, keepdim=True)).square().mean().item()  # a softmax sees no shift

    assert distance({}, "ours") < 0.2 * distance(NAIVE, "naive")


def test_a_run_killed_anywhere_ends_with_the_same_bits(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, killed: Callable[[int], Progress]
) -> None:
    whole = prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "whole")
    for at in (1, 7, 13, 22, 25, 26):  # 4 steps an epoch, 3 + 3 epochs, then a step a model of evaluation
        folder = tmp_path / f"killed-{at}"
        with pytest.raises(KeyboardInterrupt):
            prune(tiny_teacher, tiny_data, recipe=quick(), folder=folder, progress=killed(at))
        assert not (folder / "result.json").exists()
        resumed = prune(tiny_teacher, tiny_data, recipe=quick(), folder=folder)
        assert (folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
        assert resumed.summary["pruned"] == whole.summary["pruned"]


def test_a_finished_run_is_given_back(tmp_path: Path, result: Result, tiny_teacher: nn.Module, tiny_data: Data) -> None:
    class Refusing(Progress):
        def start(self, task: str, total: int, done: int = 0) -> None:
            assert task.startswith("loading"), "nothing should be computed again"

    recipe = recorded_recipe(result.folder)
    again = prune(tiny_teacher, tiny_data, recipe=recipe, folder=result.folder, progress=Refusing())
    assert again.summary == result.summary
    assert all(torch.equal(v, again.model.state_dict()[k]) for k, v in result.model.state_dict().items())
    assert all(parameter.requires_grad for model in (result.model, again.model) for parameter in model.parameters())


def test_without_a_folder_one_is_chosen(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = prune(tiny_teacher, tiny_data, rate=4, recipe=quick())
    assert str(first.folder) == "runs/custom-tinynet-pwoa-x4-seed0"
    assert prune(tiny_teacher, tiny_data, rate=4, recipe=quick()).folder == first.folder
    changed = prune(tiny_teacher, tiny_data, rate=4, recipe=quick(finetune__epochs=1))
    assert str(changed.folder) == "runs/custom-tinynet-pwoa-x4-seed0-2"


def test_other_data_of_the_same_name_is_another_run(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = Data("custom", tiny_data.train, tiny_data.test.first(40), 3)
    first = prune(tiny_teacher, tiny_data, recipe=quick())
    second = prune(tiny_teacher, other, recipe=quick())
    assert first.folder != second.folder
    assert second.summary["images"] == 40
    with pytest.raises(InputError, match=r"holds another run \(data: there "):
        prune(tiny_teacher, other, recipe=quick(), folder=first.folder)


def test_a_data_set_whose_images_changed_is_another_one(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    """A hash is kept for as long as a run takes, not for the next one."""
    train = Images(tiny_data.train.pixels.clone(), tiny_data.train.labels)
    data = Data(tiny_data.name, train, tiny_data.test, tiny_data.classes)
    prune(tiny_teacher, data, recipe=quick(), folder=tmp_path / "run")
    train.pixels[0] = train.pixels[1]
    with pytest.raises(InputError, match=r"holds another run \(data: there "):
        prune(tiny_teacher, data, recipe=quick(), folder=tmp_path / "run")


def test_what_the_user_froze_stays(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    tiny_teacher.get_submodule("norm").requires_grad_(False)
    result = prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "run")
    for name in ("norm.weight", "norm.bias"):
        assert torch.equal(result.model.state_dict()[name], tiny_teacher.state_dict()[name])


def test_a_teacher_frozen_for_inference_can_be_pruned_and_one_frozen_in_part_cannot(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    tiny_teacher.requires_grad_(False)
    result = prune(tiny_teacher, tiny_data, rate=4, recipe=quick(), folder=tmp_path / "run")
    assert result.summary["rate"] == 4
    assert not any(parameter.requires_grad for parameter in tiny_teacher.parameters())
    tiny_teacher.get_submodule("out").requires_grad_(True)
    with pytest.raises(InputError, match=r"conv\.weight is frozen"):
        prune(tiny_teacher, tiny_data, rate=4, recipe=quick(), folder=tmp_path / "other")


def test_a_model_of_one_layer_can_be_pruned_without_hsic(tmp_path: Path, tiny_data: Data, quick: Make) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    with pytest.raises(InputError, match="no hidden layer"):
        prune(model, tiny_data, rate=2, recipe=quick(), folder=tmp_path / "run", force=True)
    plain = quick(objective__hsic_x=0.0, objective__hsic_y=0.0)
    assert prune(model, tiny_data, rate=2, recipe=plain, folder=tmp_path / "run", force=True).summary["rate"] == 2


class Attacking(Pwoa):
    """A method that breaks its word: it makes an adversarial example in training or in selection."""

    when = True

    def __init__(self, student: nn.Module, *args: Any) -> None:
        super().__init__(student, *args)
        honest = self.stages[0].loss

        def loss(batch: Batch) -> Loss:
            if student.training == self.when:
                x = torch.rand_like(batch.x, requires_grad=True)
                with torch.enable_grad():
                    student(x).sum().backward()
            return honest(batch)

        self.stages[0].loss = loss  # type: ignore[method-assign]


class Selecting(Attacking):
    when = False


@pytest.mark.parametrize("method", [Attacking, Selecting])
def test_an_example_free_run_cannot_make_examples(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    monkeypatch: pytest.MonkeyPatch,
    method: type[Attacking],
) -> None:
    monkeypatch.setitem(METHODS, "attacking", method)
    with pytest.raises(ExampleFreeViolation):
        prune(tiny_teacher, tiny_data, recipe=quick(method="attacking"), folder=tmp_path / "run")


def test_auto_balance_sets_the_papers_ratios(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Pwoa] = []

    class Remembered(Pwoa):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setitem(METHODS, "pwoa", Remembered)
    recipe = quick(objective__balance="auto", objective__hsic_x=4.0, objective__hsic_y=1.0)
    result = prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run")
    parts = result.metrics[0]["validation"]
    search = made[0].stages[0]
    assert isinstance(search, Search)
    weights = search._objective.weights
    assert parts["admm"] / (weights.distillation * parts["distillation"]) == pytest.approx(10)
    regulariser = abs(weights.hsic_x * parts["hsic_x"] - weights.hsic_y * parts["hsic_y"])
    assert weights.distillation * parts["distillation"] / regulariser == pytest.approx(10)
    assert weights.hsic_x / weights.hsic_y == pytest.approx(4)
    assert result.metrics[0]["weights"]["distillation"] == weights.distillation


class Pair(nn.Module):
    """A model that returns its logits together with a feature, as several public repositories' do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten(1), self.model(x)


def test_a_model_that_returns_a_tuple_can_be_pruned(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    result = prune(Pair(tiny_teacher), tiny_data, rate=4, recipe=quick(), folder=tmp_path / "run")
    assert result.summary["rate"] == 4.0
    assert isinstance(result.model, Pair)


def test_plain_hsic_and_bfloat16_and_augmentation_run(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    recipe = quick(objective__hsic="plain", data__augment="crop-flip")
    assert prune(tiny_teacher, tiny_data, rate=4, recipe=recipe, folder=tmp_path / "run").summary["rate"] == 4.0


@pytest.mark.parametrize("method", ["pwoa", "hydra", "apd", "magnitude"])
def test_what_each_layer_keeps_is_found_once(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    found = []

    def allocated(*args: Any) -> dict[str, int]:
        found.append(allocate(*args))
        return found[-1]

    monkeypatch.setattr(constraint, "allocate", allocated)
    recipe = quick(method=method, sparsity__rate=8.0, sparsity__allocation="lamp")
    result = prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run", force=True)
    (kept,) = found
    assert {row["layer"]: row["kept"] for row in result.summary["sparsity"] if row["layer"] in kept} == kept


def test_a_teacher_that_was_evaluated_is_not_measured_again(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, told: Any
) -> None:
    first = prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "first")
    known = first.folder / OF_TEACHER
    run = tmp_path / "run"
    again = prune(tiny_teacher, tiny_data, recipe=quick(), folder=run, teacher_evaluation=known, progress=told)
    assert again.summary["teacher"] == first.summary["teacher"]
    assert f"{known} is finished, and is used again" in told.said
    assert compare(run).rows == compare(known, run).rows  # the verdicts are there as well
    other, folder = quick(training__seed=1), tmp_path / "other"
    with pytest.raises(InputError, match=r"holds another evaluation .*seed"):
        prune(tiny_teacher, tiny_data, recipe=other, folder=folder, teacher_evaluation=known)


@pytest.mark.parametrize("given", [3, {}, "."])
def test_what_is_no_evaluation_of_the_teacher_is_told_before_training(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, given: Any
) -> None:
    with pytest.raises(InputError, match="is no folder of an evaluation, as RUN/evaluation/teacher is"):
        prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "run", teacher_evaluation=given)
    assert not (tmp_path / "run").exists()


def test_a_copy_of_an_evaluation_that_was_broken_off_is_not_taken_for_a_whole_one(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "first")
    known, run = first.folder / OF_TEACHER, tmp_path / "run"

    def stop(path: Path) -> Any:
        if path.name == "result.json" and path.parent == run / OF_TEACHER:
            raise KeyboardInterrupt
        return replacing(path)

    monkeypatch.setattr("pwoa.evaluation.folder.replacing", stop)
    with pytest.raises(KeyboardInterrupt):
        prune(tiny_teacher, tiny_data, recipe=quick(), folder=run, teacher_evaluation=known)
    monkeypatch.undo()
    again = prune(tiny_teacher, tiny_data, recipe=quick(), folder=run, teacher_evaluation=known)
    assert again.summary["teacher"] == first.summary["teacher"]


class Softmax(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.model(x), 1)


class Bad:
    """Teachers that cannot be pruned."""

    @staticmethod
    def nan(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            model.get_parameter("hidden.weight")[0, 0] = torch.nan
        return model

    @staticmethod
    def fragile(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        return model

    @staticmethod
    def four_classes(model: nn.Module) -> nn.Module:
        model.out = nn.Linear(16, 4)
        return model


@pytest.mark.parametrize(
    ("spoil", "settings", "message"),
    [
        (Bad.nan, {}, "NaN or infinite weights in hidden.weight"),
        (Bad.four_classes, {}, "the model gives 4 classes, the data has 3"),
        (Softmax, {}, "outputs probabilities"),
        (Bad.fragile, {"teacher.minimum": 60.0}, r"not robust: .* under PGD-10 .*--force"),
        (None, {"sparsity.rate": 0.5}, r"sparsity.rate = 0.5; allowed: at least 1"),
        (None, {"sparsity.rate": 100.0}, "leaves layer conv.weight empty"),
        (None, {"training.batch": 100}, "a batch of 100 is larger than the 72 training images"),
        (None, {"data.validation": 96}, "cannot hold out 96 .* set data.validation to fewer, such as 9"),
        (None, {"method": "pwao"}, "unknown method 'pwao'.*'pwoa'"),
        (None, {"objective.points": ["hiden"]}, "did you mean 'hidden'"),
        (
            None,
            {"objective.distillation": 0.0, "objective.hsic_x": 0.0, "objective.hsic_y": 0.0},
            "nothing to minimise",
        ),
        (None, {"training.device": "quantum"}, "device 'quantum' cannot be used"),
        (None, {"training.device": "meta"}, "only cpu and cuda"),
        (None, {"objective.balance": "auto", "objective.distillation": 0.0}, "needs the distillation term"),
        (None, {"evaluation.attacks": ["pgd"]}, "unknown attack 'pgd'"),
        (None, {"evaluation.attacks": []}, "no attack is named; give natural"),
        (None, {"evaluation.attacks": ["transfer"]}, "a run has no surrogate for the attack transfer"),
        (None, {"training.batch": 60, "training.group": 16}, "a batch of 60 cannot be cut in groups of 16"),
        (None, ["sparsity.rate=4"], r"settings must be as \{'training.seed': 1\}"),
        (None, {"method": "trades"}, "trades trains a model from scratch: use pwoa pretrain"),
        (None, {"training.mix": 0.03}, "training.mix = 0.03 of a batch of 16 is less than one example"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    spoil: Callable[[nn.Module], nn.Module] | None,
    settings: Any,
    message: str,
) -> None:
    teacher = spoil(tiny_teacher) if spoil else tiny_teacher
    folder = tmp_path / "new" / "run"
    with pytest.raises(InputError, match=message) as caught:
        prune(teacher, tiny_data, recipe=quick(), settings=settings, folder=folder)
    assert "\n" not in str(caught.value)
    assert not folder.parent.exists()


def test_force_prunes_a_teacher_that_is_not_robust(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    recipe = quick(teacher__minimum=60.0)
    result = prune(Bad.fragile(tiny_teacher), tiny_data, recipe=recipe, folder=tmp_path / "run", force=True)
    assert Run(result.folder).read_json("teacher.json")["pgd10"] < 60


def test_a_class_is_not_a_model(tiny_data: Data) -> None:
    with pytest.raises(InputError, match=r"must be an nn\.Module"):
        prune(Softmax, tiny_data)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"must be an nn\.Module"):
        pretrain("lenet", tiny_data)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give a network"):
        pwoa.load_model("embedded", tiny_data, architecture=Softmax)  # type: ignore[arg-type]


def test_evaluate_takes_any_model_and_tensors(tiny_teacher: nn.Module, tiny_data: Data) -> None:
    scores = pwoa.evaluate(
        tiny_teacher, tiny_data, attacks="natural,fgsm", threat=pwoa.Threat(radius=0.05, step=0.01), device="cpu"
    )
    assert list(scores) == ["natural", "fgsm"]
    assert scores["natural"] >= scores["fgsm"]
    assert scores.images == 48


def test_what_a_run_chose_itself_makes_it_no_other(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    assert quick().training.mode == "auto"
    chosen = quick(training__mode="exact")
    with pytest.raises(KeyboardInterrupt):
        prune(tiny_teacher, tiny_data, recipe=chosen, folder=tmp_path / "run", progress=Stopped())
    again = prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "run")
    assert recorded_recipe(again.folder).training.mode == "exact"
    other = quick(training__mode="fast")
    with pytest.raises(InputError, match=r'another run \(training\.mode: there "exact", now "fast"\)'):
        prune(tiny_teacher, tiny_data, recipe=other, folder=tmp_path / "run")


def test_a_tenth_is_held_out_where_the_recipe_leaves_it_open(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    short: dict[str, Any] = {"search__epochs": 1, "finetune__epochs": 1}
    given, left_open = quick(data__validation=9, **short), quick(data__validation=0, **short)
    with pytest.raises(KeyboardInterrupt):
        prune(tiny_teacher, tiny_data, recipe=given, folder=tmp_path / "run", progress=Stopped())
    again = prune(tiny_teacher, tiny_data, recipe=left_open, folder=tmp_path / "run")
    assert recorded_recipe(again.folder).data.validation == 9
    trained = pwoa.pretrain(
        tiny_teacher,
        tiny_data,
        recipe=left_open,
        settings={"method": "pgd-at", "pretrain.epochs": 1},
        folder=tmp_path / "b",
    )
    assert recorded_recipe(trained.folder).data.validation == 9


class Stopped(Progress):
    """Interrupts a run after its first epoch."""

    def epoch(self, line: Mapping[str, Any], epochs: int) -> None:
        raise KeyboardInterrupt


def test_a_run_says_its_method_and_whether_it_is_example_free(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    class Listening(Progress):
        said = ""

        def say(self, message: str) -> None:
            self.said += message + "\n"

    free, mixed = Listening(), Listening()
    short = {"search__epochs": 1, "finetune__epochs": 1}
    recipe = quick(**short)
    run = prune(tiny_teacher, tiny_data, method="hydra", recipe=recipe, folder=tmp_path / "a", progress=free)
    assert run.summary["method"] == "hydra"
    assert "hydra: " in free.said
    assert ", 1 + 1 epochs on " in free.said
    assert "natural examples only" in free.said
    prune(tiny_teacher, tiny_data, recipe=quick(training__mix=0.5, **short), folder=tmp_path / "b", progress=mixed)
    assert "mix ratio 0.5, not example-free" in mixed.said
    prune(tiny_teacher, tiny_data, method="magnitude", recipe=recipe, folder=tmp_path / "c", progress=mixed)
    assert ", 1 epoch on " in mixed.said  # it searches nothing


def test_the_folder_of_a_data_set_given_by_name_is_taken(tmp_path: Path) -> None:
    for work in (prune, pretrain):
        with pytest.raises(InputError, match=f"{tmp_path}/none is not a folder: give the one that holds the files"):
            work(data="mnist", settings={"data.folder": f"{tmp_path}/none"}, folder=tmp_path / "run")


def test_a_network_of_another_width_keeps_its_name_in_that_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("mnist").with_settings({"teacher.architecture": "lenet@0.352", "training.seed": 3})
    assert Run.choose(None, recipe, {}).path == Path("runs/mnist-lenet@0.352-pwoa-x4-seed3")


EVIL = """
from pathlib import Path
Path("ran").touch()

def main():
    raise SystemExit("it ran")
"""


@pytest.mark.parametrize("setting", ["teacher.architecture", "teacher.checkpoint"])
@pytest.mark.parametrize("place", ["recipe", "run", "set", "grid", "table", "recipe of a grid"])
def test_a_file_cannot_ask_to_run_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "run").mkdir()
    recipe = tmp_path / ("run/recipe.toml" if place == "run" else "evil.toml")
    recipe.write_text(f'{setting} = "evil.py:main"\n')
    grids = {
        "set": f'set.{setting} = "evil.py:main"\ngrid.training.seed = [0]\n',
        "grid": f'grid.{setting} = ["evil.py:main"]\n',
        "table": f'grid.teacher = [{{ {setting.partition(".")[2]} = "evil.py:main" }}]\n',
        "recipe of a grid": 'recipe = "evil.toml"\ngrid.training.seed = [0]\n',
    }
    (tmp_path / "grid.toml").write_text(grids.get(place, ""))
    with pytest.raises(InputError) as caught:
        sweep("grid.toml", "swept") if place in grids else prune(recipe=recipe, folder="out")
    option = {"teacher.architecture": "--arch", "teacher.checkpoint": "--checkpoint"}[setting]
    assert f"{setting} = 'evil.py:main' is Python code, which a file cannot ask to run" in str(caught.value)
    assert f"{option} evil.py:main" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


NET = """
import torch

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(784, 10))
"""


def test_code_that_the_user_names_is_run_also_in_a_run_and_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: Callable[[int, int], Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    torch.save({"1.weight": torch.randn(10, 784), "1.bias": torch.zeros(10)}, tmp_path / "net.pt")
    short: dict[str, Any] = {"search.epochs": 1, "finetune.epochs": 1, "training.batch": 16, "data.validation": 8}
    short |= {"evaluation.attacks": ["natural"], "evaluation.checks": False, "teacher.minimum": 0}
    short |= {"objective.hsic_x": 0, "objective.hsic_y": 0}
    recipe = Recipe().with_settings({**short, "data.name": str(digits(40, 10)), "teacher.checkpoint": "net.pt"})
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    own = {"teacher.architecture": "net.py:Net"}
    result = prune(recipe="recipe.toml", settings=own, folder="run")
    assert recorded_recipe("run").teacher.architecture == "net.py:Net"
    with pytest.raises(InputError, match=r"recipe.toml: teacher.architecture = 'net.py:Net' is Python code"):
        prune(recipe="run/recipe.toml", folder="run")
    again = prune(recipe="run/recipe.toml", settings=own, folder="run")
    assert again.summary == result.summary
    with pytest.raises(InputError, match=r"give it yourself: --arch net\.py:Net \("):
        pwoa.evaluate("run", device="cpu")
    assert pwoa.evaluate("run", architecture="net.py:Net", device="cpu").accuracies == result.summary["pruned"]
    (tmp_path / "grid.toml").write_text('recipe = "recipe.toml"\ngrid.training.seed = [0]\n')
    swept = sweep("grid.toml", "swept", settings=["teacher.architecture=net.py:Net"])
    assert swept.failed == {}
    assert [row["natural"] for row in swept.rows[1:]] == [result.summary["pruned"]["natural"]]


@pytest.mark.parametrize(
    "given",
    [
        {"settings": {"evaluation.radii": "9" * 5000}},
        {"settings": {"objective.temperature": 1e300}},
        {"rate": 10**5000},
    ],
)
def test_numbers_that_cannot_be_are_refused_before_anything_is_trained(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Callable[..., Recipe], given: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as caught:
        prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "run", **given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("data", "preset"), [("mnist", "mnist-hydra"), ("mnist-mini", "demo")])
def test_without_a_recipe_a_method_takes_its_preset_for_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, preset: str, nested: bool
) -> None:
    settings: dict[str, Any] = {"data": {"name": data}} if nested else {"data.name": data}
    chosen: list[Recipe] = []

    def stop(plan: Recipe, *rest: object) -> None:
        chosen.append(plan)
        raise InputError("far enough")

    monkeypatch.setattr("pwoa.runs.prepare.load_given", lambda *rest: None)
    monkeypatch.setattr("pwoa.runs.prepare.load_rest", stop)
    with pytest.raises(InputError, match="far enough"):
        prune("embedded", data=None, method="hydra", settings=settings, folder=tmp_path / "run")
    (plan,) = chosen
    meant = load_recipe(preset).with_settings({"method": "hydra", "teacher.checkpoint": "embedded"})
    assert (plan.search, plan.training, plan.pretrain) == (meant.search, meant.training, meant.pretrain)
