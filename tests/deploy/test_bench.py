"""Benchmarks: what is timed, in which order, what the figures are, and what is said of routes that cannot run."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import pwoa
from pwoa import demo
from pwoa.cli import app
from pwoa.cli.run import _shipped
from pwoa.data.images import Data
from pwoa.deploy import bench as room
from pwoa.deploy.bench import ROUNDS, Bench, _busyness, _Lane, _time_in_turns
from pwoa.deploy.memory import peak_memory
from pwoa.deploy.routes import ROUTES, Artefact, Route, Task, find_routes
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from pwoa.progress import Progress
from pwoa.recipe import Recipe, load_recipe
from tests.conftest import TinyNet

QUICK: dict[str, Any] = {"seconds": 0.01, "batch": 4, "images": 8, "memory": False, "threads": 1}


def fake(name: str, answer: Callable[[np.ndarray], np.ndarray], **changes: Any) -> Route:
    """Return a route that answers by a function, whatever the network is."""
    return dataclasses.replace(
        Route(name, name, "numpy", str, lambda task: Artefact(task.folder, 7), lambda artefact, threads: answer),
        **changes,
    )


@pytest.fixture
def with_route(monkeypatch: pytest.MonkeyPatch) -> Callable[[Route], None]:
    def add(route: Route) -> None:
        monkeypatch.setitem(ROUTES, route.name, route)

    return add


def test_every_round_has_a_turn_for_each_and_the_first_call_of_a_turn_does_not_count() -> None:
    calls: list[str] = []

    def lane(name: str) -> _Lane:
        route = fake(name, lambda x: cast(np.ndarray, calls.append(name)) or x)
        return _Lane({"threads": 1}, route, route.open(Artefact(Path(), 0), 1), [np.zeros((1, 1), np.float32)])

    lanes = [lane("a"), lane("b")]
    _time_in_turns(lanes, 1e-9, Progress())
    turns = "".join(name + name for name in calls[::2])
    assert turns == "".join(calls)  # each turn is a call that does not count, and one that does
    assert calls[::2] == ["a", "b"] + ["b", "a", "a", "b"] * (ROUNDS // 2)
    assert [len(lane.times) for lane in lanes] == [len(lane.clock) for lane in lanes] == [ROUNDS, ROUNDS]


def test_each_call_takes_the_next_images() -> None:
    seen: list[int] = []
    batches = [np.full((1, 1), number, np.float32) for number in range(3)]
    route = fake("seen", lambda x: cast(np.ndarray, seen.append(int(x[0, 0]))) or x)
    lane = _Lane({"threads": 1}, route, route.open(Artefact(Path(), 0), 1), batches)
    for _ in range(4):
        lane.turn(0.0)
    assert seen[1::2] == [0, 1, 2, 0]  # the others are those that do not count


def test_with_one_thread_the_processor_counts_and_with_several_the_clock() -> None:
    def wait(x: np.ndarray) -> np.ndarray:
        time.sleep(0.02)
        return x

    lanes = [_Lane({"threads": count}, ROUTES["openvino"], wait, [np.zeros((1, 1), np.float32)]) for count in (1, 2)]
    for lane in lanes:
        lane.turn(0.0)
        lane.note()
    assert lanes[0].row["milliseconds"] < 10 < 20 <= lanes[1].row["milliseconds"]
    assert _busyness(lanes) > 2


def test_the_figures_are_the_median_and_the_95th_percentile() -> None:
    row: dict[str, Any] = {"threads": 1}
    times = [number / 1000 for number in range(1, 22)]
    one = _Lane(row, ROUTES["torch"], lambda x: x, [np.zeros((1, 1), np.float32)], times)
    many = _Lane(row, ROUTES["torch"], lambda x: x, [np.zeros((5, 1), np.float32)], [0.1, 0.2, 0.9])
    many.note()
    one.note()
    assert (row["milliseconds"], row["milliseconds_95"], row["images_per_second"]) == (11.0, 20.0, 25.0)


def test_a_row_has_the_size_the_work_and_how_near_it_is(tiny_teacher: TinyNet, tiny_data: Data) -> None:
    with torch.no_grad():
        tiny_teacher.hidden.weight[:8] = 0
    (row,) = pwoa.bench(tiny_teacher.train(), tiny_data, routes="torch", **QUICK).rows
    assert tiny_teacher.training  # it is the user's
    dense = 36 * 36 + 144 * 16 + 16 * 3
    assert (row["macs_dense"], row["macs"]) == (dense, dense - 144 * 8)
    assert row["bytes"] == sum(value.numel() * value.element_size() for value in tiny_teacher.state_dict().values())
    assert (row["max_difference"], row["same_class"], row["threads"]) == (0.0, 1.0, 1)
    assert 0 < row["milliseconds"] <= row["milliseconds_95"]


@pytest.mark.parametrize("route", ["onnx", "openvino", "c"])
def test_a_float32_route_answers_as_torch(route: str, tiny_teacher: TinyNet, tiny_data: Data) -> None:
    found = pwoa.bench(tiny_teacher, tiny_data, routes=route, **QUICK | {"threads": "1,2"})
    if route in found.missing:  # OpenVINO is never required
        assert route == "openvino"
        return
    assert [row.get("error") for row in found.rows] == [None, None]
    assert [row["threads"] for row in found.rows] == [1, 2]
    assert all(row["max_difference"] < 1e-4 and row["same_class"] == 1 for row in found.rows)


def test_what_a_route_cannot_run_is_a_row_and_the_others_go_on(
    tiny_teacher: TinyNet, tiny_data: Data, with_route: Callable[[Route], None]
) -> None:
    def refuse(task: Task) -> Artefact:
        raise InputError("the operator Roll is not known")

    def absent() -> str:
        return "pip install absent"

    with_route(fake("picky", lambda x: x, write=refuse))
    with_route(fake("absent", lambda x: x, missing=absent))
    found = pwoa.bench(tiny_teacher, tiny_data, routes="picky,torch,absent", **QUICK)
    assert [(row["route"], row.get("error")) for row in found.rows] == [
        ("picky", "the operator Roll is not known"),
        ("torch", None),
    ]
    assert found.missing == {"absent": "pip install absent"}
    assert found.fastest("TinyNet") == found.rows[1]


def test_wrong_answers_are_told(tiny_teacher: TinyNet, tiny_data: Data, with_route: Callable[[Route], None]) -> None:
    with_route(fake("wrong", lambda x: np.zeros((len(x), 3), np.float32)))
    with_route(fake("short", lambda x: np.zeros((len(x), 2), np.float32)))
    wrong, short = pwoa.bench(tiny_teacher, tiny_data, routes="wrong,short", **QUICK).rows
    assert wrong["max_difference"] == 1.0
    assert "answers with a shape of (8, 2), not (8, 3)" in short["error"]


def row(model: str, route: str, milliseconds: float, exact: bool = True) -> dict[str, Any]:
    return {"model": model, "route": route, "label": route, "threads": 1, "exact": exact, "milliseconds": milliseconds}


def test_the_fastest_is_named_also_when_it_is_not_ours() -> None:
    rows = (
        row("teacher", "torch", 8.0),
        row("teacher", "int8", 1.0, exact=False),
        row("net", "c", 4.0),
        row("net", "openvino", 2.0),
        row("net", "int8", 0.5, exact=False),
        {"model": "odd", "route": "c", "label": "c", "threads": 1, "exact": True, "error": "no"},
    )
    found = Bench(rows, {}, {})
    assert found.fastest("net") == rows[4]
    assert found.fastest("net", exact=True) == rows[3]
    assert found.fastest("odd") is None
    assert found.sentences == [
        "teacher, 1 thread: fastest by int8 (1 ms), in float32 by torch (8 ms)",
        "net, 1 thread: fastest by int8 (0.5 ms), in float32 by openvino (2 ms): 4 times as fast as the teacher's "
        "fastest, torch (8 ms)",
    ]


def test_an_exported_model_is_timed_by_its_own_route(tiny_teacher: TinyNet, tiny_data: Data, tmp_path: Path) -> None:
    file = pwoa.export(tiny_teacher, "onnx", tmp_path, data=tiny_data).path
    folder = pwoa.export(tiny_teacher, "c", tmp_path, data=tiny_data).path
    rows = pwoa.bench([file, folder], tiny_data, routes="torch,onnx,c", **QUICK).rows
    assert [(row["model"], row["route"], "error" in row) for row in rows] == [
        (str(file), "torch", True),
        (str(file), "onnx", False),
        (str(file), "c", True),
        (str(folder), "torch", True),
        (str(folder), "onnx", True),
        (str(folder), "c", False),
    ]
    assert rows[0]["error"] == "model.onnx is exported already; the route onnx (onnxruntime) times it"
    assert rows[3]["error"] == rows[4]["error"] == "c is exported already; the route c (C) times it"
    assert rows[5]["macs"] == 36 * 36 + 144 * 16 + 16 * 3


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of embedded data, with all that can be exported from it."""
    names = {"search.epochs": 1, "finetune.epochs": 1, "data.images": 128, "data.validation": 32}
    settings = {**names, "evaluation.images": 20, "evaluation.attacks": "natural", "evaluation.checks": False}
    settings |= {"evaluation.strong": 0}
    folder = tmp_path_factory.mktemp("runs") / "mine"
    pwoa.prune(build("lenet@0.125", 10, 1), "mnist-mini", rate=8, settings=settings, folder=folder, force=True)
    for kind in ("packed", "onnx", "int8", "c"):
        pwoa.export(folder, kind)
    return folder


