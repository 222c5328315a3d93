"""The comparison of the methods, on a few images."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from pwoa.attacks.apgd import apgd_t_rounds
from pwoa.attacks.fab import fab_t_rounds
from pwoa.attacks.registry import ROUNDS
from pwoa.attacks.square import square_rounds
from pwoa.errors import InputError
from pwoa.methods import METHODS
from pwoa.models.architectures.registry import build
from pwoa.progress import Progress


@pytest.fixture(scope="module")
def competition(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("competition")


@pytest.fixture(scope="module")
def words(few: list[str]) -> list[str]:
    """Options for a comparison on a few images, by the embedded LeNet."""
    return ["--recipe", "mnist", *few, "--set", "evaluation.attacks=natural,pgd20"]


def test_the_settings_of_a_method_and_the_epochs_of_all(competition: ModuleType) -> None:
    given = ["--out", "x", "--checkpoint", "a/b.pt", "--rates", "8", "--mix", "0.5", "--epochs", "4", "10"]
    options = competition._options([*given, "--methods", "pwoa", "hydra", "magnitude"])
    base = competition.pwoa.load_recipe("cifar10").with_settings(competition._named(options))
    found = list(competition.plan(options, base))
    assert [competition.identity(recipe, "f")["epochs"] for recipe in found] == ["4+10", "4+10", "14"]
    assert [recipe.search.learning_rate for recipe in found] == [0.01, 0.1, 0.01]
    assert {recipe.training.mix for recipe in found} == {0.5}
    assert {recipe.sparsity.rate for recipe in found} == {8.0}
    assert {competition.identity(recipe, "f")["fingerprint"] for recipe in found} == {"f"}
    options.faster = 3.0
    faster = list(competition.plan(options, base))
    assert [recipe.search.learning_rate for recipe in faster] == pytest.approx([0.03, 0.1, 0.03])
    assert [recipe.finetune.learning_rate for recipe in faster] == pytest.approx([0.015, 0.03, 0.015])
    assert not {*map(competition.digest, faster)} & {*map(competition.digest, found)}


@pytest.mark.parametrize(("epochs", "interval"), [(40, 2), (10, 1), (4, 1), (1, 1)])
def test_rho_takes_the_same_way_in_fewer_epochs(competition: ModuleType, epochs: int, interval: int) -> None:
    recipe = competition.pwoa.load_recipe("cifar10")
    search = recipe.with_settings(competition.same_way(recipe, epochs)).search
    updates = [epoch for epoch in range(1, epochs) if epoch % search.interval == 0]
    assert search.interval == interval
    if updates:
        assert search.rho * search.rho_growth ** len(updates) == pytest.approx(search.rho_limit)
    assert competition.same_way(recipe, recipe.search.epochs) == {}


def test_recipes_are_told_apart_and_not_by_their_place(competition: ModuleType) -> None:
    recipe = competition.pwoa.load_recipe("mnist")
    moved = recipe.with_settings({"training.device": "cpu", "data.folder": "/somewhere"})
    changed = recipe.with_settings({"search.learning_rate": 0.1})
    stronger = recipe.with_settings({"threat.radius": 0.1})
    assert competition.digest(recipe) == competition.digest(moved)
    assert len({competition.digest(each) for each in (recipe, changed, stronger)}) == 3
    how = ("threat", "evaluation")
    assert competition.digest(recipe, how) == competition.digest(changed, how) != competition.digest(stronger, how)


def test_a_row_has_the_allocation_where_the_method_knows_one(competition: ModuleType) -> None:
    result = {"pruned": {"natural": 90.0}, "images": 5, "training_seconds": 1.0, "device": "none"}
    recipe = competition.pwoa.load_recipe("mnist").with_settings({"sparsity.allocation": "lamp"})
    for method, allocation in (("pwoa", "lamp"), ("hydra", "lamp"), ("harp", None)):
        row = competition._row(recipe.with_settings({"method": method}), result)
        assert (row["method"], row["allocation"]) == (method, allocation)


def test_rows_are_saved_after_every_run_and_not_run_again(
    competition: ModuleType, words: list[str], tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROUNDS, "apgd-t", partial(apgd_t_rounds, steps=5))
    monkeypatch.setitem(ROUNDS, "fab-t", partial(fab_t_rounds, steps=3))
    monkeypatch.setitem(ROUNDS, "square", partial(square_rounds, queries=50))
    out = tmp_path / "rows" / "rows.json"
    given = [*words, "--out", str(out), "--runs", str(tmp_path / "runs"), "--epochs", "1", "1", "--rates", "4"]
    given += ["--autoattack", "5"]
    competition.main([*given, "--methods", "apd", "magnitude", "--mix", "0", "--minutes", "30"], Progress())
    rows = json.loads(out.read_text())
    assert [(row["method"], row["rate"], row["epochs"]) for row in rows] == [
        ("teacher", 1.0, "0"),
        ("apd", 4.0, "1+1"),
        ("magnitude", 4.0, "2"),
    ]
    assert {
        *("dataset", "architecture", "teacher", "fingerprint", "settings", "method", "rate", "mix", "seed"),
        *("natural", "pgd20", "cw", "autoattack", "n", "seconds", "device"),
    } <= set(rows[1])
    assert rows[0]["natural"] > 90
    assert rows[0]["allocation"] is None
    assert (rows[1]["teacher"], rows[1]["allocation"]) == ("embedded", "uniform")
    assert (rows[1]["n"], rows[1]["n_autoattack"], rows[1]["cw"]) == (20, 5, None)
    assert all(row["autoattack"] in (0, 20, 40, 60, 80, 100) for row in rows)

    competition.main([*given, "--methods", "apd", "magnitude", "--mix", "0", "1", "--minutes", "0"], told)
    assert json.loads(out.read_text()) == rows
    assert "stopped" in told.said[-1]

    competition.main([*given, "--methods", "apd", "--mix", "0", "--autoattack", "10"], Progress())
    more = json.loads(out.read_text())
    assert [(row["method"], row["n_autoattack"]) for row in more] == [("teacher", 10), ("magnitude", 5), ("apd", 10)]

    for fewer in ("5", "0"):
        competition.main([*given, "--methods", "apd", "magnitude", "--mix", "0", "--autoattack", fewer], told)
        assert json.loads(out.read_text()) == more
        assert "nothing is left to do" in told.said[-1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--set", "evaluation.attacks=natural,autoattack", "--autoattack", "5"], "AutoAttack is asked for twice"),
        (["--mix", "0", "1.5"], "training.mix = 1.5; allowed: from 0 to 1"),
        (["--rates", "4", "0.5"], "sparsity.rate = 0.5; allowed: at least 1"),
        (["--recipe", "nope"], "no recipe 'nope'"),
        (["--checkpoint", "nope.pt"], "nope.pt"),
        (["--recipe", "cifar10"], "this recipe names no teacher; give one with --checkpoint FILE"),
        (["--set", "training.mix=0.2"], "--set training.mix would not be heeded; --mix says it"),
        (["--epochs", "1", "1", "--set", "search.epochs=3"], "--set search.epochs would not be heeded; --epochs says"),
        (["--autoattack", "-5"], "--autoattack -5 is not a number of images"),
        (["--minutes", "nan"], "--minutes nan is not a time"),
        (["--out", str(Path(__file__).parents[2] / "results" / "speed.json")], "holds rows of something else"),
        (["--out", "/dev/null/rows.json"], "/dev/null"),
    ],
)
def test_a_mistake_is_one_line_before_the_first_run(
    competition: ModuleType,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: list[str],
    message: str,
) -> None:
    prune = Counted()
    monkeypatch.setattr(competition.pwoa, "prune", prune)
    with pytest.raises(SystemExit) as caught:
        competition.main([*words, "--out", str(tmp_path / "rows.json"), *wrong], Progress())
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert message in said
    assert prune.folders == []


@pytest.mark.parametrize("text", ["{", "{}", "[3]", "[{}]", "\xff"])
def test_damaged_rows_are_one_line_and_stay(
    competition: ModuleType, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    out = tmp_path / "rows.json"
    out.write_bytes(text.encode("latin-1"))
    with pytest.raises(SystemExit) as caught:
        competition.main([*words, "--out", str(out)], Progress())
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {out} holds no rows; mend it or choose another file\n"
    assert out.read_bytes() == text.encode("latin-1")


def test_it_is_told_when_nothing_is_left(
    competition: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    monkeypatch.setattr(competition.pwoa, "prune", Counted())
    given = [*words, "--out", str(tmp_path / "rows.json"), "--rates", "4", "4", "--mix", "0"]
    given += ["--methods", "pwoa", "apd"]
    competition.main(given, Progress())
    competition.main(given, told)
    assert told.said == [f"nothing is left to do; {tmp_path / 'rows.json'} has the rows of 2 runs"]


def test_what_is_known_of_a_teacher_is_any_attack(competition: ModuleType) -> None:
    recipe = competition.pwoa.load_recipe("mnist").with_settings({"evaluation.attacks": "standard"})
    row = {"natural": 99.0, "fgsm": 97.0, "pgd20": None, "autoattack": 90.0}
    assert competition._scores(row, recipe) == {"natural": 99.0, "fgsm": 97.0}


class Counted:
    """Stands for `pwoa.prune`: notes the folders and the known scores, and each teacher has others."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.known: list[Any] = []

    def __call__(self, teacher: nn.Module, *args: Any, folder: Path, teacher_scores: Any, **rest: Any) -> Any:
        self.folders.append(folder)
        self.known.append(teacher_scores)
        accuracy = {"natural": float(next(teacher.parameters()).sum().detach())}
        summary = {"pruned": accuracy, "teacher": accuracy, "images": 5, "training_seconds": 1.0, "device": "none"}
        return type("Result", (), {"summary": summary, "model": None})()


