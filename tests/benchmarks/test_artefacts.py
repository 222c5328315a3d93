"""The attacks on what is shipped, on a small network: a row for each artefact, and the same after a stop."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import artefacts
from benchmarks.artefacts import artefacts_table, rows
from pwoa.attacks.autoattack import State, autoattack
from pwoa.attacks.registry import ATTACKS
from pwoa.data.images import Data
from pwoa.storage.folder import save_rows
from tests.conftest import TinyNet

KINDS = ["torch", "packed", "onnx", "c", "int8"]


@pytest.fixture
def given(tiny_teacher: TinyNet, tiny_data: Data, tmp_path: Path) -> Iterator[argparse.Namespace]:
    """What the script is given; the shorter Square that it registers is gone afterwards."""
    before = set(ATTACKS)
    yield argparse.Namespace(
        model=tiny_teacher,
        data=tiny_data,
        data_folder=None,
        folder=tmp_path / "found",
        images=40,
        radius=0.3,
        checked=40,
        queries=60,
        transfer="strong",
        out=tmp_path / "rows.json",
    )
    for name in ATTACKS.keys() - before:
        del ATTACKS[name]


def without_seconds(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found]


def test_every_artefact_has_a_row_and_the_floats_are_as_robust_as_torch(given: argparse.Namespace) -> None:
    found = list(rows(given))
    assert [row["artefact"] for row in found] == KINDS
    for row in found:
        assert row["images"] == 40
        assert 100 >= row["natural"] >= row["transfer"] >= row["robust"] >= 0
        assert row["robust_twin"] == found[0]["robust"]
        assert row["square_broke"] <= round(0.4 * (row["transfer"] - row["robust"]))
    for row in found[:4]:
        assert (row["robust"], row["same_robust"], row["same_verdicts"]) == (found[0]["robust"], 1.0, 1.0)
        assert row["max_difference"] < 1e-5
    assert found[4]["robust"] <= found[4]["replica"] <= found[4]["natural"]
    assert 0 < found[0]["robust"] < found[0]["natural"]  # else nothing is shown
    save_rows(given.out, found[:3])
    again = list(rows(given))
    assert without_seconds(again) == without_seconds(found[3:])


def test_it_goes_on_where_it_was_stopped(given: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = without_seconds(list(rows(given)))
    given.folder = given.folder.with_name("stopped")
    monkeypatch.setattr(artefacts, "BATCH", 16)
    plain, saves, stops = autoattack, 0, 0

    def stopping(*arguments: Any, save: Any, **options: Any) -> Any:
        def save_and_stop(state: State) -> None:
            nonlocal saves
            save(state)
            saves += 1
            if saves % 5 == 0:
                raise KeyboardInterrupt

        return plain(*arguments, save=save_and_stop, **options)

    monkeypatch.setattr(artefacts, "autoattack", stopping)
    found: list[dict[str, Any]] = []
    while not found:
        try:
            found = without_seconds(list(rows(given)))
        except KeyboardInterrupt:
            stops += 1
    assert stops > 3
    monkeypatch.setattr(artefacts, "autoattack", plain)
    given.folder = given.folder.with_name("once")
    assert found == without_seconds(list(rows(given)))
    assert [row["natural"] for row in found] == [row["natural"] for row in whole]


def test_square_searches_on_an_artefact_that_is_not_fooled_as_c_is(
    given: argparse.Namespace, tiny_teacher: TinyNet, tiny_data: Data
) -> None:
    """The C of another network stands for one that is wrong: its examples say nothing of the twin."""
    stand = artefacts.Stand.of(tiny_teacher, tiny_data, given)
    model, left = stand.logits(tiny_teacher), torch.ones(40, dtype=torch.bool)

    def other(x: torch.Tensor) -> torch.Tensor:
        return -model(x)

    left &= stand.right(model, stand.x)
    robust, _ = stand.try_square("torch", model, other, left)
    alone = stand.attack("alone", model, artefacts._square(60), left.nonzero().flatten()).robust
    assert torch.equal(robust[left], alone)


def test_the_table_shows_how_far_each_is_from_torch(tmp_path: Path) -> None:
    assert "Nothing is measured yet" in artefacts_table(tmp_path / "none.json")
    shared = {"network": "net", "rate": 16.0, "images": 1000, "natural": 99.0, "transfer": 91.0, "robust_twin": 90.0}
    shared |= {"examples": "strong", "queries": 5000, "same_verdicts": 1.0, "max_difference": 0.0, "checked": None}
    checked = {"checked": 10_000, "same_verdicts": 0.9999, "max_difference": 2e-7}
    found = [
        {**shared, "artefact": "torch", "robust": 90.0},
        {**shared, **checked, "artefact": "int8", "robust": 89.4},
    ]
    (tmp_path / "rows.json").write_text(json.dumps(found))
    table = artefacts_table(tmp_path / "rows.json")
    assert "| net | 16 | torch | 1,000 | 99.0 | 91.0 | 90.0 |  |  |  |" in table
    assert "| net | 16 | ONNX, int8 | 1,000 | 99.0 | 91.0 | 89.4 | -0.6 | 99.99 % of 10,000 | 2e-07 |" in table
    assert "Examples are by, and Square has: strong and 5,000 queries for net." in table
