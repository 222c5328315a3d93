"""One of a thing is not many, wherever a number is printed; and no message steers the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

import pwoa
from pwoa.cli.options import app
from pwoa.data.images import Data
from pwoa.errors import InputError, counted, explain, one_line, printable
from pwoa.progress import Progress
from pwoa.recipe.sections import Recipe


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 images"), (1, "1 image"), (2, "2 images"), (60_000, "60,000 images")]
)
def test_a_number_of_things(number: int, expected: str) -> None:
    assert counted(number, "image") == expected


def test_a_word_that_takes_more_than_an_s() -> None:
    assert [counted(number, "class", "classes") for number in (1, 2)] == ["1 class", "2 classes"]


class Listening(Progress):
    def __init__(self) -> None:
        self.said = ""

    def say(self, message: str) -> None:
        self.said += message + "\n"


def test_a_run_of_one_epoch_and_one_image(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data) -> None:
    one = {
        "training.batch": 16,
        "pretrain.epochs": 1,
        "evaluation.images": 1,
        "evaluation.attacks": "natural",
        "evaluation.checks": False,
    }
    recipe = Recipe().with_settings({**one, "data.validation": 1, "search.epochs": 1, "finetune.epochs": 1})
    told = Listening()
    pwoa.pretrain(tiny_teacher, tiny_data, method="pgd-at", recipe=recipe, folder=tmp_path / "a", progress=told)
    assert " on custom, 1 epoch on 95 images (1 held out), " in told.said
    pwoa.prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "b", force=True, progress=told)
    assert "teacher on 1 validation image: " in told.said
    assert "In percent, on 1 test image; " in CliRunner().invoke(app, ["card", str(tmp_path / "b")]).output


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain l∞ ± 2.5 % × 8/255", "plain l∞ ± 2.5 % × 8/255"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),  # which turn the direction of writing
        ("a\x7f\x9b31m", r"a\x7f\x9b31m"),
        ("caf\udce9", r"caf\udce9"),
    ],
)
def test_what_could_steer_a_terminal_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == one_line(text) == shown
    assert explain(InputError(text)) == shown


def test_a_message_nobody_would_read_to_its_end_is_cut_off() -> None:
    assert len(one_line("x" * 10**6)) < 3000


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "a\nb"), r"cannot use a\nb: No such file or directory"),
        (OSError(28, "No space left on device"), "cannot read or write: No space left on device"),
        (MemoryError(), "out of memory; take a smaller batch: --set training.batch=N, in an evaluation --batch N"),
        (RuntimeError("Could not determine home directory."), "there is no home folder; set HOME, "),
        (KeyError("a bug"), None),
        (RuntimeError("a bug"), None),
    ],
)
def test_what_the_machine_or_bad_input_causes_is_one_line_and_a_bug_is_none(error: Exception, line: str | None) -> None:
    told = explain(error)
    assert told is None if line is None else (told or "").startswith(line)
