"""The engine: the same bits twice, after any interruption; selection, averages, schedules."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.progress import Progress
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Run
from pwoa.training.engine import Engine
from pwoa.training.stage import Batch, Loss, Material, Stage
from pwoa.training.steps import Average, resume_optimizer


class Classify(Stage):
    """A toy method: one stage of plain classification that writes down what the engine does with it."""

    def __init__(self, model: nn.Module, name: str = "classify", epochs: int = 2, learning_rate: float = 0.1) -> None:
        self.name, self.epochs, self.learning_rate = name, epochs, learning_rate
        self.model = model
        self.calls: list[str] = []
        self.validation: list[Mapping[str, float]] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def before_epoch(self, epoch: int) -> None:
        self.calls.append(f"epoch {epoch}")

    def loss(self, batch: Batch) -> Loss:
        self.calls.append("loss" if self.model.training else "validate")
        logits = self.model(batch.x)
        loss = nn.functional.cross_entropy(logits, batch.y)
        return Loss(loss, {"classification": loss}, logits)

    def after_backward(self) -> None:
        assert all(p.grad is not None for p in self.model.parameters())
        self.calls.append("backward")

    def after_step(self) -> None:
        assert all(p.grad is None for p in self.model.parameters())
        self.calls.append("step")

    def after_epoch(self, epoch: int, validation: Mapping[str, float]) -> Mapping[str, Any]:
        self.validation.append(validation)
        return {"note": epoch}


def engine_for(
    folder: Path, model: nn.Module, stages: list[Stage], data: Data, recipe: Recipe, progress: Progress | None = None
) -> Engine:
    run = Run(folder)
    if not run.started:
        run.begin(recipe, {})
    material = Material.of(data, recipe, torch.device("cpu"))
    return Engine(model, stages, material, recipe.training, run, progress or Progress())


Make = Callable[..., Recipe]


def test_a_stage_is_called_in_order(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    stage = Classify(tiny_teacher)
    recipe = quick(training__batch=36, training__average=0.0)
    engine_for(tmp_path, tiny_teacher, [stage], tiny_data, recipe).train()
    epoch = ["loss", "backward", "step"] * 2 + ["validate"]
    assert stage.calls == ["begin", "epoch 0", *epoch, "epoch 1", *epoch]
    assert [set(parts) for parts in stage.validation] == [{"loss", "classification", "accuracy"}] * 2
    assert [line["note"] for line in Run(tmp_path).metrics()] == [0, 1]


def test_the_learning_rate_follows_a_cosine(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    engine = engine_for(tmp_path, tiny_teacher, [Classify(tiny_teacher, epochs=4)], tiny_data, quick())
    engine.train()
    rates = [line["learning_rate"] for line in Run(tmp_path).metrics()]
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4)])


def test_a_stage_that_warms_up_begins_with_small_steps(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    stage = Classify(tiny_teacher, epochs=4)
    stage.warmup = 2
    engine = engine_for(tmp_path, tiny_teacher, [stage], tiny_data, quick())
    engine.train()
    steps = len(engine.material.train) // engine.recipe.batch
    rates = [line["learning_rate"] for line in Run(tmp_path).metrics()]
    assert rates == pytest.approx([0.1 / (2 * steps), 0.1 * (steps + 1) / (2 * steps), 0.1, 0.05])


def test_the_epoch_with_the_lowest_validation_loss_of_the_last_stage_is_kept(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    """On labels that mean nothing: the loss on images not trained on goes up and down."""

    class Nonsense(Classify):
        def loss(self, batch: Batch) -> Loss:
            return super().loss(Batch(batch.x, batch.index % 3, batch.index))

    stages: list[Stage] = [Nonsense(tiny_teacher, "first"), Nonsense(tiny_teacher, "last", 6, learning_rate=0.2)]
    engine = engine_for(tmp_path, tiny_teacher, stages, tiny_data, quick(training__average=0.0))
    engine.train()
    losses = [line["validation"]["loss"] for line in Run(tmp_path).metrics() if line["stage"] == "last"]
    tiny_teacher.eval()
    positions = engine.material.validation
    with torch.no_grad():
        kept = nn.functional.cross_entropy(
            tiny_teacher(engine.material.images.batch(positions)[0]), positions % 3
        ).item()
    assert kept == pytest.approx(min(losses), rel=1e-4)
    assert kept < max(losses)
    assert kept != pytest.approx(losses[-1], rel=1e-4), "this test needs another epoch than the last to be best"


@pytest.mark.parametrize(("criterion", "best"), [("loss", 2), ("part", 1)])
def test_epochs_are_selected_by_the_validation_loss_of_the_stage(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, criterion: str, best: int
) -> None:
    """Whatever it is: here it is written down beforehand, and has nothing to do with what is trained."""
    values = {"loss": [3.0, 2.0, 1.0, 4.0], "part": [5.0, 0.5, 6.0, 7.0]}
    after: list[dict[str, torch.Tensor]] = []

    class Scripted(Classify):
        def validation_loss(self, batch: Batch) -> Loss:
            assert not self.model.training
            self.calls.append("scripted")
            loss, part = (torch.tensor(values[name][len(after)]) for name in ("loss", "part"))
            return Loss(loss, {"part": part}, self.model(batch.x))

        def after_epoch(self, epoch: int, validation: Mapping[str, float]) -> Mapping[str, Any]:
            after.append({name: value.clone() for name, value in self.model.state_dict().items()})
            return super().after_epoch(epoch, validation)

    stage = Scripted(tiny_teacher, epochs=4)
    stage.criterion = criterion
    engine = engine_for(tmp_path, tiny_teacher, [stage], tiny_data, quick(training__average=0.0))
    engine.train()
    assert engine.selected == best
    assert all(torch.equal(value, after[best][name]) for name, value in tiny_teacher.state_dict().items())
    assert not torch.equal(after[best]["out.weight"], after[-1]["out.weight"])
    assert [parts["loss"] for parts in stage.validation] == values["loss"]
    assert [parts["part"] for parts in stage.validation] == values["part"]
    assert [set(line["train"]) for line in Run(tmp_path).metrics()] == [{"loss", "classification", "accuracy"}] * 4
    assert "scripted" in stage.calls
    assert "validate" not in stage.calls  # the loss of training is not asked about validation images


def test_averaged_weights_are_the_average_of_the_steps(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    """One epoch, decay 0.5 but less at first: replayed by hand from the weights after each step."""
    average = {name: value.detach().clone() for name, value in tiny_teacher.named_parameters()}
    steps = itertools.count()

    class Recorder(Classify):
        def after_step(self) -> None:
            step = next(steps)
            for name, value in self.model.named_parameters():
                average[name].lerp_(value.detach(), 1 - min(0.5, (1 + step) / (10 + step)))

    recipe = quick(training__average=0.5)
    engine_for(tmp_path, tiny_teacher, [Recorder(tiny_teacher, epochs=1)], tiny_data, recipe).train()
    for name, value in tiny_teacher.named_parameters():
        torch.testing.assert_close(value.detach(), average[name])


@pytest.mark.parametrize("steps", [6, 200])
def test_averaging_does_not_ruin_a_short_training(steps: int) -> None:
    """A weight goes to 1 in the first steps; with the whole decay from the start the average would stay near 0."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = Average(model, 0.998)
    nn.init.ones_(model.weight)
    for step in range(steps):
        average.reach(step)
        average.update()
    (value,) = average.values
    assert float(value) > 0.99