@pytest.mark.parametrize(
    ("name", "route"),
    [("model.packed.safetensors", "torch"), ("model.onnx", "onnx"), ("model.int8.onnx", "onnx"), ("c", "c")],
)
def test_an_exported_model_is_timed_on_the_data_of_its_run(name: str, route: str, exported: Path) -> None:
    found = pwoa.bench(exported / "export" / name, routes=route, **QUICK)
    assert found.about["data"] == "mnist-mini"
    assert ["error" in row for row in found.rows] == [False]


def test_an_int8_file_says_which_route_times_it(exported: Path) -> None:
    wrong, right = pwoa.bench(exported / "export" / "model.int8.onnx", routes="int8,onnx", **QUICK).rows
    assert wrong["error"] == "model.int8.onnx is exported already; the route onnx (onnxruntime) times it"
    assert (right["route"], "error" in right) == ("onnx", False)


def test_an_exported_model_that_is_not_of_the_run_beside_it_has_no_data(exported: Path, tmp_path: Path) -> None:
    file = exported / "export" / "model.onnx"
    moved = Path(shutil.copy(file, tmp_path / "model.onnx"))
    with pytest.raises(InputError, match="no model is a run, which knows its data"):
        pwoa.bench(moved, routes="onnx", **QUICK)
    assert pwoa.bench([moved, file], routes="onnx", **QUICK).about["data"] == "mnist-mini"


