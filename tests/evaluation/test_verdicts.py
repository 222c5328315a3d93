from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from pwoa.errors import InputError
from pwoa.evaluation.scores import load_verdicts, save_verdicts

TEXT = st.text('pgd20@/-:∞ß "\\\n{', max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
REUSE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
RIGHT = {"natural": torch.tensor([True] * 9 + [False]), "pgd20": torch.tensor([True, False] * 5)}
ABOUT = {"data": "abc", "threat": {"norm": "linf", "radius": 0.3, "step": 0.01}, "model": "Netz für Größe"}


@st.composite
def verdicts(draw: st.DrawFn) -> dict[str, Tensor]:
    names, n = draw(st.lists(TEXT, min_size=1, max_size=5, unique=True)), draw(st.integers(0, 40))
    lists = st.lists(st.booleans(), min_size=n, max_size=n)
    return {name: torch.tensor(draw(lists), dtype=torch.bool) for name in names}


@REUSE
@given(right=verdicts(), about=st.dictionaries(TEXT, JSON, max_size=4))
def test_what_is_saved_comes_back_in_its_order(tmp_path: Path, right: dict[str, Tensor], about: dict[str, Any]) -> None:
    save_verdicts(tmp_path / "v", right, about)
    found, described = load_verdicts(tmp_path / "v")
    assert list(found) == list(right)
    assert all(torch.equal(found[name], right[name]) for name in right)
    assert described == about


def test_ten_thousand_images_take_a_bit_each(tmp_path: Path) -> None:
    right = {f"pgd{steps}": torch.rand(10_000) < 0.5 for steps in range(8)}
    save_verdicts(tmp_path / "v", right, ABOUT)
    assert 8 * 1250 < (tmp_path / "v").stat().st_size < 8 * 1250 + 2000


def test_nothing_but_the_file_is_left_and_an_old_one_is_replaced(tmp_path: Path) -> None:
    save_verdicts(tmp_path / "v", RIGHT, {"model": "old"})
    save_verdicts(tmp_path / "v", RIGHT, ABOUT)
    assert [path.name for path in tmp_path.iterdir()] == ["v"]
    assert load_verdicts(tmp_path / "v")[1] == ABOUT


def test_when_writing_fails_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_verdicts(tmp_path / "v", RIGHT, ABOUT)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        save_verdicts(tmp_path / "v", RIGHT, {"model": "new"})
    assert [path.name for path in tmp_path.iterdir()] == ["v"]
    assert load_verdicts(tmp_path / "v")[1] == ABOUT


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write to .*missing.*No such file"):
        save_verdicts(tmp_path / "missing" / "v", RIGHT, ABOUT)


def test_an_attack_may_have_seen_fewer_images(tmp_path: Path) -> None:
    right = {"natural": torch.tensor([True, True, False, True, True]), "strong": torch.tensor([True, False, False])}
    save_verdicts(tmp_path / "v", right, ABOUT)
    again, about = load_verdicts(tmp_path / "v")
    assert about == ABOUT
    assert {name: verdicts.tolist() for name, verdicts in again.items()} == {
        name: verdicts.tolist() for name, verdicts in right.items()
    }


@pytest.mark.parametrize(
    ("right", "found"),
    [
        ({}, "found none"),
        ({"natural": torch.ones(3, dtype=torch.bool), "cw": torch.ones(4)}, "natural: 3 .* cw: 4 torch.float32"),
        ({"natural": torch.ones(3)}, "natural: 3 torch.float32"),
    ],
)
def test_verdicts_that_do_not_belong_together_are_refused(tmp_path: Path, right: dict[str, Tensor], found: str) -> None:
    with pytest.raises(InputError, match=f"bool tensors, one for each attack; .*{found}"):
        save_verdicts(tmp_path / "v", right, ABOUT)
    assert not list(tmp_path.iterdir())


@REUSE
@given(data=st.data())
def test_any_changed_byte_is_noticed_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "v"
    save_verdicts(path, RIGHT, ABOUT)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with suppress(InputError):
        right, about = load_verdicts(path)
        assert about == ABOUT
        assert all(torch.equal(right[name], RIGHT[name]) for name in RIGHT)


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_file_cut_short_is_refused_in_one_line(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "v"
    save_verdicts(path, RIGHT, ABOUT)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="is damaged or no file of verdicts") as caught:
        load_verdicts(path)
    assert "\n" not in str(caught.value)


def test_a_flipped_verdict_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "v"
    save_verdicts(path, RIGHT, ABOUT)
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(InputError, match="its checksum is wrong"):
        load_verdicts(path)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"about": "{}"},
        {"about": "{}", "verdicts": "nonsense"},
        {"about": "{}", "verdicts": "[1]"},
        {"about": "{}", "verdicts": json.dumps({"n": 3, "attacks": ["other"], "sha256": ""})},
    ],
)
def test_a_model_or_another_safetensors_file_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "v", metadata)
    with pytest.raises(InputError, match="is damaged or no file of verdicts") as caught:
        load_verdicts(tmp_path / "v")
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="v does not exist"):
        load_verdicts(tmp_path / "v")
    with pytest.raises(InputError, match="is not a file"):
        load_verdicts(tmp_path)
