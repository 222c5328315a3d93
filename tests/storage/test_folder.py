"""Rows in a file: whole or not at all, and everywhere of the same form. A folder that holds one thing of its kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rows import load_rows
from pwoa.errors import InputError
from pwoa.storage.folder import Folder, differences_text, rows_text, save_rows

ROWS: list[dict[str, Any]] = [{"method": "pwoa", "natural": 99.5}, {"method": "hydra", "natural": None}]


def test_rows_are_a_line_each_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.json"
    save_rows(path, iter(ROWS))
    assert json.loads(path.read_text()) == load_rows(path) == ROWS
    assert load_rows(tmp_path / "none.json") == []
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
    root = Path(__file__).parents[2]
    files = [*(root / "src").rglob("*.py"), *(root / "benchmarks").glob("*.py"), *(root / "scripts").glob("*.py")]
    assert [file.name for file in files if r'",\n".join' in file.read_text(encoding="utf-8")] == ["folder.py"]


@pytest.mark.parametrize("content", [b"", b"{}", b"3", b"[1]", b"[{}]", b"[{", b"\xff"])
def test_a_file_without_rows_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows.json").write_bytes(content)
    with pytest.raises(InputError, match=r"rows\.json holds no rows; repair it or choose another file"):
        load_rows(tmp_path / "rows.json")
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory"):
        load_rows(tmp_path)


class Jar(Folder):
    kind = "jam"
    marks = ("fruit.json", "label.txt")


def test_a_folder_is_what_it_is_when_its_last_file_is_there(tmp_path: Path) -> None:
    jar = Jar(tmp_path / "jar")
    jar.check({})
    assert not jar.path.exists()
    jar.make()
    jar.write_json("fruit.json", {"plum": 1})
    assert not jar.started
    jar.check({})  # a process that was killed here can begin again
    jar.write_text("label.txt", "plum")
    assert jar.started
    assert jar.read_json("fruit.json") == {"plum": 1}
    with pytest.raises(InputError) as caught:
        jar.check({"sugar": (1, 2.5), "fruit": ("plum", None)})
    assert str(caught.value) == (
        f'{jar.path} holds another jam (sugar: there 1, now 2.5; fruit: there "plum", now null); '
        "choose another folder, or give the same again to resume it"
    )
    (tmp_path / "jar" / "fruit.json").unlink()
    with pytest.raises(InputError, match="exists and holds no jam; choose another folder"):
        jar.check({})


def test_of_many_differences_the_first_are_told() -> None:
    assert differences_text({str(i): (i, i + 1) for i in range(4)}, most=2) == (
        "0: there 0, now 1; 1: there 1, now 2; and 2 more"
    )
