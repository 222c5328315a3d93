"""Reproducing from end to end, in small; and redrawing from rows."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import pwoa
from pwoa.cli import app
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from pwoa.paper import Work, list_plans, training_seconds
from pwoa.paper.earlier import of_presets_now
from pwoa.paper.plan import ATTACKS, ORDER, load_plan
from pwoa.paper.rows import load_rows, merged
from pwoa.paper.tables import table_of
from pwoa.sweep import Swept, Task, teacher_folder
from pwoa.sweep.child import carry_out

RESULTS = Path(__file__).parents[2] / "results"
TRAINED = (("wrn-34-10", "trades"), ("resnet18", "trades"))
SMALL = [
    "data.images=120",
    "data.validation=20",
    "training.batch=25",
    "training.group=25",
    "search.epochs=1",
    "finetune.epochs=1",
    "evaluation.images=10",
    "evaluation.attacks=natural,pgd2",
    "evaluation.strong=4",
    "evaluation.checks=false",
]
ABOUT = ("table", "dataset", "architecture", "teacher", "method", "objective", "rate", "mix", "seed", "epochs")
COLUMNS = (*ABOUT, *ATTACKS, "n", "paper_autoattack", "training_seconds", "device")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets the runs be in this process, and gives what was run; nothing when the time is over."""
    names: list[str] = []

    def run(
        tasks: Sequence[Task], ended: Callable[[Task, str | None], None], jobs: int, retries: int, until: float
    ) -> None:
        for task in tasks if time.monotonic() < until else ():
            names.append(task.name)
            ended(task, task.reason() if carry_out(task.recipe, task.folder, (), task.teacher) else None)

    monkeypatch.setattr("pwoa.sweep.run_here", run)
    return names


def test_what_is_missing_is_run_once_and_shown_beside_the_paper(tmp_path: Path, ran: list[str]) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    given: dict[str, Any] = {"scale": "quick", "results": results, "settings": SMALL}
    over = pwoa.reproduce("naive", out, **given, minutes=1e-9)
    assert (ran, len(over.left), over.rows) == ([], 2, [])
    assert pwoa.reproduce("pretrained", out, **given, minutes=1e-9).left == ("embedded",)
    found = pwoa.reproduce(["naive", "hsic-plane", "pretrained"], out, **given, collect=True)
    assert found.failed == {}
    assert len(ran) == 1 + 2  # the teacher, and what the two figures share
    assert [row["method"] for row in found.rows if row["table"] == "naive"] == ["teacher", "pwoa", "pwoa"]
    for row in found.rows:
        assert set(COLUMNS) <= set(row)
        assert (row["dataset"], row["architecture"], row["teacher"]) == ("mnist-mini", "lenet", "lenet-mnist-pgd-at")
        assert row["autoattack"] is None
        assert 0 <= row["strong"] <= 100
    ours = found.tables["naive"].lines[-1]
    assert ours[0] == "4×: distillation + HSIC †"
    assert "(" not in ours[6]  # the paper's are of CIFAR-100
    assert any(note.startswith("A rehearsal on other data") for note in found.tables["naive"].notes)
    dense = found.tables["pretrained"].lines[0]
    assert dense[0] == "lenet-mnist-pgd-at (dense) †"
    assert "(98.66, " in dense[1]
    for ending in ("svg", "png"):
        assert (out / "figures" / f"naive.{ending}").stat().st_size > 1000
        assert (out / "figures" / f"hsic-plane.{ending}").stat().st_size > 1000
    plane = json.loads((results / "paper-hsic.json").read_text())
    assert [(row["stage"], row["epoch"]) for row in plane[:3]] == [("start", 0), ("search", 0), ("finetune", 0)]
    assert json.loads((results / "paper.json").read_text()) == json.loads((out / "paper.json").read_text())

    again = pwoa.reproduce(["naive", "hsic-plane", "pretrained"], out, **given)
    elsewhere = pwoa.reproduce(["naive", "hsic-plane"], tmp_path / "elsewhere", **given)
    assert len(ran) == 3  # nothing more: it is in the folder, or in the results
    assert again.tables == found.tables
    assert elsewhere.tables["naive"] == found.tables["naive"]
    assert (tmp_path / "elsewhere" / "figures" / "hsic-plane.svg").is_file()


