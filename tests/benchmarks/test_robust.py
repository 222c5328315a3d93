"""The measurement of the presets `robust`, on a few images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import robust
from pwoa.progress import Progress

CURRENT = {"preset": "cifar10-robust", "augment": "reflect-flip", "batch": 256}


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


def test_autoattack_is_added_to_a_row_whose_run_is_there(few: list[str], tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    words = [*few, "--set", "search.epochs=1", "--set", "finetune.epochs=1", "--set", "teacher.minimum=0"]
    words += ["--seeds", "0", "--rates", "4", "--presets", "mnist-robust", "--out", str(out), "--runs", str(tmp_path)]
    robust.main([*words, "--autoattack", "0"], Progress())
    (before,) = json.loads(out.read_text())
    assert (before["autoattack"], before["n_autoattack"]) == (None, 0)
    robust.main([*words, "--autoattack", "0"], Progress())
    assert json.loads(out.read_text()) == [before]
    robust.main([*words, "--autoattack", "5"], Progress())
    (after,) = json.loads(out.read_text())
    assert (after.pop("autoattack") <= before.pop("natural"), after.pop("n_autoattack")) == (True, 5)
    after.pop("natural")
    assert after["wall_seconds"] is not None  # of the run, which was there
    assert after == {key: value for key, value in before.items() if key not in ("autoattack", "n_autoattack")}


def test_runs_with_other_settings_are_other_runs_and_no_rows_of_the_preset(few: list[str], tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    words = [*few, "--set", "finetune.epochs=1", "--set", "teacher.minimum=0", "--seeds", "0", "--rates", "4"]
    words += ["--presets", "mnist-robust", "--autoattack", "0", "--out", str(out), "--runs", str(tmp_path / "runs")]
    for epochs in ("1", "2"):
        robust.main([*words, "--set", f"search.epochs={epochs}"], Progress())
    first, second = json.loads(out.read_text())
    assert (first["epochs"], second["epochs"]) == ("1+1", "2+1")
    assert len({path.name for path in (tmp_path / "runs").iterdir()}) == 2
    row = {**first, **CURRENT, "architecture": "resnet18", "rate": 4.0, "allocation": "lamp", "settings": []}
    other = {**row, "settings": ["finetune.epochs=1"]}
    assert robust.as_it_is(row)
    assert robust.as_it_is({**row, "settings": ["sparsity.allocation=lamp"]})
    assert not robust.as_it_is(other)
    (tmp_path / "both.json").write_text(json.dumps([row, other]))
    lines = robust.robust_table(tmp_path / "both.json").splitlines()[-2:]
    assert [line.split(" | ")[0] for line in lines] == ["| `cifar10-robust`", "| `cifar10-robust`, finetune.epochs=1"]


def test_a_run_that_is_trained_anew_has_its_own_time(few: list[str], tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    words = [*few, "--set", "search.epochs=1", "--set", "finetune.epochs=1", "--set", "teacher.minimum=0"]
    words += ["--seeds", "0", "--rates", "4", "--presets", "mnist-robust", "--out", str(out)]
    robust.main([*words, "--autoattack", "0", "--runs", str(tmp_path / "first")], Progress())
    (before,) = json.loads(out.read_text())
    out.write_text(json.dumps([before | {"wall_seconds": -1.0}]))
    robust.main([*words, "--autoattack", "5", "--runs", str(tmp_path / "second")], Progress())
    (after,) = json.loads(out.read_text())
    assert after["wall_seconds"] > 0


def test_the_table_has_both_budgets_and_leaves_open_what_was_not_measured(tmp_path: Path) -> None:
    row = {
        "architecture": "net",
        "dataset": "digits",
        "teacher": "t",
        "preset": "mnist-robust",
        "augment": "none",
        "batch": 128,
        "epochs": "4+2",
        "n": 100,
        "n_autoattack": 10,
        "device": "CPU",
    }
    accuracies = {"natural": 80.0, "pgd20": 50.0, "cw": 45.0, "autoattack": 40.0}
    row |= {**accuracies, **{f"teacher_{name}": 90.0 for name in accuracies}, "seed": 0}
    weights = {**row, "allocation": "lamp", "budget": "weights", "rate": 4.0, "weights_rate": 4.0, "macs_rate": 2.0}
    macs = {**weights, "budget": "macs", "weights_rate": 3.0, "macs_rate": 4.0, "autoattack": None}
    longer = {**weights, "epochs": "12+4", "cw": 47.0}
    (tmp_path / "rows.json").write_text(json.dumps([macs, weights, {**weights, "seed": 1, "cw": 46.0}, longer]))
    lines = robust.robust_table(tmp_path / "rows.json").splitlines()
    assert lines[4] == "| teacher |  |  | 1 | 1 | 90.00 | 90.00 | 90.00 |  |  |"
    assert lines[5].startswith(
        "| `mnist-robust` | lamp | 4+2 | **4×** | 2× | 80.00 ± 0.00 | 50.00 ± 0.00 | 45.50 ± 0.71 |"
    )
    assert lines[5].endswith("| 2 |")
    assert lines[6].startswith("| `mnist-robust` | lamp | 12+4 | **4×** | 2× | 80.00 | 50.00 | 47.00 |")
    assert lines[7] == "| `mnist-robust` | lamp | 4+2 | 3× | **4×** | 80.00 | 50.00 | 45.00 |  | 1 |"
    (tmp_path / "rows.json").write_text(json.dumps([macs, {**weights, "dataset": "letters"}]))
    assert robust.robust_table(tmp_path / "rows.json").count("| teacher |") == 2  # a table for each network


def test_rows_of_the_preset_as_it_was_have_a_table_of_their_own(tmp_path: Path) -> None:
    row: dict[str, Any] = {**CURRENT, "architecture": "net", "dataset": "digits", "teacher": "t", "epochs": "4+2"}
    row |= {"n": 100, "n_autoattack": 10, "device": "CPU", "seed": 0, "allocation": "lamp", "budget": "weights"}
    row |= {"rate": 4.0, "weights_rate": 4.0, "macs_rate": 2.0, "natural": 80.0, "pgd20": 50.0, "autoattack": 40.0}
    row |= {f"teacher_{name}": 90.0 for name in robust.ATTACKS}
    rows = [{**row, "cw": 46.0}, {**row, "cw": 45.0, "augment": "crop-flip"}, {**row, "cw": 44.0, "batch": 512}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    now, before = robust.robust_table(tmp_path / "rows.json"), robust.before_table(tmp_path / "rows.json")
    assert "| 46.00 |" in now
    assert "± " not in now
    assert "± " not in before  # other images, or other batches, are other runs
    assert "| 45.00 |" in before
    assert "| 44.00 |" in before


def test_what_was_aimed_at_is_compared_with_the_preset_as_it_is(tmp_path: Path) -> None:
    named = {**CURRENT, "architecture": "resnet18", "allocation": "lamp", "budget": "weights"}
    row = {**named, "rate": 16.0, "epochs": "12+4", "cw": 44.5, "autoattack": 42.0}
    fewer = {**row, "epochs": "4+2", "cw": 45.1}
    others = [{**row, "allocation": "learned", "cw": 50.0}, {**row, "augment": "crop-flip", "cw": 40.0}]
    (tmp_path / "rows.json").write_text(json.dumps([row, *others, fewer]))
    lines = robust.aims_table(tmp_path / "rows.json").splitlines()
    assert lines[2] == "| weights | 16 | 12+4 | 45.0 | 44.50 | −0.50 | 1 | 42.00 |"
    assert lines[3] == "| weights | 16 | 4+2 | 45.0 | 45.10 | +0.10 | 1 | 42.00 |"
    assert len(lines) == 4


def test_nothing_begins_when_the_time_is_over(few: list[str], tmp_path: Path, told: Any) -> None:
    out = tmp_path / "rows.json"
    robust.main([*few, "--presets", "mnist-robust", "--rates", "8", "--minutes", "-1", "--out", str(out)], told)
    assert not out.exists()
    (said,) = told.said
    assert said.startswith("-1 minutes are over; stopped before mnist-robust-weights-lamp-x8-seed0-")
