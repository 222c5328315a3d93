"""Rows in a file: whole or not at all, and everywhere of the same form. A folder that holds one thing of its kind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rows import load_rows
from pwoa.errors import InputError
from pwoa.storage.folder import Folder, appending, differences_text, held, replacing, rows_text, save_rows

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


# What a stranger put into a folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "precious.txt"
    file.write_text("mine")
    return file


def test_no_symbolic_link_is_followed_when_writing(tmp_path: Path, precious: Path) -> None:
    folder = tmp_path / "jar"
    folder.mkdir()
    for name in (".lock", "label.txt", ".label.txt.part", "a.log"):
        (folder / name).symlink_to(precious)
    with pytest.raises(InputError, match="it has a symbolic link where a file is written"), held(folder):
        pass
    with pytest.raises(InputError, match="it has a symbolic link where a file is written"):
        appending(folder / "a.log")
    with replacing(folder / "label.txt") as file:
        file.write(b"plum")
    assert precious.read_text() == "mine"
    assert (folder / "label.txt").read_text() == "plum"
    assert not (folder / "label.txt").is_symlink()


def test_a_folder_with_a_link_in_it_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    jar, elsewhere = Jar(tmp_path / "jar"), tmp_path / "elsewhere"
    jar.make()
    elsewhere.mkdir()
    jar.write_json("fruit.json", {"plum": 1})
    jar.write_text("label.txt", "plum")
    jar.check({})
    (jar.path / "checkpoint").symlink_to(elsewhere)
    with pytest.raises(InputError, match=r"jar has a symbolic link in it \(checkpoint\), through which nothing is"):
        jar.check({})
    (tmp_path / "link").symlink_to(jar.path)  # a folder that the user reaches by a link is the user's choice
    (jar.path / "checkpoint").unlink()
    Jar(tmp_path / "link").check({})


def test_a_name_to_write_to_cannot_be_guessed(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with replacing(tmp_path / "label.txt"):
            names |= set(os.listdir(tmp_path)) - {"label.txt"}
    assert len(names) == 3
    assert os.listdir(tmp_path) == ["label.txt"]


def test_what_killed_processes_left_goes_and_nothing_else(tmp_path: Path) -> None:
    jar = Jar(tmp_path / "jar")
    jar.make()
    for name in (".0123456789abcdef.part", ".label.txt.part", ".fruit.json.part", "thesis.part", ".thesis.part"):
        (jar.path / name).write_text("half")
    with jar.held():
        pass
    assert sorted(os.listdir(jar.path)) == [".label.txt.part", ".thesis.part", "thesis.part"]


@pytest.mark.parametrize("place", [3, 12, 20])
def test_a_changed_byte_in_a_file_of_ours_is_found(tmp_path: Path, place: int) -> None:
    jar = Jar(tmp_path)
    jar.write_json("fruit.json", {"plum": 1, "pear": 2.5})
    assert jar.read_json("fruit.json") == {"plum": 1, "pear": 2.5}
    content = bytearray((tmp_path / "fruit.json").read_bytes())
    content[place] ^= 1
    (tmp_path / "fruit.json").write_bytes(content)
    with pytest.raises(InputError, match=r"fruit.json is damaged \(.*\); choose another folder for the jam"):
        jar.read_json("fruit.json")
    (tmp_path / "fruit.json").write_text('{"plum": 1}')  # as version 0.3 wrote it
    assert jar.read_json("fruit.json") == {"plum": 1}


def test_a_name_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a name in it is not valid Unicode"):
        Jar(tmp_path).write_text("label.txt", os.fsdecode(b"caf\xe9"))
