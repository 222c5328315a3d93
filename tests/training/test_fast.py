"""The fast mode ends near the exact one. Here it is traced and lowered, but not turned into machine code."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pwoa
from pwoa.data.images import Data, Images
from pwoa.methods import find_method
from pwoa.methods.adversarial import RobustTraining
from pwoa.methods.apd import Proximal
from pwoa.methods.fast_at import FastAt
from pwoa.methods.harp import largest_by_rank
from pwoa.methods.pwoa import Search
from pwoa.models.architectures.registry import build
from pwoa.models.hidden import recording
from pwoa.progress import Progress
from pwoa.recipe import recorded_recipe
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Run
from pwoa.training import engine, fast
from pwoa.training.fast import FIRST, Replayed, compiled
from pwoa.training.stage import Batch, Loss, Material, Stage
from pwoa.training.steps import Context
from tests.tape import Tape

Make = Callable[..., Recipe]


@pytest.fixture(autouse=True)
def no_code_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "BACKEND", "aot_eager")
    monkeypatch.setattr(fast, "WORTH", 0)
    torch._dynamo.reset()


def test_a_compiled_model_is_itself_again_afterwards(tiny_teacher: nn.Module) -> None:
    x = torch.rand(5, 1, 6, 6)
    expected = tiny_teacher(x)
    keys = list(tiny_teacher.state_dict())
    with compiled(tiny_teacher):
        assert "forward" in vars(tiny_teacher)
        assert torch.allclose(tiny_teacher(x), expected, atol=1e-6)
        assert list(tiny_teacher.state_dict()) == keys
    assert "forward" not in vars(tiny_teacher)
    assert torch.equal(tiny_teacher(x), expected)


def test_blocks_are_compiled_one_by_one_and_alike_ones_once(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[torch.fx.GraphModule] = []

    def counting(program: torch.fx.GraphModule, example: list[torch.Tensor]) -> torch.fx.GraphModule:
        programs.append(program)
        return program

    monkeypatch.setattr(fast, "BACKEND", counting)
    model = build("wrn-28-4@0.25", 10, 3)
    x = torch.rand(4, 3, 8, 8)
    with torch.no_grad():
        model.eval()
        expected = model(x)
    with compiled(model):
        with torch.no_grad():
            assert torch.equal(model(x), expected)
        assert not programs  # nothing is differentiated, nothing is compiled
        assert torch.allclose(model(x), expected, atol=1e-5)
        assert len(programs) == 3 * 2 + 1  # of the 3 × 4 blocks the first and the others; the last normalisation
        model(x)
        assert len(programs) == 3 * 2 + 1
        assert "forward" in vars(model.get_submodule("block1.layer.3"))
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_program_without_hooks_is_not_taken_for_a_network_with_hooks() -> None:
    x = torch.rand(2, 1, 28, 28)
    for points in [(), ("relu1", "relu2"), (), ("relu2",), ("relu1", "relu2")]:
        model = build("lenet", 10, 1)  # another network of the same class, as in the next run of a sweep
        with recording(model, points) as found, compiled(model):
            for _ in range(2):
                model(x)
                assert tuple(found) == points
                found.clear()


def test_pruning_by_hsic_after_another_method_in_the_same_process(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    for method in ("magnitude", "pwoa", "advprune", "pwoa"):
        recipe = quick(training__mode="fast", objective__hsic_x=1e-3).with_settings({"method": method})
        result = pwoa.prune(
            tiny_teacher,
            tiny_data,
            rate=2,
            recipe=recipe,
            folder=tmp_path / f"{method}-{len(list(tmp_path.iterdir()))}",
        )
        assert result.summary["pruned"]


def test_a_model_that_cannot_be_compiled_is_an_error_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    def failing(program: torch.fx.GraphModule, example: list[torch.Tensor]) -> torch.fx.GraphModule:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(fast, "BACKEND", failing)
    with pytest.raises(pwoa.InputError, match=r"cannot be compiled.*no compiler here.*; use training.mode=exact"):
        pwoa.prune(tiny_teacher, tiny_data, rate=2, recipe=quick(training__mode="fast"), folder=tmp_path / "run")


def test_the_device_chooses_the_mode(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> None:
    assert fast.choose_mode("auto", torch.device("cpu")) == "exact"
    assert fast.choose_mode("fast", torch.device("cpu")) == "fast"
    assert quick().training.mode == "auto"
    run = pwoa.prune(tiny_teacher, tiny_data, rate=2, recipe=quick(), folder=tmp_path / "run")
    assert recorded_recipe(run.folder).training.mode == "exact"


def test_a_compiled_network_takes_its_statistics_over_groups_everywhere(tmp_path: Path, quick: Make) -> None:
    """Also in the normalisation outside of blocks. Images of one colour vary less within few than within many."""
    generator = torch.Generator().manual_seed(0)

    def images(count: int) -> Images:
        colours = torch.randint(256, (count, 3, 1, 1), generator=generator, dtype=torch.uint8)
        return Images(colours.repeat(1, 1, 8, 8), torch.randint(10, (count,), generator=generator))

    data = Data("noise", images(64), images(8), 10)
    torch.manual_seed(0)
    model = build("resnet18@0.0625", 10, 3)
    still = {"search__learning_rate": 0.0, "finetune__learning_rate": 0.0, "search__epochs": 1, "finetune__epochs": 1}
    shared = {"training__batch": 16, "data__validation": 32, "training__average": 0.0, **still}
    means = {}
    for mode in ("exact", "fast"):
        recipe = quick(training__mode=mode, training__group=4, **shared)
        run = pwoa.prune(model, data, rate=2, recipe=recipe, folder=tmp_path / mode, force=True)
        means[mode] = run.model.get_buffer("bn1.running_var")
    whole = quick(training__mode="exact", training__group=16, **shared)
    other = pwoa.prune(model, data, rate=2, recipe=whole, folder=tmp_path / "whole", force=True)
    apart = (other.model.get_buffer("bn1.running_var") - means["exact"]).norm()
    assert (means["fast"] - means["exact"]).norm() < 0.2 * apart


@pytest.mark.parametrize("group", [8, 128])
def test_fast_pruning_follows_the_exact_one(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, group: int
) -> None:
    found = {}
    for mode in ("exact", "fast"):
        gentle = {"search__learning_rate": 1e-4, "finetune__learning_rate": 1e-4}  # so that rounding is not blown up
        recipe = quick(training__mode=mode, training__group=group, **gentle)
        found[mode] = pwoa.prune(tiny_teacher, tiny_data, rate=2, recipe=recipe, folder=tmp_path / mode)
    for exact, quick_one in zip(found["exact"].metrics, found["fast"].metrics, strict=True):
        assert quick_one["train"]["loss"] == pytest.approx(exact["train"]["loss"], rel=0.1, abs=0.02)
        assert quick_one["validation"]["accuracy"] == pytest.approx(exact["validation"]["accuracy"], abs=10)
    model = found["fast"].model
    assert "forward" not in vars(model)
    assert not any(module._forward_hooks for module in model.modules())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert found["fast"].summary["pruned"] == pytest.approx(found["exact"].summary["pruned"], abs=5)


class Graph:
    """Stands in for a CUDA graph of what it was recorded from."""

    def __init__(self, given: torch.Tensor, action: Callable[[torch.Tensor], None]) -> None:
        self.given, self._action = given, action

    def replay(self) -> None:
        self._action(self.given)


class Recorded(Replayed):
    """Counts the recordings; with `room` for no more of them it runs out of memory."""

    captures, room = 0, 9
    failed: weakref.ref[Graph] | None = None

    def _capture(self, action: Callable[[torch.Tensor], None], example: torch.Tensor) -> None:
        graph = Graph(example.clone(), action)
        if self.captures == self.room:
            self.failed = weakref.ref(graph)
            raise torch.OutOfMemoryError("no room for a graph")
        self.captures += 1
        self._graph, self._given = graph, graph.given  # type: ignore[assignment]


def test_what_is_replayed_is_done_once_a_call_with_the_values_of_the_call() -> None:
    seen: list[list[int]] = []
    replayed = Recorded(record=True)
    batches = [[i, i + 1] for i in range(FIRST + 3)]
    for batch in batches:
        replayed(lambda values: seen.append(values.tolist()), torch.tensor(batch), None)
    assert seen == batches
    assert replayed.captures == 1


def test_a_last_smaller_batch_is_not_replayed() -> None:
    seen: list[int] = []
    replayed = Recorded(record=True)
    for size in [4] * (FIRST + 1) + [2, 4]:
        replayed(lambda values: seen.append(len(values)), torch.zeros(size), None)
    assert seen == [4] * (FIRST + 1) + [2, 4]
    assert replayed.captures == 1


def test_it_is_recorded_anew_when_constants_change() -> None:
    replayed = Recorded(record=True)
    for constant in (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0):
        replayed(lambda values: None, torch.zeros(1), constant)
    assert FIRST == 2
    assert replayed.captures == 3


@pytest.mark.parametrize(("record", "room"), [(False, 9), (True, 0), (True, 1)])
def test_without_room_for_graphs_everything_is_still_done(record: bool, room: int) -> None:
    seen: list[float] = []
    replayed = Recorded(record=record)
    replayed.room = room

    def action(values: torch.Tensor) -> None:
        assert replayed.failed is None or replayed.failed() is None  # the memory of the recording that failed is free
        seen.append(float(values))

    for i in range(FIRST + 3):
        replayed(action, torch.tensor(float(i)), i > FIRST)
    assert seen == [float(i) for i in range(FIRST + 3)]
    assert replayed.captures == (room if record else 0)


def test_no_graph_among_the_garbage_is_freed_while_another_is_recorded() -> None:
    class Watched(Recorded):
        collecting: bool | None = None

        def _capture(self, action: Callable[[torch.Tensor], None], example: torch.Tensor) -> None:
            self.collecting = gc.isenabled()
            super()._capture(action, example)

    replayed = Watched(record=True)
    for _ in range(FIRST + 1):
        replayed(lambda values: None, torch.zeros(1), None)
    assert replayed.collecting is False
    assert gc.isenabled()


def test_what_cannot_be_recorded_is_an_error_with_a_way_out() -> None:
    class Refused(Replayed):
        def _capture(self, action: Callable[[torch.Tensor], None], example: torch.Tensor) -> None:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    replayed = Refused(record=True)
    for _ in range(FIRST):
        replayed(lambda values: None, torch.zeros(1), None)
    with pytest.raises(pwoa.InputError, match=r"recorded .*: operation not permitted .* capturing; use training.mode="):
        replayed(lambda values: None, torch.zeros(1), None)


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Tape]]:
    """Records what is done for each batch on tapes, and returns them."""
    kept: list[weakref.ref[Tape]] = []

    def capture(self: Replayed, action: Callable[[torch.Tensor], None], example: torch.Tensor) -> None:
        tape, given = Tape(), example.clone()
        with tape:
            action(given)
        kept.append(weakref.ref(tape))
        self._graph, self._given = tape, given  # type: ignore[assignment]

    monkeypatch.setattr(Replayed, "_capture", capture)
    return kept


def recorded_run(
    folder: Path, model: nn.Module, data: Data, recipe: Recipe, monkeypatch: pytest.MonkeyPatch | None = None
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Return the losses of the epochs of a run, and the weights that it ends with.

    With a monkeypatch, what is done for each batch is recorded.
    """
    if monkeypatch is not None:
        monkeypatch.setattr(engine, "Context", lambda *args: replace(Context(*args), records=True))
    run = pwoa.prune if find_method(recipe.method).prunes else pwoa.pretrain
    result = run(model, data, recipe=recipe, folder=folder)
    return [line["train"] for line in result.metrics], result.model.state_dict()


