"""Sweeps: the grid, and real runs by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pwoa.cli import app
from pwoa.errors import InputError
from pwoa.progress import Progress
from pwoa.sweep import expand, spread, sweep

QUICK = """
recipe = "demo"
[set]
"search.epochs" = 1
"finetune.epochs" = 1
"training.batch" = 100
"data.validation" = 9800
"evaluation.images" = 20
"evaluation.attacks" = ["natural", "pgd2"]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "grid.toml"
    path.write_text(text)
    return path


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    text = (
        'recipe = "mnist"\n[set]\nfinetune.epochs = 7\n[grid]\nmethod = ["pwoa", "hydra"]\nsparsity.rate = [4, 16.5]\n'
    )
    points = expand(write(tmp_path, text))
    assert [point.name for point in points] == [
        "method=pwoa-rate=4",
        "method=pwoa-rate=16.5",
        "method=hydra-rate=4",
        "method=hydra-rate=16.5",
    ]
    assert [(point.recipe.method, point.recipe.sparsity.rate) for point in points] == [
        ("pwoa", 4.0),
        ("pwoa", 16.5),
        ("hydra", 4.0),
        ("hydra", 16.5),
    ]
    assert {point.recipe.finetune.epochs for point in points} == {7}
    assert {point.recipe.data.name for point in points} == {"mnist"}
    assert [point.name for point in expand(write(tmp_path, 'recipe = "demo"'))] == ["run"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grids]\n", r"unknown key 'grids' \(did you mean 'grid'\?\)"),
        ("[grid]\nmethod = 'pwoa'\n", r"grid\.method = 'pwoa' is not a list of values"),
        ("[grid]\nsparsity.rate = []\n", r"grid\.sparsity\.rate = \[\] is not a list"),
        ("[grid]\nsparsity.rat = [4]\n", r"did you mean 'sparsity\.rate'"),
        ("[grid\n", "not valid TOML"),
        ("recipe = 'mnits'", "did you mean 'mnist'"),
    ],
)
def test_a_wrong_grid_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        expand(write(tmp_path, text))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot read"):
        expand(tmp_path / "nowhere.toml")


def test_means_and_deviations_are_over_seeds() -> None:
    row = {"method": "pwoa", "rate": 4.0, "mix": 0.0, "natural": 90.0, "pgd20": 50.0, "cw": None, "autoattack": None}
    rows = [row, {**row, "pgd20": 54.0}, {**row, "rate": 16.0}]
    assert spread(rows) == {
        "pwoa, rate 4, mix 0": {"natural": "90.00 ± 0.00", "pgd20": "52.00 ± 2.83", "cw": "", "autoattack": ""},
        "pwoa, rate 16, mix 0": {"natural": "90.00", "pgd20": "50.00", "cw": "", "autoattack": ""},
    }


def test_finished_runs_are_skipped_and_failed_ones_left_out(tmp_path: Path) -> None:
    class Told(Progress):
        def __init__(self) -> None:
            self.said: list[str] = []

        def say(self, message: str) -> None:
            self.said.append(message)

    path = write(tmp_path, QUICK + '[grid]\nmethod = ["magnitude"]\nsparsity.rate = [2, 100000]\n')
    told = Told()
    rows = sweep(path, tmp_path / "runs", retries=0, progress=told)
    assert [(row["method"], row["rate"], row["n"], row["mix"]) for row in rows] == [("magnitude", 2.0, 20, 0.0)]
    assert told.said[1:] == ["method=magnitude-rate=100000 failed: " + told.said[1].partition("failed: ")[2]]
    assert "leaves layer" in told.said[1]
    assert json.loads((tmp_path / "runs" / "rows.json").read_text()) == rows
    result = tmp_path / "runs" / "method=magnitude-rate=2" / "result.json"
    before = result.stat().st_mtime_ns
    done = CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    assert "magnitude, rate 2, mix 0" in done.output
    assert result.stat().st_mtime_ns == before
