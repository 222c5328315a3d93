"""Methods with adversarial examples in the time of the preset robust."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

import pwoa
from benchmarks import equal_time
from pwoa.progress import Progress

CURRENT = {"preset": "cifar10-robust", "augment": "reflect-flip", "batch": 256}
LENET = ("teacher.architecture=lenet", "teacher.checkpoint=embedded", "teacher.minimum=0", "data.augment=none")


def test_a_row_for_each_method_and_none_is_measured_twice(few: list[str], tmp_path: Path, told: Any) -> None:
    words = [*few, *(word for setting in (*LENET, "finetune.epochs=2") for word in ("--set", setting))]
    words += ["--methods", "magnitude", "--autoattack", "5", "--out", str(tmp_path / "rows.json")]
    words += ["--runs", str(tmp_path / "runs")]
    equal_time.main(words, Progress())
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["method"], row["augment"], row["mix"], row["epochs"]) == ("magnitude", "none", 1.0, "2")
    assert row["rate"] == pytest.approx(16, abs=0.01)
    assert row["natural"] >= row["pgd20"] >= 0
    assert row["steady_seconds"] > 0
    assert row["training_seconds"] > 0
    assert (row["n"], row["n_autoattack"]) == (20, 5)
    equal_time.main(words, Progress())
    assert json.loads((tmp_path / "rows.json").read_text()) == [row]
    bare = {**row, "autoattack": None, "n_autoattack": 0}
    (tmp_path / "rows.json").write_text(json.dumps([{**row, "seed": 3}, {**row, "settings": []}, bare]))
    equal_time.main(words, Progress())
    kept = json.loads((tmp_path / "rows.json").read_text())
    assert [(one["seed"], one["settings"] == row["settings"]) for one in kept] == [(3, True), (0, False), (0, True)]
    assert kept[-1]["autoattack"] == row["autoattack"]
    equal_time.main([*words, "--seed", "1", "--minutes", "-1"], told)
    assert told.said == ["-1 minutes are over; stopped before magnitude"]


def test_rows_from_before_settings_were_kept_give_way_to_rows_without_any() -> None:
    new: dict[str, Any] = {"method": "harp", "seed": 0, "teacher": "t", "settings": []}
    old = {key: value for key, value in new.items() if key != "settings"}
    assert equal_time.is_same(old, new)
    for key, value in (("settings", ["data.augment=reflect-flip"]), ("teacher", "other"), ("seed", 1)):
        assert not equal_time.is_same(old, {**new, key: value})


@pytest.mark.parametrize("method", equal_time.EPOCHS)
def test_weights_learn_three_times_as_fast_as_in_the_preset_and_scores_as_fast(method: str) -> None:
    given = argparse.Namespace(seed=2, images=0, teacher="t.pt", data_folder=None, settings=["training.group=512"])
    recipe, preset = equal_time.recipe_of(method, given), pwoa.load_recipe(f"cifar10-{method}")
    assert recipe.finetune.learning_rate == pytest.approx(3 * preset.finetune.learning_rate)
    factor = {"hydra": 1, "harp": 1, "magnitude": 1}.get(method, 3)
    assert recipe.search.learning_rate == pytest.approx(factor * preset.search.learning_rate)
    assert (recipe.training.mix, recipe.sparsity.rate, recipe.training.seed) == (1.0, 16.0, 2)
    assert (recipe.teacher.checkpoint, recipe.training.batch, recipe.training.group) == ("t.pt", 512, 512)


def test_the_constraint_of_advprune_is_updated_and_whole_at_the_end() -> None:
    given = argparse.Namespace(seed=0, images=0, teacher="", data_folder=None, settings=[])
    search = equal_time.recipe_of("advprune", given).search
    updates = search.epochs / search.interval - 1
    assert updates == 7
    assert search.rho * search.rho_growth**updates == pytest.approx(search.rho_limit)


def test_methods_in_the_same_time_stand_above_the_preset_with_the_first_epoch_as_long_as_the_others(
    tmp_path: Path,
) -> None:
    row = {"rate": 16.0, "macs_rate": 4.5, "epochs": "1+2", "natural": 80.0, "pgd20": 50.0, "cw": 45.0}
    own = {**row, **CURRENT, "budget": "weights", "autoattack": 43.0, "training_seconds": 30.0}
    own |= {"allocation": "lamp", "n_autoattack": 1000}
    other = {**own, "cw": 46.0, "autoattack": None, "training_seconds": 20.0}
    learned = {**own, "allocation": "learned", "macs_rate": 6.5, "cw": 47.0}
    (tmp_path / "robust.json").write_text(json.dumps([own, other, {**own, "budget": "macs", "cw": 0.0}, learned]))
    method = {
        **row,
        "augment": "crop-flip",
        "mix": 1.0,
        "training_seconds": 50.0,
        "later_epochs": [4.0, 6.0],
        "n_autoattack": 1000,
    }
    rows = [{**method, "method": "first", "autoattack": 44.0}, {**method, "method": "second", "autoattack": 41.0}]
    rows[1]["settings"] = ["data.augment=reflect-flip"]
    rows.append({**method, "method": "third", "autoattack": None})
    (tmp_path / "equal-time.json").write_text(json.dumps(rows))
    lines = equal_time.equal_time_table(tmp_path / "equal-time.json").splitlines()
    names = [
        "third",
        "second, data.augment=reflect-flip",
        "first",
        "`cifar10-robust`, lamp",
        "`cifar10-robust`, learned",
    ]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == names
    assert lines[4] == "| first | 1 | 1+2 | 50.0 s | 15.0 s | 4.5× | 80.00 | 50.00 | 45.00 | 44.00 |"
    assert "| 25.0 s |  | 4.5× | 80.00 ± 0.00 | 50.00 ± 0.00 | 45.50 ± 0.71 | 43.00 |" in lines[5]
    assert "| 30.0 s |  | 6.5× | 80.00 | 50.00 | 47.00 | 43.00 |" in lines[6]
    equal_time.draw_equal_time(tmp_path / "equal-time.json", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