CHANGING: dict[str, dict[str, Any]] = {
    "pwoa": {"objective__balance": "auto", "search__rho_growth": 3.0},
    "advprune": {"search__rho_growth": 3.0, "training__mix": 0.5, "sparsity__allocation": "learned"},
    "hydra": {"training__mix": 0.5},
    "harp": {"harp__gamma": 0.5},
    "apd": {"training__mix": 0.5},
    "trades": {"pretrain__growing": 3},
    "fast-at": {},
}
"""For each method, settings with which its numbers change from one epoch to the next, where they can."""


@pytest.mark.parametrize("method", CHANGING)
def test_a_recorded_run_ends_as_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
    tapes: list[weakref.ref[Tape]],
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    method: str,
) -> None:
    """And at the end of a stage nothing holds on to what was recorded."""
    shared = {"training__average": 0.9, "training__mode": "exact", "data__augment": "crop-flip", "sparsity__rate": 2.0}
    recipe = quick(method=method, pretrain__epochs=3, pretrain__steps=2, **shared, **CHANGING[method])
    if method == "fast-at":
        monkeypatch.setattr("pwoa.methods.fast_at.JUMP", -200.0)  # so that it goes on with two steps
    monkeypatch.setattr("pwoa.methods.harp.largest", largest_by_rank)  # as on a device: only there is it recorded
    losses, expected = recorded_run(tmp_path / "plain", tiny_teacher, tiny_data, recipe)
    gc.collect()
    gc.disable()
    try:
        recorded, found = recorded_run(tmp_path / "recorded", tiny_teacher, tiny_data, recipe, monkeypatch)
        assert len(tapes) > 2
        assert all(tape() is None for tape in tapes)
    finally:
        gc.enable()
    assert recorded == losses
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("method", ["pwoa", "apd", "trades", "fast-at"])
def test_a_stage_that_hides_a_number_that_changes_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
    tapes: list[weakref.ref[Tape]],
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    method: str,
) -> None:
    """What the tests before this one are worth: without `constants`, a recorded run goes on with stale numbers."""
    recipe = quick(method=method, pretrain__epochs=3, pretrain__steps=2, training__mode="exact", **CHANGING[method])
    monkeypatch.setattr("pwoa.methods.fast_at.JUMP", -200.0)
    losses, _ = recorded_run(tmp_path / "plain", tiny_teacher, tiny_data, recipe)
    for stage in (Search, Proximal, RobustTraining, FastAt):
        monkeypatch.setattr(stage, "constants", lambda stage: None)
    recorded, _ = recorded_run(tmp_path / "recorded", tiny_teacher, tiny_data, recipe, monkeypatch)
    assert tapes
    assert recorded != losses