def test_averaged_weights_have_normalisation_statistics_of_their_own(
    tmp_path: Path, tiny_teacher: Any, tiny_data: Data, quick: Make
) -> None:
    """Those of what the stage does with training images and the averaged weights, and not an average of statistics."""
    recipe = quick(training__average=0.9, training__batch=36)
    stage = Classify(tiny_teacher, epochs=2, learning_rate=0.5)
    engine = engine_for(tmp_path, tiny_teacher, [stage], tiny_data, recipe)
    engine.train()
    x = engine.material.images.batch(engine.material.train)[0]
    with torch.no_grad():
        inside = [tiny_teacher.conv(part) for part in x.split(36)]
    torch.testing.assert_close(
        tiny_teacher.norm.running_var, torch.stack([part.var((0, 2, 3)) for part in inside]).mean(0)
    )
    torch.testing.assert_close(
        tiny_teacher.norm.running_mean, torch.stack([part.mean((0, 2, 3)) for part in inside]).mean(0)
    )


def test_statistics_of_averaged_weights_are_those_of_augmented_images(
    tmp_path: Path, tiny_teacher: Any, tiny_data: Data, quick: Make
) -> None:
    """The weights were trained on shifted images with black borders, so white images are no longer all alike."""
    white = Images(torch.full_like(tiny_data.train.pixels, 255), tiny_data.train.labels)
    data = dataclasses.replace(tiny_data, train=white)
    recipe = quick(training__average=0.9, training__batch=36, data__augment="crop-flip")
    engine = engine_for(tmp_path, tiny_teacher, [Classify(tiny_teacher, learning_rate=0.0)], data, recipe)
    engine.train()
    material = engine.material
    draws = torch.Generator().manual_seed(recipe.training.seed)
    with torch.no_grad():
        inside = [tiny_teacher.conv(material.augmented(part, draws)[0]) for part in material.train.split(36)]
        plain = tiny_teacher.conv(material.images.batch(material.train)[0])
    found = tiny_teacher.norm.running_mean
    torch.testing.assert_close(found, torch.stack([part.mean((0, 2, 3)) for part in inside]).mean(0))
    assert not torch.allclose(found, plain.mean((0, 2, 3)), atol=1e-3)


