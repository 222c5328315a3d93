"""Curves for TensorBoard: the points are those of metrics.jsonl, each once; without the setting nothing is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import pwoa
from pwoa.data.images import Data
from pwoa.progress import Progress
from pwoa.recipe import Recipe
from pwoa.runs.tensorboard import scalars

SHORT: dict[str, Any] = {
    "evaluation.attacks": ["natural"],
    "evaluation.checks": False,
    "evaluation.strong": 0,
    "search.epochs": 2,
    "finetune.epochs": 2,
    "training.checkpoint_seconds": 0.0,
}
WITH = {**SHORT, "training.tensorboard": True}
Make = Callable[..., Recipe]


def points(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return all points in the folder of a run, by curve."""
    found = EventAccumulator(str(run / "tensorboard")).Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def check_points(run: Path, metrics: list[dict[str, Any]]) -> None:
    """The points are those of the lines of metrics, and those of the start at step 0."""
    wanted: dict[str, list[tuple[int, float]]] = {}
    for tag, value in scalars(metrics[0]["start"]):
        wanted.setdefault(tag, []).append((0, value))
    for number, line in enumerate(metrics, 1):
        for tag, value in scalars(line):
            wanted.setdefault(tag, []).append((number, value))
    found = points(run)
    assert {tag: [step for step, _ in curve] for tag, curve in found.items()} == {
        tag: [step for step, _ in curve] for tag, curve in wanted.items()
    }
    for tag, curve in wanted.items():
        assert [value for _, value in found[tag]] == pytest.approx([value for _, value in curve], rel=1e-6)


def test_the_numbers_of_a_line_have_names() -> None:
    line = {"stage": "search", "epoch": 3, "train": {"loss": 0.5, "parts": {"hsic": 2}}, "start": {"a": 1.0}, "b": True}
    assert dict(scalars(line)) == {"train/loss": 0.5, "train/parts/hsic": 2.0}


def test_a_run_that_is_killed_and_resumed_has_each_point_once(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, killed: Callable[[int], Progress]
) -> None:
    def run(progress: Progress) -> pwoa.runs.folder.Result:
        where = tmp_path / "run"
        return pwoa.prune(tiny_teacher, tiny_data, recipe=quick(), settings=WITH, folder=where, progress=progress)

    with pytest.raises(KeyboardInterrupt):
        run(killed(11))  # in the third epoch of four steps
    before = points(tmp_path / "run")
    assert [step for step, _ in before["validation/loss"]] == [1, 2]
    result = run(Progress())
    check_points(tmp_path / "run", result.metrics)
    assert [step for step, _ in points(tmp_path / "run")["train/loss"]] == [1, 2, 3, 4]


def test_curves_change_no_result_and_a_run_may_do_without_from_now_on(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, killed: Callable[[int], Progress]
) -> None:
    options: dict[str, Any] = {"recipe": quick(), "folder": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        pwoa.prune(tiny_teacher, tiny_data, **options, settings=WITH, progress=killed(11))
    resumed = pwoa.prune(tiny_teacher, tiny_data, **options, settings=SHORT)
    plain = pwoa.prune(tiny_teacher, tiny_data, **options | {"folder": tmp_path / "plain"}, settings=SHORT)
    assert resumed.summary["model"] == plain.summary["model"]
    assert not (tmp_path / "plain" / "tensorboard").exists()


def test_without_tensorboard_it_is_refused_before_anything_is_trained_and_otherwise_not_missed(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    where = tmp_path / "run"
    with pytest.raises(pwoa.InputError, match=r"pip install 'pwoa\[tensorboard\]'"):
        pwoa.prune(tiny_teacher, tiny_data, recipe=quick(), settings=WITH, folder=where)
    assert not where.exists()
    assert pwoa.prune(tiny_teacher, tiny_data, recipe=quick(), settings=SHORT, folder=where).metrics