@pytest.mark.parametrize(
    ("batch", "attacks", "epochs", "expected"),
    [(32, False, 1, False), (32, True, 1, True), (64, False, 1, True), (32, False, 2, True)],
    ids=["short", "attacking", "in groups", "long"],
)
def test_a_short_training_is_compiled_only_if_it_attacks_or_goes_by_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, attacks: bool, epochs: int, expected: bool
) -> None:
    entered: list[nn.Module] = []
    monkeypatch.setattr(fast, "WORTH", 128)

    def noting(model: nn.Module) -> AbstractContextManager[None]:
        entered.append(model)
        return fast.tuned()

    monkeypatch.setattr(fast, "compiled", noting)
    images = Images(torch.randint(0, 256, (72, 3, 8, 8), dtype=torch.uint8), torch.arange(72) % 4)
    model = build("resnet18@0.06", 4, 3)
    recipe = pwoa.load_recipe("cifar10").with_settings(
        {"training.mode": "fast", "training.batch": batch, "training.group": 32, "training.device": "cpu"}
    )
    positions = torch.arange(72)
    material = Material(images, positions[:64], positions[64:], 4)

    class Plain(Stage):
        name, epochs, learning_rate = "plain", 1, 0.01

        def loss(self, batch: Batch) -> Loss:
            logits = model(batch.x)
            return Loss(nn.functional.cross_entropy(logits.float(), batch.y), {}, logits)

    stage = Plain()
    stage.attacks, stage.epochs = attacks, epochs
    run = Run(tmp_path / "run")
    run.begin(recipe, {})
    engine.Engine(model, [stage], material, recipe.training, run, Progress()).train()
    assert entered == ([model] if expected else [])
