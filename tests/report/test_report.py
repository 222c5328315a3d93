"""Tables and plots show what was measured."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pwoa.report.measured import mnist_table
from pwoa.report.plots import accuracy_bars
from pwoa.report.table import accuracy_table, attack_name

ROOT = Path(__file__).resolve().parents[2]
ROWS = {"teacher": {"natural": 99.0, "pgd20": 97.09}, "naive": {"natural": 99.25, "pgd20": 4.42}}


def test_the_readme_has_the_table_that_the_results_give() -> None:
    assert mnist_table(ROOT / "results" / "mnist-rate4.json") in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_results_hold_what_the_project_claims_for_mnist() -> None:
    rows = json.loads((ROOT / "results" / "mnist-rate4.json").read_text(encoding="utf-8"))
    for seed in {row["seed"] for row in rows}:
        teacher, naive, ours = (
            next(row for row in rows if row["seed"] == seed and row["model"] == model)
            for model in ("teacher", "ce", "pwoa")
        )
        assert ours["pgd20"] >= 0.95 * teacher["pgd20"]
        assert naive["pgd20"] <= 0.05 * teacher["pgd20"]
        assert ours["rate"] >= 4
        assert naive["rate"] >= 4


@pytest.mark.parametrize(
    ("attack", "name"),
    [
        ("natural", "natural"),
        ("fgsm", "FGSM"),
        ("pgd20", "PGD-20"),
        ("cw", "CW"),
        ("cw50", "CW-50"),
        ("apgd-t", "APGD-T"),
    ],
)
def test_attacks_are_written_as_in_papers(attack: str, name: str) -> None:
    assert attack_name(attack) == name


def test_a_table_has_a_row_a_model_and_a_column_an_attack() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(accuracy_table(ROWS, "title"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line for line in text.splitlines() if "teacher" in line or "naive" in line]
    assert len(lines) == 2
    assert "97.09" in lines[0]
    assert "4.42" in lines[1]
    assert "PGD-20" in text


def test_a_plot_is_written(tmp_path: Path) -> None:
    accuracy_bars(ROWS, "title", tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