def test_security_curves_are_of_the_distances_that_were_measured(tmp_path: Path, ran: list[str]) -> None:
    attacks = [*SMALL, "evaluation.attacks=natural,fmn"]
    found = pwoa.reproduce("security", tmp_path / "out", scale="quick", results=tmp_path / "none", settings=attacks)
    assert (found.failed, len(ran)) == ({}, 2)  # those of rate 4
    assert [row["method"] for row in found.rows] == ["teacher", "pwoa", "pwoa"]
    for row in found.rows:
        radii, accuracies = zip(*row["curve"], strict=True)
        assert (radii[0], radii[8], radii[-1]) == (0.0, 0.3, 0.6)
        assert accuracies[0] == row["natural"]
        assert accuracies[8] == row["fmn"]
        assert list(accuracies) == sorted(accuracies, reverse=True)
        for radius, accuracy in row["curve"]:
            assert accuracy == 50 or (row["median_distance"] > radius) == (accuracy > 50)
    table = found.tables["security"]
    assert table.head[1:5] == ("natural", "FMN", "strong", "median distance")
    assert table.title == "Security curves: a rehearsal on LeNet and a part of MNIST"
    assert table.lines[0][4] == f"{found.rows[0]['median_distance']:.3g}"
    assert (tmp_path / "out" / "figures" / "security.svg").stat().st_size > 1000

    (cell,) = [cell for cell in load_plan("security", "quick", str).cells if cell.key.objective == "CE"]
    other = [{**found.rows[1], "table": "naive", "epochs": "50+100"}]
    assert table_of(load_plan("security", "quick", str), other).lines[1][1:5] == ("", "", "", "")
    assert cell.recipe.evaluation.attacks == ("natural", "fmn")


def test_a_lite_network_stands_beside_the_pruned_one(tmp_path: Path, ran: list[str]) -> None:
    small = [*SMALL, "pretrain.epochs=1", "pretrain.steps=1", "pretrain.warmup=0"]
    found = pwoa.reproduce("lite", tmp_path / "out", scale="quick", results=tmp_path / "none", settings=small)
    assert (found.failed, len(ran)) == ({}, 2)
    (lite,) = [row for row in found.rows if row["method"] == "pgd-at"]
    assert (lite["teacher"], lite["mix"], lite["rate"], lite["fingerprint"]) == (None, 1.0, 4.0, None)
    assert lite["parameters"] > 0
    assert lite["steady_seconds"] == pytest.approx(lite["training_seconds"], abs=0.11)
    names = [line[0] for line in found.tables["lite"].lines]
    assert names == ["lenet-mnist-pgd-at (dense) †", "4×: distillation + HSIC †", "4×: pgd-at (lenet-Lite) †"]


