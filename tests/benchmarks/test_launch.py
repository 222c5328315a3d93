"""The time from launch to the result: two processes, the second with what the first left in the compiler cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import launch


def test_two_processes_share_a_cache_and_each_has_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    caches, folders = [], []

    def prune(command: list[str], env: dict[str, str], **rest: Any) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir()
        result = {"training_seconds": 2.04, "evaluation_seconds": 1.0, "pruned": {"pgd20": 49.0}, "device": "GPU"}
        (folder / "result.json").write_text(json.dumps(result))
        caches.append(env["TORCHINDUCTOR_CACHE_DIR"])
        folders.append(folder)
        assert command[1:6] == ["-m", "pwoa", "prune", "--recipe", "cifar10-robust"]
        assert "training.seed=1" in command
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", prune)
    out = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["launch", "--set", "training.seed=1", "--out", str(out)])
    launch.main()
    rows = json.loads(out.read_text())
    assert [(row["cache"], row["training"], row["pgd20"]) for row in rows] == [
        ("empty", 2.0, 49.0),
        ("full", 2.0, 49.0),
    ]
    assert len(set(caches)) == 1
    assert len(set(folders)) == 2


def test_the_table_leaves_open_what_is_not_known(tmp_path: Path) -> None:
    row = {"version": "1", "cache": "empty", "seconds": 50.0, "training": 20.0, "evaluation": 5.0, "pgd20": 49.0}
    rows = [{**row, "note": ""}, {**row, "evaluation": None, "note": "busy"}]
    (tmp_path / "launch.json").write_text(json.dumps(rows))
    assert launch.launch_table(tmp_path / "launch.json").splitlines()[2:] == [
        "| 1 | empty | 50.0 s | 20.0 s | 5.0 s | 25.0 s |  |",
        "| 1 | empty | 50.0 s | 20.0 s |  |  | busy |",
    ]
