"""The short form of the torture of readers: some hundreds of damaged files each, and files that hypothesis makes up."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pwoa.data.cifar import read_cifar10_python
from pwoa.data.formats import Blob
from pwoa.errors import InputError
from pwoa.models.checkpoints.files import open_checkpoint
from pwoa.recipe import load_recipe
from pwoa.storage.reading import parse_json, parse_toml

ROOT = Path(__file__).parents[2]
PARTS = (
    *("torch", "torch, the older form", "safetensors", "packed", "ONNX", "a model's description", "a model's card"),
    *("CIFAR, pickled", "CIFAR, binary", "tar", "tar.gz", "idx", "idx, gz", "idx, xz", "PNG", "JPEG"),
    *("verdicts", "recipe", "grid", "radii", "a run's result", "a run's model", "a run's recipe", "a run's metrics"),
    *("an evaluation's result", "an evaluation's question", "an evaluation's progress", "a run's state"),
)
INPUTS = 5_300

made_up = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20)
keys = st.text(max_size=8) | st.integers() | st.sampled_from(["state_dict", "model", "data", "labels", "k"])
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=20
)


@cache
def outcome() -> tuple[dict[str, Any], str]:
    """Return the row of each part, all tried in one process of their own, and what it said was wrong."""
    command = [sys.executable, "-m", "tests.torture.readers", "--dry", "--inputs", str(INPUTS)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["part"].removeprefix("reader: "): row for row in rows}, done.stderr


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_file_loads_or_is_refused_in_one_line(part: str) -> None:
    rows, problems = outcome()
    assert sorted(rows) == sorted(PARTS), problems
    assert rows[part]["tried"] >= 100
    assert rows[part]["violations"] == 0, problems


@made_up
@given(content=values, zipped=st.booleans())
def test_whatever_is_saved_with_torch_is_a_checkpoint_or_refused(tmp_path: Path, content: Any, zipped: bool) -> None:
    path = tmp_path / "a.pt"
    torch.save({"state_dict": {"a": torch.ones(2)}, "beside": content}, path, _use_new_zipfile_serialization=zipped)
    with suppress(InputError):
        open_checkpoint(path)
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError):  # it has no tensors
        open_checkpoint(path)


@made_up
@given(content=values, protocol=st.integers(0, 5))
def test_whatever_is_pickled_is_no_batch_of_cifar(content: Any, protocol: int) -> None:
    buffer = io.BytesIO(pickle.dumps({"data": content, "labels": content}, protocol))
    with pytest.raises(InputError):
        read_cifar10_python([Blob("batch", buffer.getvalue())], (3, 2, 2), 4)


@made_up
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_whatever_bytes_are_parsed_or_refused(content: bytes) -> None:
    with suppress(InputError):
        parse_json(content, "file")
    with suppress(InputError):
        parse_toml(content.decode("latin1"), "file")


@made_up
@given(section=st.sampled_from(["data", "teacher", "threat", "objective", "training", "x"]), content=values)
def test_whatever_a_recipe_says_is_a_setting_or_refused(tmp_path: Path, section: str, content: Any) -> None:
    path = tmp_path / "recipe.toml"
    with suppress(TypeError):  # bytes
        path.write_text(f"[{section}]\nname = {json.dumps(content)}\nradius = {json.dumps(content)}\n")
        with suppress(InputError):
            load_recipe(path)