def test_data_given_in_python_are_wanted_again(
    tiny_teacher: TinyNet, tiny_data: Data, quick: Callable[..., Recipe], tmp_path: Path
) -> None:
    data = dataclasses.replace(tiny_data, name="custom")
    run = pwoa.prune(tiny_teacher, data, recipe=quick(), folder=tmp_path / "run", force=True).folder
    with pytest.raises(InputError, match=r"run was made from data given in Python; give them again: --data"):
        pwoa.bench(run, architecture=TinyNet(), routes="torch", **QUICK)


def test_the_result_is_kept_and_replaced_but_nothing_else_is(
    tiny_teacher: TinyNet, tiny_data: Data, tmp_path: Path
) -> None:
    models = {"small": tiny_teacher}
    for _ in range(2):
        found = pwoa.bench(models, tiny_data, teacher=tiny_teacher, routes="torch", folder=tmp_path / "b", **QUICK)
    kept = json.loads((tmp_path / "b" / "result.json").read_text())
    assert kept["rows"] == list(found.rows)
    assert [row["model"] for row in kept["rows"]] == ["teacher", "small"]
    assert kept["fastest"] == found.sentences
    assert (kept["batch"], kept["images"], kept["missing"]) == (4, 8, {})
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="notes exists and holds no benchmark; choose another folder"):
        pwoa.bench(models, tiny_data, routes="torch", folder=tmp_path / "notes", **QUICK)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"routes": "tensorflow"}, "unknown route 'tensorflow'"),
        ({"routes": "onx"}, r"unknown route 'onx' \(did you mean 'onnx'\?\)"),
        ({"threads": "0"}, "threads = '0'; give numbers of 1 or more, or all, as 1,all"),
        ({"threads": "many"}, "threads = 'many'"),
        ({"seconds": 0}, "seconds = 0; give a number above 0"),
        ({"seconds": float("nan")}, "seconds = nan"),
        ({"batch": 0}, "batch = 0; give a whole number of 1 or more"),
        ({"images": True}, "images = True"),
        ({"data": None}, r"no model is a run, which knows its data; give --data NAME \(in Python: data=\)"),
        ({"models": "nope", "data": None}, "nope does not exist$"),
        ({"models": []}, "no model is given"),
    ],
)
def test_bad_input_is_one_line(changes: dict[str, Any], message: str, tiny_teacher: TinyNet, tiny_data: Data) -> None:
    with pytest.raises(InputError, match=message):
        pwoa.bench(**{"models": tiny_teacher, "data": tiny_data, "routes": "torch", **QUICK, **changes})


