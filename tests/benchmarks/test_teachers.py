"""Teachers and variants of them, on a few images."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from benchmarks import teachers
from pwoa.progress import Progress


def test_a_row_for_every_variant_and_none_is_trained_twice(few: list[str], tmp_path: Path) -> None:
    words = ["--recipe", "teacher-mnist", *few, "--set", "pretrain.epochs=2", "--set", "pretrain.steps=1"]
    words += ["--out", str(tmp_path / "rows.json"), "--runs", str(tmp_path / "runs"), "--variants"]
    teachers.main([*words, "as it is"], Progress())
    teachers.main([*words, "as it is", "warm and slow:pretrain.warmup=1,pretrain.learning_rate=0.01"], Progress())
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["name"] for row in rows] == ["as it is", "warm and slow"]
    assert rows[1]["settings"][-2:] == ["pretrain.warmup=1", "pretrain.learning_rate=0.01"]
    assert (tmp_path / "runs" / "warm-and-slow" / "model.safetensors").exists()
    weights = tmp_path / "runs" / "as-it-is" / "model.safetensors"
    assert rows[0]["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest() != rows[1]["sha256"]
    for row in rows:
        assert row["recipe"] == "teacher-mnist"
        assert row["method"] == "pgd-at"
        assert row["images"] == 20
        assert (row["epochs"], row["seed"], row["dataset"]) == (2, 0, rows[0]["dataset"])
        assert row["selected_epoch"] in (0, 1)
        assert {"natural", "pgd20", "cw"} <= set(row)
        assert row["seconds"] > 0


def test_nothing_begins_when_the_time_is_over(few: list[str], tmp_path: Path, told: Any) -> None:
    out = tmp_path / "rows.json"
    teachers.main([*few, "--minutes", "-1", "--out", str(out)], told)
    assert not out.exists()
    assert told.said == ["-1 minutes are over; stopped before teacher-cifar10"]
