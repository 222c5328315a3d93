"""A sweep tells how far its runs have come, by the epochs that they leave in their folders."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pwoa.progress import Progress
from pwoa.sweep.grid import Point, expand
from pwoa.sweep.watch import Watch

GRID = """
recipe = "demo"
[set]
search.epochs = 3
finetune.epochs = 4
pretrain.epochs = 5
[grid]
method = ["pwoa", "magnitude", "trades"]
"""


class Seen(Progress):
    """Keeps what was reached last."""

    def __init__(self) -> None:
        self.began: tuple[int, int] | None = None
        self.done = self.total = 0

    def start(self, task: str, total: int, done: int = 0) -> None:
        self.began = done, total

    def reach(self, task: str, done: int, total: int) -> None:
        self.done, self.total = done, total


@pytest.fixture
def points(tmp_path: Path) -> list[Point]:
    (tmp_path / "grid.toml").write_text(GRID)
    return expand(tmp_path / "grid.toml")


def epochs(folder: Path, count: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("{}\n" * count)


def until(told: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not told() and time.monotonic() < end:
        time.sleep(0.01)
    assert told()


def test_epochs_count_as_they_end_and_a_run_as_a_whole(
    tmp_path: Path, points: list[Point], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwoa.sweep.watch.SECONDS", 0.01)
    pwoa, magnitude, trades = (tmp_path / point.name for point in points)
    epochs(pwoa, 2)  # before the sweep was stopped
    seen = Seen()
    with Watch(points, tmp_path, seen) as watch:
        assert seen.began == (2, (7 + 1) + (4 + 1) + (5 + 1))
        epochs(pwoa, 6)
        until(lambda: (seen.done, seen.total) == (6, 19))
        epochs(magnitude, 4)
        until(lambda: seen.done == 6 + 4)  # its evaluation is still to come
        watch.end(magnitude)
        assert seen.done == 6 + 5
        watch.end(trades)  # which failed at once
        epochs(pwoa, 9)  # some of them twice, by a process that was killed
        until(lambda: seen.done == 7 + 5 + 6)
        watch.end(pwoa)
        assert seen.done == seen.total