def test_all_is_one_thread_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_cores", lambda: 3)
    assert room._counts("1,all") == [1, 3]
    assert room._counts(["all", 3, 1]) == [3, 1]
    assert room._counts(2) == [2]


def test_memory_is_what_a_new_process_grows_by(tmp_path: Path) -> None:
    class Local(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    large = nn.Sequential(nn.Flatten(), nn.Linear(64, 1 << 18))
    x = torch.zeros(2, 1, 8, 8)
    artefact = ROUTES["c"].write(Task(large, 1 << 18, x, x, tmp_path))
    weights = 4 * 64 << 18
    memory = peak_memory("c", artefact, 1, (1, 8, 8))
    assert memory is not None
    assert weights < memory < 3 * weights
    (tmp_path / "local").mkdir()
    local = ROUTES["torch"].write(Task(Local(), 1, x, x, tmp_path / "local"))
    assert peak_memory("torch", local, 1, (1, 8, 8)) is None


def test_the_command_prints_tables_and_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "peak_memory", lambda *given: 5_000_000)
    monkeypatch.setitem(ROUTES, "int8", dataclasses.replace(ROUTES["int8"], missing=lambda: "pip install it"))
    options = ["--data", "mnist-mini", "--routes", "torch,c,int8", "--threads", "1", "--seconds", "0.1"]
    ended = CliRunner().invoke(app, ["bench", "embedded", *options, "--images", "4", "--out", str(tmp_path / "b")])
    assert ended.exit_code == 0, ended.output
    assert "embedded: 13.88 million multiply-adds" in ended.output
    assert "not here: int8; pip install it" in ended.output
    assert "embedded, 1 thread: fastest by" in ended.output
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["latency.png", "result.json"]


def test_a_run_of_a_network_of_ones_own_is_timed_with_its_code(
    tiny_teacher: TinyNet, tiny_data: Data, quick: Callable[..., Recipe], tmp_path: Path
) -> None:
    plan = quick(search__epochs=1, finetune__epochs=1, teacher__minimum=0)
    run = pwoa.prune(tiny_teacher, tiny_data, recipe=plan, folder=tmp_path / "run").folder
    packed = pwoa.export(run, "packed", data=tiny_data, architecture=TinyNet()).path
    weights = tmp_path / "weights.pt"
    torch.save(tiny_teacher.state_dict(), weights)
    with pytest.raises(InputError, match=r"holds a .*TinyNet, .* --arch tests\.conftest:TinyNet"):
        pwoa.bench(run, tiny_data, routes="torch", **QUICK)
    code: Any
    for code in ("tests.conftest:TinyNet", TinyNet()):
        models: list[Path | nn.Module] = [run, packed, tiny_teacher]
        rows = pwoa.bench(models, tiny_data, teacher=weights, architecture=code, routes="torch", **QUICK).rows
        assert [row["macs"] < row["macs_dense"] for row in rows] == [False, True, True, False]
    with pytest.raises(InputError, match=r"TinyNet knows its architecture; leave out --arch \(in Python: arch"):
        pwoa.bench(tiny_teacher, tiny_data, architecture=TinyNet(), routes="torch", **QUICK)


def test_the_demo_ends_with_size_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    pruned = pwoa.load_model("embedded")
    with torch.no_grad():
        for weight in pruned.parameters():
            weight[weight.abs() < 0.05] = 0
    result = cast(Any, SimpleNamespace(model=pruned))
    found = demo._deployment(load_recipe("demo"), result, Progress())
    assert found["c"]["bytes"] < found["dense"]["bytes"] / 4
    assert found["c"]["max_difference"] < 1e-4
    assert _shipped(found).startswith("As C the pruned LeNet has ")
    monkeypatch.setenv("PATH", "")
    found = demo._deployment(load_recipe("demo"), result, Progress())
    assert _shipped(found) == (
        "The size and speed of the pruned LeNet as C are not shown: install a C compiler, such as gcc."
    )


def test_routes_are_found_by_name() -> None:
    assert [route.name for route in find_routes("c, torch,c")] == ["c", "torch"]
    assert [route.name for route in find_routes(None)] == list(ROUTES)
