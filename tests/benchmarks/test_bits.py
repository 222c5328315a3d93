"""Hashes of runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from torch import nn

import pwoa
from benchmarks.bits import row_of, runs, without_seconds
from pwoa.data.images import Data
from pwoa.methods import METHODS
from pwoa.recipe.sections import Recipe


def test_every_method_has_a_run() -> None:
    assert {name.removesuffix(mix) for name in runs() for mix in ("-0.0", "-0.5", "-1.0")} >= set(METHODS)


def test_seconds_are_left_out_wherever_they_are() -> None:
    lines = [{"seconds": 1.5, "train": {"loss": 0.5, "attack_seconds": 2}, "seeds": [{"seconds": 3, "seed": 0}]}]
    assert without_seconds(lines) == [{"train": {"loss": 0.5}, "seeds": [{"seed": 0}]}]


def test_the_same_run_has_the_same_row_and_another_seed_another(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Callable[..., Recipe], tmp_path: Path
) -> None:
    rows = []
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        recipe = quick(search__epochs=1, finetune__epochs=1, training__seed=seed)
        pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / name, force=True)
        rows.append(row_of("run", tmp_path / name))
    assert rows[0] == rows[1]
    assert rows[0]["weights"] != rows[2]["weights"]
    assert rows[0]["metrics"] != rows[2]["metrics"]
    assert rows[0]["pruned"] == json.loads((tmp_path / "first" / "result.json").read_text())["pruned"]