def test_another_teacher_or_setting_is_another_row(
    competition: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prune = Counted()
    monkeypatch.setattr(competition.pwoa, "prune", prune)
    out, file = tmp_path / "rows.json", tmp_path / "mine.pt"
    given = [*words, "--out", str(out), "--rates", "4", "--mix", "0", "--methods", "pwoa"]
    given += ["--arch", "lenet", "--checkpoint", str(file)]
    old = {"method": "teacher", "dataset": "mnist", "architecture": "lenet", "teacher": "mine.pt", "natural": 1.0}
    out.write_text(json.dumps([old]))
    for seed in (0, 1):  # the same name, other weights
        torch.manual_seed(seed)
        torch.save(build("lenet", 10, 1).state_dict(), file)
        competition.main([*given, "--seeds", "0", "1"], Progress())
        competition.main([*given, "--seeds", "0", "1"], Progress())
        competition.main([*given, "--set", "threat.radius=0.1"], Progress())
    moved = tmp_path / "elsewhere" / "renamed.pt"
    moved.parent.mkdir()
    shutil.copy(file, moved)
    competition.main([*given, "--checkpoint", str(moved)], Progress())
    rows = json.loads(out.read_text())
    assert [row["method"] for row in rows] == ["teacher", *["teacher", "pwoa", "pwoa", "teacher", "pwoa"] * 2]
    assert len(set(prune.folders)) == len(prune.folders) == 6
    first, second = rows[1], rows[6]
    assert first["natural"] != second["natural"]
    assert prune.known == [None, {"natural": first["natural"]}, None, None, {"natural": second["natural"]}, None]
    assert {row["teacher"] for row in rows} == {"mine.pt"}
    assert str(tmp_path) not in json.dumps([{**row, "dataset": ""} for row in rows])


def test_a_run_that_fails_is_told_and_the_others_are_made(
    competition: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    whole = Counted()

    def prune(*args: Any, recipe: Any, **rest: Any) -> Any:
        if recipe.method == "pwoa":
            raise InputError("the loss is not finite")
        return whole(*args, **rest)

    monkeypatch.setattr(competition.pwoa, "prune", prune)
    out = tmp_path / "rows.json"
    given = [*words, "--out", str(out), "--rates", "4", "--mix", "0", "--methods", "pwoa", "apd"]
    with pytest.raises(SystemExit, match="1 run failed"):
        competition.main(given, told)
    assert told.said[0] == "pwoa at rate 4, mix 0 failed: the loss is not finite"
    assert [row["method"] for row in json.loads(out.read_text())] == ["teacher", "apd"]


def test_no_run_begins_that_would_not_end_in_time(
    competition: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, started = [0.0], []

    def prune(*args: Any, recipe: Any, **rest: Any) -> Any:
        started.append(recipe.method)
        now[0] += 60 * 4
        accuracy = {"natural": 99.0}
        summary = {"pruned": accuracy, "teacher": accuracy, "images": 5, "training_seconds": 1.0, "device": "none"}
        return type("Result", (), {"summary": summary, "model": None})()

    monkeypatch.setattr(competition.pwoa, "prune", prune)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    options = [*words, "--out", str(tmp_path / "rows.json"), "--minutes", "10", "--rates", "4", "--mix", "0"]
    competition.main(options, Progress())
    assert started == list(METHODS)[:2]  # 4 + 4 minutes; the next would end after 12
    competition.main(options, Progress())
    assert started == list(METHODS)[:4]
