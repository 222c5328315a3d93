"""Folders that are broken, half-finished or something else: a page that says so, never an exception."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pwoa
from pwoa.data.images import Data
from pwoa.models.architectures.registry import build
from pwoa.progress import Progress
from pwoa.recipe import flat, load_recipe
from pwoa.recipe.sections import Recipe
from pwoa.report import sections
from pwoa.report.gather import gather
from pwoa.report.inspection import inspect
from pwoa.report.page import render
from pwoa.report.story import Story
from pwoa.storage.folder import sealed
from tests.conftest import TinyNet
from tests.report.conftest import QUICK

FILES = ["result.json", "metrics.jsonl", "evaluation/model/result.json", "evaluation/teacher/result.json"]
ODD_VALUES: tuple[Any, ...] = (None, "x" * 3000, -1, 0, 1e308, float("inf"), float("nan"), 10**400, [], {}, [[]], True)


def page_of(*folders: Path) -> str:
    return render(gather(folders), "title")


def test_every_file_may_be_missing_or_damaged(runs: Path, tmp_path: Path) -> None:
    randomness = random.Random(0)
    names = sorted(path.relative_to(runs / "pwoa") for path in (runs / "pwoa").rglob("*") if path.is_file())
    assert len(names) == 14
    for name in names:
        whole = (runs / "pwoa" / name).read_bytes()
        for content in (
            None,
            b"",
            whole[: len(whole) // 2],
            b"\0" + whole,
            randomness.randbytes(500),
            b"[1]",
            b"{}\n{}",
        ):
            broken = tmp_path / "broken"
            shutil.copytree(runs / "pwoa", broken)
            (broken / name).unlink() if content is None else (broken / name).write_bytes(content)
            page = page_of(broken)
            optional = name.name in ("teacher.json", "model.json", "evaluation.json", "model.safetensors")
            if not optional and not (content is None and name.name == "examples.safetensors"):
                assert "What is missing" in page or "not finished" in page, (name, content)
            shutil.rmtree(broken)


@pytest.mark.parametrize(
    ("name", "words"), [("metrics.jsonl", "is not "), ("evaluation/model/examples.safetensors", "is damaged")]
)
def test_what_was_changed_after_the_run_is_told(runs: Path, tmp_path: Path, name: str, words: str) -> None:
    shutil.copytree(runs / "pwoa", tmp_path / "changed")
    file = tmp_path / "changed" / name
    assert "What is missing" not in page_of(tmp_path / "changed")
    whole = bytearray(file.read_bytes())
    place = whole.rindex(b'"seconds": ') + 11 if name == "metrics.jsonl" else len(whole) - 1
    whole[place] = ord("1") if whole[place] == ord("2") else ord("2")
    file.write_bytes(whole)
    assert f"{name} {words}" in page_of(tmp_path / "changed")


@pytest.mark.parametrize("name", ["recipe.toml", "teacher.json"])
def test_a_finished_run_that_lost_a_file_is_not_inspected_as_a_model_without_results(
    runs: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(runs / "pwoa", tmp_path / "lost")
    assert "run" in dict(inspect(tmp_path / "lost").rows)
    (tmp_path / "lost" / name).unlink()
    with pytest.raises(pwoa.InputError, match=rf"lost is a finished run without its {name}; put it back"):
        inspect(tmp_path / "lost")


def test_a_folder_in_the_place_of_a_file_is_told(runs: Path) -> None:
    for name in (
        "recipe.toml",
        "metrics.jsonl",
        "evaluation/model/result.json",
        "evaluation/teacher/verdicts.safetensors",
    ):
        (runs / "pwoa" / name).unlink()
        (runs / "pwoa" / name).mkdir()
    assert "What is missing" in page_of(runs / "pwoa")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the way to everything in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a JSON value with something else in one place."""
    if not path:
        return new
    value = copy.copy(value)
    value[path[0]] = changed(value[path[0]], path[1:], new)
    return value


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_whole_files_say_a_page_is_made(
    made: Path, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    run = made / "runs" / "pwoa"
    name = data.draw(st.sampled_from(FILES))
    text = (run / name).read_text()
    value = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)
    path = data.draw(st.sampled_from(list(places(value))[1:]))
    value = changed(value, path, data.draw(st.sampled_from(ODD_VALUES)))
    broken = tmp_path_factory.mktemp("broken")
    shutil.copytree(run, broken, dirs_exist_ok=True)
    if isinstance(value, dict):
        value.pop("checksum", None)
        value = sealed(value)
    lines = [json.dumps(line) for line in value] if isinstance(value, list) else [json.dumps(value)]
    (broken / name).write_text("\n".join(lines))
    for folders in ([broken], [broken, made / "runs" / "naive"]):
        assert page_of(*folders).endswith("</html>\n")


@pytest.mark.parametrize("step", [1, 2, 8, 17, 21, 24])
def test_a_run_under_way_says_how_far_it_is(
    step: int, tmp_path: Path, tiny_data: Data, tiny_teacher: TinyNet, killed: Callable[[int], Progress]
) -> None:
    recipe = Recipe().with_settings(QUICK | {"training.checkpoint_seconds": 0.0})
    with pytest.raises(KeyboardInterrupt):
        pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run", force=True, progress=killed(step))
    if step == 1:  # while the teacher was checked: nothing was written
        assert not (tmp_path / "run").exists()
        return
    page = page_of(tmp_path / "run")
    assert "This run is not finished." in page
    assert "What is missing" not in page


def test_a_half_written_line_ends_the_curves_before_it(runs: Path) -> None:
    metrics = runs / "pwoa" / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join([*lines[:2], lines[2][:40]]))
    (story,) = gather([runs / "pwoa"])
    assert len(story.epochs) == 2
    assert any("line 3 of metrics.jsonl" in line for line in story.missing)


def test_an_evaluation_of_another_model_is_not_shown_as_its_own(runs: Path) -> None:
    shutil.rmtree(runs / "pwoa" / "evaluation" / "model")
    shutil.copytree(runs / "naive" / "evaluation" / "model", runs / "pwoa" / "evaluation" / "model")
    (story,) = gather([runs / "pwoa"])
    assert any("of another model" in line for line in story.missing)
    assert story.model is not None
    assert not story.model.examples  # only what the run's own result.json says


def test_foreign_folders_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("hello")
    pwoa.save_pretrained(build("lenet", 10, 1), tmp_path / "hub")
    for name in ("empty", "other"):
        assert "there is no run, evaluation or sweep in it" in page_of(tmp_path / name)
    assert "not there" in page_of(tmp_path / "hub")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "there is no run" in page_of(tmp_path / "empty", tmp_path / "other")


def test_a_folder_with_no_permission_or_a_pipe_does_not_hang(runs: Path) -> None:
    import os

    (runs / "pwoa" / "metrics.jsonl").unlink()
    os.mkfifo(runs / "pwoa" / "metrics.jsonl")
    assert "not a plain file" in page_of(runs / "pwoa")


@pytest.mark.parametrize(("rate", "epochs"), [(4.0, 6), (16.0, 16)])
def test_the_epochs_of_a_run_that_goes_on_are_those_for_its_rate(tmp_path: Path, rate: float, epochs: int) -> None:
    """Also where its recipe has those of a higher rate, as recipes of runs once had."""
    asked = flat(load_recipe("cifar10-robust").with_settings({"sparsity.rate": rate}))
    story = Story(tmp_path, "run", "training", True, asked)
    assert f"Done: 0 of {epochs} epochs." in str(sections._state(story))