def test_runs_without_their_teacher_wait_and_others_are_done(tmp_path: Path, ran: list[str], told: Any) -> None:
    given: dict[str, Any] = {"results": tmp_path / "none", "progress": told}
    found = pwoa.reproduce("apd", tmp_path, **given)
    assert (ran, found.failed) == ([], {})
    assert told.said == [
        "2 runs must wait for resnet18-cifar10-trades, resnet18-cifar10-natural: give --teachers FOLDER with these, "
        "by name, or --train-teachers"
    ]
    small = ["data.name=mnist-mini", "data.augment=none", "pretrain.epochs=1", "pretrain.warmup=0", *SMALL]
    trained: list[str] = []

    def train(points: Sequence[Any], folder: Path, *rest: object) -> Any:
        trained.extend(point.name for point in points)
        return Swept([], {}, {"all": "no time"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pwoa.paper.sweep_points", train)
        found = pwoa.reproduce("apd", tmp_path, train_teachers=True, settings=small, **given)
    assert trained == ["resnet18-cifar10-trades", "resnet18-cifar10-natural"]
    assert found.failed == {"all": "no time"}


def test_everything_is_redrawn_from_the_rows_of_the_repository(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, ["reproduce", "--from", str(RESULTS), "--out", str(tmp_path)])
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    text = (tmp_path / "tables" / "ablation-mnist.md").read_text(encoding="utf-8")
    assert "lenet-mnist-pgd-at (dense) | 99.00 (98.66, +0.34)" in text
    assert "8×: CE + HSIC" in text
    page = (tmp_path / "tables" / "ablation-mnist.html").read_text(encoding="utf-8")
    assert page.count("<tr>") == 1 + 1 + 12
    for name in ORDER:
        for ending in ("md", "tex", "html"):
            assert (tmp_path / "tables" / f"{name}.{ending}").stat().st_size > 100
    for ending in ("svg", "png"):
        assert (tmp_path / "figures" / f"hsic-plane.{ending}").stat().st_size > 10_000
    source = (tmp_path / "tables" / "ablation-mnist.tex").read_text(encoding="utf-8")
    assert source.count(r"\\") == 1 + 1 + 12
    assert "×" not in source
    wrong = CliRunner().invoke(app, ["reproduce", "--from", str(tmp_path / "nowhere")])
    assert (wrong.exit_code, wrong.stderr.startswith("error: --from")) == (2, True)
    empty = CliRunner().invoke(app, ["reproduce", "--from", str(tmp_path / "tables")])
    assert (empty.exit_code, "has no paper.json" in empty.stderr) == (2, True)
    lost = CliRunner().invoke(app, ["reproduce", "naive", "--results", str(tmp_path / "nowhere")])
    assert (lost.exit_code, lost.stderr.startswith("error: --results")) == (2, True)
    shown = CliRunner().invoke(app, ["reproduce", "ablation-mnist", "--from", str(RESULTS), "--out", str(tmp_path)])
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["16×:", "CE", "98.97", "68.70", "47.04", "4.72", "0.44", "0.00", "0", "%"] in lines
    assert ["(98.96)", "(79.09)", "(0.06)", "(0.00)", "(0.00)", "(0.00)", "(0", "%)"] in lines
    unnamed = CliRunner().invoke(app, ["reproduce", "--train-teachers"])
    assert (unnamed.exit_code, "name the tables or figures" in unnamed.stderr) == (2, True)


def test_seeds_of_one_folder_are_averaged_and_collected_together(tmp_path: Path, ran: list[str]) -> None:
    """A second call with another seed adds to the first one's rows; drawing alone shows both."""
    out, results = tmp_path / "out", tmp_path / "results"
    given: dict[str, Any] = {"scale": "quick", "results": results}
    pwoa.reproduce("naive", out, **given, settings=SMALL)
    both = pwoa.reproduce("naive", out, **given, settings=[*SMALL, "training.seed=1"])
    assert sum(row["method"] == "pwoa" for row in both.rows) == 4
    line = both.tables["naive"].lines[1]
    assert [f"seed{seed}" in line[-1] for seed in (0, 1)] == [True, True]
    own = [row["natural"] for row in both.rows if row["objective"] == "CE"]
    assert float(line[1].split()[0]) == pytest.approx(sum(own) / 2, abs=0.006)
    drawn = pwoa.reproduce("naive", out, **given, settings=SMALL, draw_only=True, collect=True)
    assert drawn.tables["naive"].lines[1] == line
    assert len(load_rows(results / "paper.json")) == len(both.rows)
    assert len(ran) == 4


def test_a_teacher_that_cannot_be_trained_stops_no_other_run(tmp_path: Path, ran: list[str], told: Any) -> None:
    """Those whose teacher is there are run all the same."""
    few = [*SMALL, "pretrain.epochs=6", f"data.folder={tmp_path / 'empty'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pwoa.paper.sweep_points", lambda points, *rest: Swept([], {}, {points[0].name: "no data"}))
        found = pwoa.reproduce(
            ["ablation-mnist", "apd"], tmp_path, train_teachers=True, settings=few, results=tmp_path, progress=told
        )
    teacher, run = found.failed
    assert (teacher, run.startswith("lenet-mnist-pgd-at-pwoa-CE-rate4")) == ("resnet18-cifar10-trades", True)


def test_everything_that_is_listed_as_measured_is_shown() -> None:
    states, _ = list_plans(results=RESULTS)
    rows = load_rows(RESULTS / "paper.json")
    assert {state.plan.name: state.done for state in states if state.done} == {
        "pretrained": 1,
        "ablation-mnist": 12,
        "hsic-plane": 2,
        "balance": 3,  # of the ablation
    }
    for state in states:
        lines = table_of(state.plan, of_presets_now(rows)).lines
        shown = [line for line in lines if "-seed" in line[-1] and "(" not in line[-1]]  # with the plan's own settings
        dense = sum(cell.measures for cell in state.plan.cells)
        assert len(shown) == state.done - (1 if dense else 0), state.plan.name


def test_other_seeds_and_teachers_are_other_runs(tmp_path: Path) -> None:
    def done(results: Path, *settings: str) -> int:
        (state,) = list_plans(["ablation-mnist"], tmp_path, results=results, settings=settings)[0]
        return state.done

    cells = load_plan("ablation-mnist", "paper", lambda name: name).cells
    old = [row for row in load_rows(RESULTS / "paper.json") if row["method"] != "teacher"][: len(cells)]
    rows = [{**row, "run": cell.run} for row, cell in zip(old, cells, strict=True)]

    def known(fingerprint: str) -> Path:
        (tmp_path / "paper.json").write_text(json.dumps([{**row, "fingerprint": fingerprint} for row in rows]))
        return tmp_path

    assert (done(known("8ecd416a32b5")), done(tmp_path, "training.seed=1")) == (12, 0)
    listed = CliRunner().invoke(app, ["reproduce", "--results", str(tmp_path)])
    assert "12 of 12" in listed.stdout
    listed = CliRunner().invoke(app, ["reproduce", "--results", str(tmp_path), "--set", "training.seed=1"])
    assert "12 of 12" not in listed.stdout
    assert done(known("another")) == 0


def test_all_that_a_sitting_does_shares_its_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[float] = []
    monkeypatch.setattr("pwoa.sweep.run_here", lambda tasks, ended, jobs, retries, until: ends.append(until))
    began = time.monotonic()
    pwoa.reproduce(["pretrained", "naive"], tmp_path, scale="quick", results=tmp_path, settings=SMALL, minutes=5)
    assert len(ends) == 2  # the teacher, and the runs
    assert ends[0] == ends[1] == pytest.approx(began + 300, abs=30)


def test_a_teacher_is_measured_again_by_other_settings_and_keeps_what_was_measured(
    tmp_path: Path, ran: list[str]
) -> None:
    results = tmp_path / "results"
    few = ["evaluation.images=20", "evaluation.attacks=natural,pgd2", "evaluation.strong=8", "evaluation.checks=false"]
    given: dict[str, Any] = {"scale": "quick", "results": results, "collect": True}
    pwoa.reproduce("pretrained", tmp_path / "wide", **given, settings=[*few, "threat.radius=0.9", "threat.step=0.5"])
    found = pwoa.reproduce("pretrained", tmp_path / "usual", **given, settings=few)
    assert len(ran) == 2
    assert [row["strong"] > 50 for row in load_rows(results / "paper.json")] == [False, True]
    assert float(found.tables["pretrained"].lines[0][6].split()[0]) > 50
    assert "threat.radius" not in found.tables["pretrained"].lines[0][-1]


def test_a_teacher_that_was_replaced_is_not_taken_for_the_one_that_was_measured(tmp_path: Path) -> None:
    name = "resnet18-cifar10-trades"
    torch.save(build("resnet18", 10, 3).state_dict(), tmp_path / f"{name}.pt")
    work = Work.of(["security"], "paper", tmp_path / "out", tmp_path, tmp_path, ())
    cell = next(cell for cell in work.plans[0].cells if cell.key.teacher == name).dense
    evaluation = teacher_folder(cell.recipe, work.runs)
    assert not work.measured(cell)
    evaluation.mkdir(parents=True)
    (evaluation / "result.json").write_text(json.dumps({"model": work.teachers.fingerprint(name)}))
    assert work.measured(cell)
    (evaluation / "result.json").write_text(json.dumps({"model": "another"}))
    with pytest.raises(InputError, match=rf"has measured another {name}; choose another --out"):
        work.measured(cell)


def test_the_list_tells_what_is_done_and_what_the_rest_takes(tmp_path: Path) -> None:
    states, rates = list_plans((), tmp_path, scale="short", results=tmp_path)
    wide, narrow = (training_seconds([f"{name}-cifar10-{method}"], rates) for name, method in TRAINED)
    assert wide > 2 * narrow > 60
    by_name = {state.plan.name: state for state in states}
    assert by_name["ablation-cifar10"].done == 0
    assert by_name["ablation-cifar10"].missing == ("wrn-34-10-cifar10-lbgat",)
    assert by_name["ablation-mnist"].missing == ()
    assert by_name["mix"].seconds > by_name["ablation-mnist"].seconds > 60
    outcome = CliRunner().invoke(app, ["reproduce", "--scale", "short", "--out", str(tmp_path)])
    assert outcome.exit_code == 0
    assert "comparison-cifar100-mix0" in outcome.stdout
    assert "Teachers that are not there: resnet18-cifar10-trades, wrn-34-10-" in outcome.stdout
    assert re.search(r"--train-teachers, which takes another [\d.]+ (min|h)\.", " ".join(outcome.stdout.split()))
    refused = CliRunner().invoke(app, ["reproduce", "--scale", "long"])
    assert refused.stderr == "error: --scale long: one of quick, short, paper\n"


def test_new_rows_take_the_place_of_old_ones() -> None:
    old = {"table": "mix", "run": "a", "scale": "short", "seed": 0, "natural": 1.0}
    assert merged([old], [{**old, "natural": 2.0}, {**old, "run": "b"}]) == [
        {**old, "natural": 2.0},
        {**old, "run": "b"},
    ]


WHOLE: dict[str, Any] = {"table": "mix", "teacher": None, "method": "pwoa", "run": "a", "epochs": "1", "n": 1}
WHOLE |= {"device": "cpu"}


@pytest.mark.parametrize(
    "text", ["{", "[3]", '[{"table": "mix"}]', '{"table": "mix"}', json.dumps([WHOLE | {"epochs": None}])]
)
def test_rows_that_are_none_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "paper.json").write_text(text)
    outcome = CliRunner().invoke(app, ["reproduce", "--from", str(tmp_path), "--out", str(tmp_path / "out")])
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(f"error: {tmp_path / 'paper.json'}")
    assert outcome.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
