"""What prune and pretrain return stands for its run folder wherever a run may be given."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import pwoa
from pwoa.models.architectures.registry import build
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.recipe import recorded_recipe
from pwoa.runs.folder import Result
from pwoa.storage.paths import as_path

QUICK = {
    "search.epochs": 1,
    "finetune.epochs": 1,
    "data.images": 128,
    "data.validation": 32,
    "evaluation.images": 20,
    "evaluation.attacks": "natural,pgd2",
    "evaluation.checks": False,
    "evaluation.strong": 0,
    "teacher.minimum": 0,
}
TIMED: dict[str, Any] = {"routes": "torch", "seconds": 0.01, "batch": 2, "images": 4, "memory": False, "threads": 1}
MEASURED: dict[str, Any] = {"attacks": "natural", "images": 8, "checks": False}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("runs") / "mine"
    return pwoa.prune(build("lenet@0.125", 10, 1), "mnist-mini", rate=8, settings=QUICK, folder=folder, force=True)


def test_it_is_its_folder(result: Result) -> None:
    assert os.fspath(result) == str(result.folder)
    assert as_path(result) == result.folder
    for other in (None, "runs/mine", 3, result.model):
        assert as_path(other) is other
    assert as_path(PurePosixPath("a")) == Path("a")


def test_its_model_is_loaded(result: Result) -> None:
    assert fingerprint(pwoa.load_model(result)) == result.summary["model"]


def test_it_is_evaluated_as_its_run(result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scores = pwoa.evaluate(result, folder="auto", **MEASURED)
    assert dict(scores) == dict(pwoa.evaluate(result.folder, **MEASURED))
    assert scores.folder is not None
    assert scores.folder.name.startswith("mine-")
    assert pwoa.evaluate(result.folder, folder="auto", **MEASURED).folder == scores.folder


def test_it_is_a_surrogate_and_a_twin(result: Result) -> None:
    changes: dict[str, Any] = {**MEASURED, "attacks": "natural,transfer"}
    assert "transfer" in dict(pwoa.evaluate("embedded", "mnist-mini", surrogate=result, **changes))
    assert pwoa.evaluate(result.model, "mnist-mini", twin=result, **MEASURED).agreement


def test_its_teacher_is_compared_with_its_model(result: Result) -> None:
    found = pwoa.compare(result)
    assert (found.a, found.b) == (result.folder / "evaluation" / "teacher", result.folder)
    assert found.rows == pwoa.compare(result.folder).rows
    assert [row.difference for row in pwoa.compare(result, result).rows] == [0.0] * len(found.rows)


def test_its_page_is_written_into_its_folder(result: Result) -> None:
    page = pwoa.report(result)
    assert page == result.folder / "report.html"
    assert str(result.folder) in page.read_text(encoding="utf-8")
    assert "&lt;Result" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("wrap", [lambda result: result, lambda result: [result]])
def test_it_is_timed_by_the_name_of_its_folder(wrap: Callable[[Result], Any], result: Result) -> None:
    found = pwoa.bench(wrap(result), teacher=result, **TIMED)
    assert [row["model"] for row in found.rows] == ["teacher", str(result.folder)]
    assert not any("error" in row for row in found.rows)
    assert found.about["data"] == "mnist-mini"


def test_it_is_pruned_again_as_its_run(result: Result, tmp_path: Path) -> None:
    again = pwoa.prune(result, "mnist-mini", rate=16, settings=QUICK, folder=tmp_path / "again", force=True)
    assert recorded_recipe(again.folder).teacher.checkpoint == str(result.folder)
    assert again.summary["rate"] > result.summary["rate"]


def test_where_its_folder_is_gone_the_error_names_it(result: Result, tmp_path: Path) -> None:
    gone = Result(result.model, tmp_path / "gone", {}, [])
    calls: list[Callable[[], object]] = [
        lambda: pwoa.load_model(gone),
        lambda: pwoa.evaluate(gone),
        lambda: pwoa.compare(gone),
        lambda: pwoa.report(gone),
        lambda: pwoa.bench(gone, **TIMED),
        lambda: pwoa.prune(gone, "mnist-mini"),
    ]
    for call in calls:
        with pytest.raises(
            pwoa.InputError, match=rf"^(checkpoint )?{tmp_path / 'gone'} (does not exist|is not a folder)"
        ):
            call()
