"""The benchmark of what is shipped, on a small network: a row for each pruning and route."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from benchmarks.deployment import Pruning, pruned, rows
from pwoa.data.images import Data
from pwoa.deploy import bench
from pwoa.sparsity.constraint import count
from pwoa.storage.folder import save_rows
from tests.conftest import TinyNet


def test_every_pruning_has_its_rows_and_none_is_timed_again(
    tiny_teacher: TinyNet, tiny_data: Data, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "peak_memory", lambda *given: None)
    given = argparse.Namespace(routes="torch,c", seconds=0.01, images=40, out=tmp_path / "rows.json")
    prunings = (Pruning(4), Pruning(4, "uniform", "macs"))
    found = list(rows("tiny", tiny_teacher, tiny_data, prunings, given))
    assert [(row["rate"], row["allocation"], row["budget"], row["route"]) for row in found] == [
        (1, "dense", "weights", "torch"),
        (1, "dense", "weights", "c"),
        (4, "uniform", "weights", "torch"),
        (4, "uniform", "weights", "c"),
        (4, "uniform", "macs", "torch"),
        (4, "uniform", "macs", "c"),
    ]
    best = min(row["milliseconds"] for row in found[:2])
    assert all(row["milliseconds_teacher_best"] == best and row["images"] == 40 for row in found)
    assert [row["same_verdicts"] for row in found] == [None, None, None, 1.0, None, 1.0]
    assert found[5]["macs"] <= found[5]["macs_dense"] / 4 + 1
    assert found[0]["macs"] == found[0]["macs_dense"]
    save_rows(given.out, found[:4])
    again = list(rows("tiny", tiny_teacher, tiny_data, prunings, given))
    assert [(row["rate"], row["budget"], row["route"]) for row in again] == [(4, "macs", "torch"), (4, "macs", "c")]


def test_the_smallest_weights_go_and_the_teacher_stays(tiny_teacher: TinyNet) -> None:
    before = {name: value.clone() for name, value in tiny_teacher.state_dict().items()}
    model = pruned(tiny_teacher, Pruning(4), torch.zeros(1, 1, 6, 6))
    assert count(model)[-1].rate == pytest.approx(4, rel=0.02)
    assert all(torch.equal(value, before[name]) for name, value in tiny_teacher.state_dict().items())
    kept = model.get_parameter("hidden.weight")
    dense = tiny_teacher.get_parameter("hidden.weight")
    assert torch.equal(kept[kept != 0], dense[kept != 0])
    assert bool(dense[kept != 0].abs().min() >= dense[kept == 0].abs().max())
