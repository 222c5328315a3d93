"""Several processes end where one does; real ones, started by torchrun and connected by gloo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pwoa.errors import InputError
from pwoa.training.processes import Processes, connected

DRIVER = """
import os, sys, torch
from torch import nn
import pwoa
from pwoa.errors import ProcessDied

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.hidden, self.out = nn.Linear(144, 16), nn.Linear(16, 3)

    def forward(self, x):
        if self.training and len(x) > 8 and os.environ.get("CRAMPED", "none") == os.environ.get("RANK"):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.out(torch.relu(self.hidden(torch.relu(self.norm(self.conv(x))).flatten(1))))

def images(n, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=generator)
    rows = torch.arange(6).view(1, 1, 6, 1) // 2
    return torch.rand(n, 1, 6, 6, generator=generator) * 0.3 + 0.6 * (rows == labels.view(-1, 1, 1, 1)), labels

torch.manual_seed(0)
settings = {
    "data.validation": 40, "data.augment": "crop-flip", "search.epochs": 2, "search.interval": 1,
    "search.learning_rate": 0.02, "finetune.epochs": int(sys.argv[2]), "finetune.learning_rate": 0.02,
    "training.batch": 32, "training.group": 8, "training.average": 0.9, "training.device": "cpu",
    "training.checkpoint_seconds": 0.0, "evaluation.attacks": ["natural"], "objective.hsic_x": 1e-4,
}
open(f"{sys.argv[1]}.pid{os.environ.get('RANK', 0)}", "w").write(str(os.getpid()))
try:
    result = pwoa.prune(Net(), (images(200, 0), images(40, 1)), recipe=pwoa.Recipe(), rate=2, settings=settings,
                        folder=sys.argv[1], force=True)
except ProcessDied as error:
    sys.exit(f"error: {error}")
if not result.summary:  # as the command line ends the processes that show no result
    os._exit(0)
"""


def start(folder: Path, processes: int, epochs: int = 2, cramped: str = "none") -> subprocess.Popen[str]:
    driver = folder.parent / "driver.py"
    driver.write_text(DRIVER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*(torchrun if processes > 1 else [sys.executable]), str(driver), str(folder), str(epochs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CRAMPED": cramped}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=120)
    return process.returncode, err


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "run"
    code, err = finish(start(folder, 2))
    assert code == 0, err
    return folder


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_same(one: Path, two: Path) -> None:
    alone, together = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    for name, value in alone.items():
        assert torch.allclose(together[name], value, atol=1e-4, rtol=1e-3), name
        assert torch.equal(together[name] == 0, value == 0), name
    assert len(lines(one)) == len(lines(two)) == 4
    for mine, theirs in zip(lines(one), lines(two), strict=True):
        for split in ("train", "validation"):
            assert theirs[split] == pytest.approx(mine[split], rel=1e-3, abs=1e-5)


def test_two_processes_end_where_one_does(two: Path, tmp_path: Path) -> None:
    one = tmp_path / "run"
    code, err = finish(start(one, 1))
    assert code == 0, err
    check_same(one, two)
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, two)]
    assert [result["processes"] for result in results] == [1, 2]
    assert results[0]["pruned"] == results[1]["pruned"]


def test_they_also_do_when_memory_runs_out_in_one_of_them(two: Path, tmp_path: Path) -> None:
    code, err = finish(start(tmp_path / "run", 2, cramped="1"))
    assert code == 0, err
    check_same(two, tmp_path / "run")


def test_a_process_that_dies_ends_the_run_which_then_resumes(tmp_path: Path) -> None:
    long = tmp_path / "whole" / "run"
    long.parent.mkdir()
    assert finish(start(long, 2, epochs=40))[0] == 0
    folder = tmp_path / "run"
    process = start(folder, 2, epochs=40)
    while not (folder / "metrics.jsonl").exists() or len(lines(folder)) < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(int((tmp_path / "run.pid1").read_text()), signal.SIGKILL)
    code, err = finish(process)
    assert code != 0
    assert "another process of this run died" in err
    assert not (folder / "result.json").exists()
    assert finish(start(folder, 2, epochs=40))[0] == 0
    assert (folder / "model.safetensors").read_bytes() == (long / "model.safetensors").read_bytes()


def test_alone_nothing_is_exchanged() -> None:
    alone, value = Processes(), torch.tensor([3.0])
    alone.average([value])
    alone.add([value])
    assert value.item() == 3.0
    assert alone.by_first(lambda: "found") == "found"
    assert alone.share(7) == slice(0, 7)


def test_a_batch_is_shared_without_rest() -> None:
    found = [Processes(rank, 4).share(64) for rank in range(4)]
    assert [list(range(64))[part] for part in found] == [list(range(16 * i, 16 * i + 16)) for i in range(4)]


def test_a_batch_of_a_broken_group_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"a batch of 200 cannot be cut in groups of 128: set training\.batch to a mult"
    ):
        Processes().check_batch(200, 128)


@pytest.mark.parametrize(("batch", "group"), [(128, 128), (96, 32), (130, 13), (64, 128)])
def test_groups_are_not_spread_over_processes(batch: int, group: int) -> None:
    Processes(0, 1).check_batch(batch, group)
    with pytest.raises(InputError, match=f"a batch of {batch} cannot be shared by 4 processes in groups of {group}"):
        Processes(0, 4).check_batch(batch, group)
    Processes(0, 4).check_batch(4 * group, group)


@pytest.mark.parametrize(
    ("size", "line"), [("2", "WORLD_SIZE is 2, and RANK is not set"), ("many", "WORLD_SIZE = 'many' is no number")]
)
def test_several_processes_without_torchrun_are_one_line(monkeypatch: pytest.MonkeyPatch, size: str, line: str) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(InputError, match=line), connected(torch.device("cpu")):
        pass
