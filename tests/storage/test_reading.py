"""Reading what may come from a stranger: plain files of bounded size, parsed with bounded depth."""

import os
from pathlib import Path

import pytest

from pwoa.errors import InputError
from pwoa.storage.reading import open_file, parse_json, parse_toml, read_bytes, read_json, read_text


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text('{"rate": 4, "name": "∞"}', encoding="utf-8")
    assert read_json(file) == {"rate": 4, "name": "∞"}
    assert read_bytes(file, file.stat().st_size) == file.read_bytes()
    assert parse_toml("rate = 4", "recipe.toml") == {"rate": 4}


def test_pipes_and_devices_are_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path(os.devnull), tmp_path):
        with pytest.raises(InputError, match=r"cannot read .*: it is not a plain file|directory"):
            open_file(path)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_bytes(file, 5) == b"12345"
    with pytest.raises(InputError, match="larger than 4 bytes"):
        read_bytes(file, 4)


@pytest.mark.parametrize("path", ["missing", "a\0b"])
def test_what_is_not_there_is_one_line(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match="cannot read") as caught:
        read_text(tmp_path / path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1" * 5_000, '{"a": '])
def test_damaged_json_is_one_line_that_names_the_file(text: str) -> None:
    with pytest.raises(InputError, match=r"^rows\.json is damaged \(.+\)$"):
        parse_json(text, "rows.json")


@pytest.mark.parametrize("text", ["a", "a = " + "[" * 100_000, "a = " + "1" * 5_000, "a = 1\na = 2"])
def test_damaged_toml_is_one_line_that_names_the_file(text: str) -> None:
    with pytest.raises(InputError, match=r"^grid\.toml is not valid TOML \(.+\)$"):
        parse_toml(text, "grid.toml")


def test_text_in_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not text in UTF-8"):
        read_text(file)
