"""The measurement of the presets `robust`, on a few images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import robust
from pwoa.progress import Progress


def test_a_row_for_every_preset_and_rate_and_none_is_pruned_twice(few: list[str], tmp_path: Path) -> None:
    words = [*few, "--set", "search.epochs=1", "--set", "finetune.epochs=1", "--set", "teacher.minimum=0"]
    words += ["--set", "evaluation.checks=false", "--set", "evaluation.strong=0", "--seeds", "0", "--autoattack", "5"]
    words += ["--out", str(tmp_path / "rows.json"), "--runs", str(tmp_path / "runs")]
    robust.main([*words, "--presets", "mnist-robust", "--rates", "4"], Progress())
    robust.main([*words, "--presets", "mnist-robust", "mnist", "--rates", "4"], Progress())
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["preset"], row["allocation"]) for row in rows] == [("mnist-robust", "lamp"), ("mnist", "uniform")]
    for row in rows:
        assert abs(row["weights_rate"] - 4) < 0.01
        assert row["example_free"] is True
        assert (row["budget"], row["epochs"], row["n"], row["n_autoattack"]) == ("weights", "1+1", 20, 5)
        assert row["natural"] >= row["pgd20"] >= 0
        assert row["wall_seconds"] >= row["training_seconds"] > 0


def test_nothing_begins_when_the_time_is_over(few: list[str], tmp_path: Path, told: Any) -> None:
    out = tmp_path / "rows.json"
    robust.main([*few, "--presets", "mnist-robust", "--rates", "8", "--minutes", "-1", "--out", str(out)], told)
    assert not out.exists()
    assert told.said == ["-1 minutes are over; stopped before mnist-robust-weights-lamp-x8-seed0"]