def test_a_loss_that_is_not_finite_stops_the_run(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    engine = engine_for(tmp_path, tiny_teacher, [Classify(tiny_teacher, learning_rate=1e30)], tiny_data, quick())
    with pytest.raises(InputError, match=r"not finite after epoch \d of classify; lower classify.learning_rate"):
        engine.train()


def test_an_optimizer_goes_on_as_it_is_computed_here() -> None:
    weight = nn.Parameter(torch.ones(3))
    before = torch.optim.Adam([weight], 0.5)
    weight.grad = torch.ones(3)
    before.step()
    state = before.state_dict()
    state["param_groups"][0]["capturable"] = True  # as on a GPU
    after = torch.optim.Adam([weight], 0.1, fused=True, weight_decay=0.3)
    resume_optimizer(after, state)
    (group,) = after.param_groups
    assert (group["lr"], group["fused"], group["capturable"]) == (0.1, True, False)
    assert torch.equal(after.state[weight]["exp_avg"], before.state[weight]["exp_avg"])
    assert float(after.state[weight]["step"]) == 1


def test_a_batch_larger_than_the_data_is_refused(tiny_data: Data, quick: Make) -> None:
    with pytest.raises(InputError, match="a batch of 73 is larger than the 72 training images"):
        Material.of(tiny_data, quick(training__batch=73), torch.device("cpu"))


def test_the_users_random_state_is_left_alone(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    engine_for(tmp_path, tiny_teacher, [Classify(tiny_teacher)], tiny_data, quick()).train()
    assert torch.equal(torch.rand(3), expected)


class Dropping(nn.Module):
    """Uses the global generator, as users' models do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(self.drop(x))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("steps", [1, 2, 4, 5, 11, 15])
@pytest.mark.parametrize("within", [True, False])
def test_a_killed_training_ends_with_the_same_bits(
    tmp_path: Path,
    tiny_data: Data,
    quick: Make,
    killed: Callable[[int], Progress],
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    optimizer: str,
    within: bool,
) -> None:
    """Whether it is saved after every step, or at the ends of epochs only."""
    monkeypatch.setattr("pwoa.training.engine.SHARE", 0 if within else 1e9)
    recipe = quick(training__optimizer=optimizer)

    def train(folder: Path, progress: Progress) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)  # the model's first weights; everything after must not depend on it
        model = Dropping(nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))
        stages: list[Stage] = [Classify(model, "one"), Classify(model, "two")]
        torch.manual_seed(steps)
        engine_for(folder, model, stages, tiny_data, recipe, progress).train()
        return model.state_dict()

    whole = train(tmp_path / "whole", Progress())
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", killed(steps))
    if within and steps % 4 != 1:
        state = Run(tmp_path / "killed").load_checkpoint()
        assert state is not None
        assert state["step"] == (steps - 1) % 4
    resumed = train(tmp_path / "killed", Progress())
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    lines, expected = Run(tmp_path / "killed").metrics(), Run(tmp_path / "whole").metrics()
    assert [drop_seconds(line) for line in lines] == [drop_seconds(line) for line in expected]


def drop_seconds(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.endswith("seconds")}


class Cramped(Classify):
    """Runs out of memory, half-way through its forward pass, with more than so many images."""

    def __init__(self, model: nn.Module, most: int) -> None:
        super().__init__(model)
        self.most = most
        self.sizes: list[int] = []

    def loss(self, batch: Batch) -> Loss:
        loss = super().loss(batch)
        if self.model.training:
            self.sizes.append(len(batch.y))
            if len(batch.y) > self.most:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return loss


def test_a_batch_too_large_for_memory_is_cut_up_to_the_same_result(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    class Told(Progress):
        said: list[str] = []  # noqa: RUF012

        def say(self, message: str) -> None:
            self.said.append(message)

    recipe = quick(training__batch=24, training__group=4)
    found = []
    for most in (24, 10):
        model = copy.deepcopy(tiny_teacher)
        stage = Cramped(model, most)
        engine_for(tmp_path / str(most), model, [stage], tiny_data, recipe, Told()).train()
        found.append(model.state_dict())
    assert stage.sizes[:8] == [24, 12, 8, 8, 8, 8, 8, 8]
    assert Told.said == [f"out of memory: batches are now computed in {n} parts, to the same result" for n in (2, 3)]
    for name, value in found[0].items():
        assert torch.allclose(found[1][name].double(), value.double(), atol=1e-5), name
    metrics = [Run(tmp_path / str(most)).metrics() for most in (24, 10)]
    for whole, cut in zip(*metrics, strict=True):
        assert cut["train"] == pytest.approx(whole["train"], rel=1e-4)
        assert cut["validation"] == pytest.approx(whole["validation"], rel=1e-4)


def interrupted(
    folder: Path, model: nn.Module, data: Data, recipe: Recipe, progress: Progress
) -> tuple[Run, Callable[[Progress], None]]:
    """Return the folder of a training that was killed, and what resumes it."""

    def train(progress: Progress) -> None:
        student = copy.deepcopy(model)
        stages: list[Stage] = [Classify(student, "one"), Classify(student, "two")]
        engine_for(folder, student, stages, data, recipe, progress).train()

    with pytest.raises(KeyboardInterrupt):
        train(progress)
    return Run(folder), train


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": 99},
        {"stage": -1},
        {"epoch": 999},
        {"epoch": 2},
        {"stage": 2, "epoch": 1},
        {"step": 4},
        {"step": -2},
        {"stage": True},
        {"stage": "0"},
        {"epoch": 0.5},
        {"metrics": []},
        {"metrics": -2},
        {"metrics": [3]},
        {"best": {"epoch": 0}},
        {"step": 1},
        {"model": {}},
        {"stages": []},
        {"optimizer": {}},
        {"optimizer": 3},
        {"average": None},
        {"start": []},
        {"seconds": "1"},
        {"seconds": -1.0},
    ],
)
def test_a_state_that_cannot_be_is_refused(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    killed: Callable[[int], Progress],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    """Also if its checksum is right; and metrics.jsonl is left alone."""
    monkeypatch.setattr("pwoa.training.engine.SHARE", 1e9)
    run, train = interrupted(tmp_path, tiny_teacher, tiny_data, quick(), killed(7))
    lines = run.metrics()
    state = run.load_checkpoint()
    assert state is not None
    run.save_checkpoint({**state, **changes})
    with pytest.raises(
        InputError, match=r"checkpoint/state.pt is no state of this run \(.+\); delete it, and"
    ) as caught:
        train(Progress())
    assert "\n" not in str(caught.value)
    assert run.metrics() == lines


@pytest.mark.parametrize("content", [None, b"", b"{}\n", b"\xff"])
def test_metrics_that_are_lost_are_told_before_training_and_written_anew(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    killed: Callable[[int], Progress],
    told: Any,
    content: bytes | None,
) -> None:
    run, train = interrupted(tmp_path, tiny_teacher, tiny_data, quick(), killed(7))
    if content is None:
        (tmp_path / "metrics.jsonl").unlink()
    else:
        (tmp_path / "metrics.jsonl").write_bytes(content)
    train(told)
    assert told.said == ["metrics.jsonl was lost or changed; it is written anew from the saved state"]
    assert [(line["stage"], line["epoch"]) for line in run.metrics()] == [
        *(("one", 0), ("one", 1), ("two", 0), ("two", 1)),
    ]


def test_metrics_that_are_lost_while_it_trains_are_there_in_the_end(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    class Losing(Classify):
        def before_epoch(self, epoch: int) -> None:
            (tmp_path / "metrics.jsonl").unlink(missing_ok=True)

    engine_for(tmp_path, tiny_teacher, [Losing(tiny_teacher, epochs=3)], tiny_data, quick()).train()
    assert [line["epoch"] for line in Run(tmp_path).metrics()] == [0, 1, 2]


def test_saving_within_epochs_takes_a_small_part_of_the_time(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock of its own: each step takes a second, and each save three."""
    now, saves = [0.0], []

    class Ticking(Progress):
        def advance(self, units: int = 1) -> None:
            now[0] += 1

    def save(run: Run, state: Mapping[str, Any]) -> None:
        saves.append((state["epoch"], state["step"], now[0]))
        now[0] += 3

    monkeypatch.setattr("pwoa.training.engine.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(Run, "save_checkpoint", save)
    recipe = quick(training__batch=2, training__checkpoint_seconds=10.0)
    stage = Classify(tiny_teacher, epochs=5)
    engine = engine_for(tmp_path, tiny_teacher, [stage], tiny_data, recipe, Ticking())
    engine.train()
    assert saves[0] == (0, 10, 10.0)  # no save has taken time yet
    assert saves[1][:2] == (2, 0) or saves[1][2] >= 13 + 10
    within = [at for _, step, at in saves if step]
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(within))
    assert engine.seconds == 5 * 36


def test_the_end_of_a_stage_is_saved_when_a_save_is_due_and_that_of_the_last_one_always(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last one nothing is saved that only further training would need."""
    states: list[Mapping[str, Any]] = []
    monkeypatch.setattr(Run, "save_checkpoint", lambda run, state: states.append(state))
    for seconds in (1000.0, 0.0):
        folder = tmp_path / f"{seconds:g}"
        stages: list[Stage] = [Classify(tiny_teacher, epochs=2), Classify(tiny_teacher, epochs=1)]
        recipe = quick(training__batch=72, training__checkpoint_seconds=seconds)
        engine_for(folder, tiny_teacher, stages, tiny_data, recipe).train()
    assert [(state["stage"], state["epoch"]) for state in states] == [(2, 0), (0, 1), (1, 0), (2, 0)]
    for state in states:
        assert ({"model", "optimizer", "average", "stages"} <= set(state)) == (state["stage"] < 2)
        assert (state["best"] is not None) == (state["stage"] == 2)


class Slow(Classify):
    """Takes its time over validation."""

    def validation_loss(self, batch: Batch) -> Loss:
        time.sleep(0.3)
        return self.loss(batch)


def test_validation_does_not_count_as_training(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    engine = engine_for(tmp_path, tiny_teacher, [Slow(tiny_teacher)], tiny_data, quick(training__batch=72))
    engine.train()
    lines = Run(tmp_path).metrics()
    assert all(line["validation_seconds"] >= 0.3 > line["seconds"] for line in lines)
    assert engine.seconds == sum(line["seconds"] for line in lines)
    assert engine.validation_seconds == sum(line["validation_seconds"] for line in lines)


class Pairs(Classify):
    """Passes each image with a moved one, as TRADES does, and notes the images in a statistic."""

    def loss(self, batch: Batch) -> Loss:
        pairs = torch.stack([batch.x, 1 - batch.x], 1).flatten(0, 1)
        logits = self.model(pairs)
        ce = F.cross_entropy(logits[0::2], batch.y) + F.cross_entropy(logits[1::2], batch.y)
        return Loss(ce, {"classification": ce}, logits[0::2])


@pytest.mark.parametrize("batch", [8, 24])
def test_pairs_have_statistics_over_so_many_images_whether_or_not_a_batch_is_one_group(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    sizes: set[int] = set()
    measure, plain = torch.var_mean, F.batch_norm

    def var_mean(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.add(x.shape[1])
        return measure(x, *args, **kwargs)

    def batch_norm(x: Tensor, mean: Any, variance: Any, weight: Any, bias: Any, training: bool, *args: Any) -> Tensor:
        sizes.update({len(x)} if training else ())
        return plain(x, mean, variance, weight, bias, training, *args)

    monkeypatch.setattr(torch, "var_mean", var_mean)
    monkeypatch.setattr(F, "batch_norm", batch_norm)
    recipe = quick(training__batch=batch, training__group=8)
    engine_for(tmp_path, tiny_teacher, [Pairs(tiny_teacher)], tiny_data, recipe).train()
    assert sizes == {16}


def test_memory_that_does_not_hold_a_group_is_an_error(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    recipe = quick(training__batch=24, training__group=8)
    engine = engine_for(tmp_path, tiny_teacher, [Cramped(tiny_teacher, 4)], tiny_data, recipe)
    with pytest.raises(InputError, match=r"out of memory with 8 images at a time; lower training\.group"):
        engine.train()
