"""Rows in a file: whole or not at all, and everywhere of the same form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pwoa.errors import InputError
from pwoa.storage import rows_text, save_rows

ROWS: list[dict[str, Any]] = [{"method": "pwoa", "natural": 99.5}, {"method": "hydra", "natural": None}]


def test_rows_are_a_line_each_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.json"
    save_rows(path, iter(ROWS))
    assert json.loads(path.read_text()) == ROWS
    assert path.read_text() == rows_text(ROWS)
    assert path.read_text().splitlines()[1] == '{"method": "pwoa", "natural": 99.5},'
    assert [file.name for file in path.parent.iterdir()] == ["rows.json"]


def test_rows_that_cannot_be_written_leave_the_old_ones(tmp_path: Path) -> None:
    save_rows(tmp_path / "rows.json", ROWS)
    with pytest.raises(TypeError):
        save_rows(tmp_path / "rows.json", [{"method": object()}])
    assert json.loads((tmp_path / "rows.json").read_text()) == ROWS
    with pytest.raises(InputError, match="cannot write to"):
        save_rows(tmp_path / "rows.json" / "more.json", ROWS)


def test_no_other_code_writes_rows_in_its_own_way() -> None:
    root = Path(__file__).parents[1]
    files = [*(root / "src").rglob("*.py"), *(root / "benchmarks").glob("*.py"), *(root / "scripts").glob("*.py")]
    assert [file.name for file in files if r'",\n".join' in file.read_text(encoding="utf-8")] == ["storage.py"]
