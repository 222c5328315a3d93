"""Reading what may come from a stranger: plain files of bounded size, parsed with bounded depth."""

import json
import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from pwoa.errors import InputError
from pwoa.storage.reading import (
    LARGEST_DEPTH,
    TOML_LIMIT,
    open_file,
    parse_json,
    parse_toml,
    read_bytes,
    read_json,
    read_safetensors,
    read_text,
    read_toml,
)


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


def test_depth_has_a_limit() -> None:
    for opening, closing, parse in (("[", "]", parse_json), ("a = " + "[", "]", parse_toml)):
        depth = LARGEST_DEPTH - (parse is parse_toml)
        before = opening.removesuffix("[")
        parse(before + "[" * (depth - 1) + closing * (depth - 1), "file")
        with pytest.raises(InputError, match="nested too deeply"):
            parse(before + "[" * (depth + 1) + closing * (depth + 1), "file")


@pytest.mark.parametrize("key", ["a." * 200_000 + "a = 1", "[" + "a . " * 100_000 + "a]", '"a".' * 100_000 + "b = 1"])
def test_a_key_of_very_many_parts_is_refused_at_once(key: str) -> None:
    start = time.perf_counter()
    with pytest.raises(InputError, match="nested too deeply"):
        parse_toml(f"b = 1\n{key}\n", "grid.toml")
    assert time.perf_counter() - start < 2


def test_a_large_toml_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text("a = 1\n" + "#" * TOML_LIMIT)
    with pytest.raises(InputError, match="larger than 1,048,576 bytes"):
        read_toml(file)
    file.write_text("radii = [" + "0.1, " * 1000 + "]\n# " + "a sentence. " * 50)
    assert len(read_toml(file)["radii"]) == 1000


def test_a_safetensors_file_is_read_with_what_it_says(tmp_path: Path) -> None:
    file, tensors = tmp_path / "a.safetensors", {"a": torch.eye(3), "b": torch.zeros(0, 4), "c": torch.tensor(1)}
    file.write_bytes(save(tensors, {"format": "pt"}))
    content, metadata = read_safetensors(file)
    assert metadata == {"format": "pt"}
    assert torch.equal(load(content)["a"], tensors["a"])


def header(**entry: object) -> bytes:
    text = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **entry}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(7),
        b"\xff" * 16,
        header(dtype="F4"),
        header(dtype="F6_E2M3"),
        header(dtype=[]),
        header(shape=[0, 2**62, 2**62], data_offsets=[0, 0]),
        header(shape=[2]),
        header(shape=[True]),
        header(shape=[1] * 65),
        header(shape=[-1]),
        header(data_offsets=[0, 2**63]),
        header(data_offsets=[4, 0]),
        header(data_offsets=[0]),
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        (4).to_bytes(8, "little") + b"[]  ",
        (22).to_bytes(8, "little") + b'{"__metadata__": ["a"]}',
    ],
)
def test_a_damaged_safetensors_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"^[^\n]*a\.safetensors is not a safetensors file: [^\n]+$"):
        read_safetensors(file)


def test_a_hole_in_the_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    with file.open("wb") as target:
        target.truncate(1 << 40)
    with pytest.raises(InputError, match="is not a safetensors file"):
        read_safetensors(file)
