"""The page of a sweep has the runs that the sweep has now, not those of an older grid in the same folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pwoa
from pwoa.cli import app
from pwoa.report.gather import children
from pwoa.report.serve import Site

GRID = """
recipe = "demo"
[set]
"data.name" = "{data}"
"method" = "magnitude"
"finetune.epochs" = 1
"training.batch" = 25
"data.validation" = 25
"evaluation.images" = 20
"evaluation.checks" = false
"evaluation.strong" = 0
"evaluation.attacks" = ["natural"]
[grid]
"training.seed" = {seeds}
"""
LEFT_OUT = "1 finished run is left out, which {rows} does not name, as of an older grid: {name}."


def name_runs(folder: Path, *names: str) -> Path:
    """Write the rows of a sweep that has these runs."""
    rows = folder / "rows.json"
    rows.write_text(json.dumps([{"name": "teacher"}, *({"name": name} for name in names)]))
    return rows


def shown(folder: Path) -> list[str]:
    return [place.name for place in children(folder)]


def test_a_sweep_whose_grid_has_changed_has_a_page_of_its_own_runs(
    tmp_path: Path, digits: Callable[[int, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = digits(100, 40)
    for seeds in ([0, 1], [0, 2]):
        Path("grid.toml").write_text(GRID.format(data=data, seeds=seeds))
        ended = CliRunner().invoke(app, ["sweep", "grid.toml", "--out", "runs"])
        assert ended.exit_code == 0, ended.output
    page = Path("runs/report.html").read_text(encoding="utf-8")
    assert "lenet on digits: 2 runs" in page.replace(str(data), "digits")
    assert 'aria-label="run seed=2"' in page
    assert 'aria-label="run seed=1"' not in page
    assert LEFT_OUT.format(rows=Path("runs/rows.json"), name="seed=1") in page


def test_what_the_rows_do_not_name_is_shown_until_it_is_known_to_be_older(runs: Path) -> None:
    assert shown(runs) == ["naive", "pwoa", "scratch"]
    rows = name_runs(runs, "pwoa")
    assert shown(runs) == ["pwoa"]
    later = rows.stat().st_mtime_ns + 1_000_000_000
    os.utime(runs / "naive" / "result.json", ns=(later, later))  # of a sweep that was stopped before it wrote rows
    assert shown(runs) == ["naive", "pwoa"]
    (runs / "scratch" / "result.json").unlink()  # it is under way
    assert shown(runs) == ["naive", "pwoa", "scratch"]


@pytest.mark.parametrize("content", [None, "", "[]", "{}", "[1]", "[{"])
def test_without_rows_all_are_shown(content: str | None, runs: Path) -> None:
    if content is not None:
        (runs / "rows.json").write_text(content)
    assert shown(runs) == ["naive", "pwoa", "scratch"]


def test_rows_behind_a_link_are_not_read(runs: Path, tmp_path: Path) -> None:
    (runs / "rows.json").symlink_to(name_runs(tmp_path, "pwoa"))
    assert shown(runs) == ["naive", "pwoa", "scratch"]


def test_a_damaged_run_and_an_evaluation_beside_it_stay(runs: Path, made: Path) -> None:
    (runs / "naive" / "result.json").write_text("{")
    shutil.copytree(made / "evaluation", runs / "evaluation")
    name_runs(runs, "pwoa")
    assert shown(runs) == ["evaluation", "naive", "pwoa"]


def test_a_run_of_an_older_grid_that_is_asked_for_is_shown(runs: Path, tmp_path: Path) -> None:
    name_runs(runs, "naive", "pwoa")
    page = pwoa.report(runs, out=tmp_path / "page.html").read_text(encoding="utf-8")
    assert LEFT_OUT.format(rows=runs / "rows.json", name="scratch") in page
    page = pwoa.report(runs, runs / "scratch", out=tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'aria-label="run scratch"' in page
    assert "left out" not in page


def test_the_served_page_of_a_sweep_leaves_out_what_its_rows_lack(runs: Path) -> None:
    name_runs(runs, "naive", "pwoa")
    page = (Site(runs).page("") or b"").decode()
    assert 'aria-label="run pwoa"' in page
    assert 'aria-label="run scratch"' not in page
    assert LEFT_OUT.format(rows=runs / "rows.json", name="scratch") in page
    assert "This page renews itself." not in page
    (runs / "scratch" / "result.json").unlink()
    assert 'aria-label="run scratch"' in (Site(runs).page("") or b"").decode()
