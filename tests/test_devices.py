"""How many threads a run takes on a machine that is shared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pwoa import devices
from pwoa.data.images import Data
from pwoa.progress import Progress
from pwoa.recipe import recorded_recipe
from pwoa.recipe.sections import Recipe
from pwoa.runs.prune import prune

Make = Callable[..., Recipe]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes a machine of four cores that torch would use all, of which some are idle and some granted."""

    def make(idle: float = 4.0, quota: str | None = None) -> None:
        stat = tmp_path / "stat"
        stat.write_text("cpu  0 0 0 0\n" + "".join(f"cpu{core} 100 0 0 100 0 0 0 0 0 0\n" for core in range(4)))

        def pass_time(seconds: float) -> None:
            rows = []
            for core in range(4):
                free = min(max(idle - core, 0.0), 1.0)
                rows.append(f"cpu{core} {100 + 10 * (1 - free)} 0 0 {100 + 10 * free} 0 0 0 0 0 0\n")
            stat.write_text("cpu  0 0 0 0\n" + "".join(rows))

        cgroup = tmp_path / "cgroup"
        cgroup.mkdir(exist_ok=True)
        if quota is not None:
            (cgroup / "cpu.max").write_text(quota)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(devices, "_STAT", stat)
        monkeypatch.setattr(devices, "_CGROUP", cgroup)
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
        monkeypatch.setattr("time.sleep", pass_time)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 4)

    return make


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ({}, 4),
        ({"idle": 2.9}, 3),
        ({"idle": 1.2}, 1),
        ({"idle": 0.0}, 1),
        ({"quota": "200000 100000\n"}, 2),
        ({"quota": "50000 100000\n"}, 1),
        ({"quota": "max 100000\n"}, 4),
        ({"quota": "nonsense"}, 4),
        ({"idle": 1.0, "quota": "300000 100000\n"}, 1),
    ],
)
def test_as_many_threads_as_there_are_free_cores(
    machine: Callable[..., None], given: dict[str, Any], threads: int
) -> None:
    machine(**given)
    assert devices.choose_threads() == threads


def test_only_the_cores_that_the_process_may_use_count(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(idle=3.0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {2, 3})
    assert devices.choose_threads() == 1


def test_omp_num_threads_is_respected(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(idle=0.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert devices.choose_threads() == 4


def test_where_nothing_is_told_the_usual_number_is_taken(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine()
    monkeypatch.setattr(devices, "_STAT", tmp_path / "nowhere")
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert devices.choose_threads() == 4


def test_a_run_keeps_the_number_of_threads_that_it_was_started_with(
    tmp_path: Path,
    tiny_teacher: nn.Module,
    tiny_data: Data,
    quick: Make,
    killed: Callable[[int], Progress],
    monkeypatch: pytest.MonkeyPatch,
    told: Any,
) -> None:
    usual = torch.get_num_threads()
    monkeypatch.setattr("pwoa.runs.prepare.choose_threads", lambda: usual + 2)
    with pytest.raises(KeyboardInterrupt):
        prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "run", progress=killed(5))
    assert torch.get_num_threads() == usual
    assert recorded_recipe(tmp_path / "run").training.threads == usual + 2
    monkeypatch.setattr("pwoa.runs.prepare.choose_threads", lambda: usual)
    result = prune(tiny_teacher, tiny_data, recipe=quick(), folder=tmp_path / "run", progress=told)
    assert told.said[0].startswith(f"{usual + 2} threads instead of {usual}, as the run was started")
    assert result.summary["device"].endswith(f"{usual + 2} threads")
    assert torch.get_num_threads() == usual
