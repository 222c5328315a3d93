"""What a person sees of a long run: the time left of all of it, figures, and a sign of life in a log."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import pwoa
from pwoa.data.images import Data
from pwoa.progress import EVALUATION, TRAINING, ConsoleProgress, Part, Progress, TimeLeft, duration
from pwoa.recipe import Recipe
from pwoa.runs.prune import prune
from pwoa.threat import Threat

PLAN = [Part("search", 200, TRAINING), Part("finetune", 100, TRAINING), Part("evaluating", 5000, EVALUATION)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds, which only the test moves."""
    now = [0.0]
    monkeypatch.setattr("pwoa.progress.time.monotonic", lambda: now[0])
    return now


def test_a_time_is_written_as_one_says_it() -> None:
    seconds = (0.4, 99, 100, 3540, 3600, 4000, 90000)
    words = ["0 s", "99 s", "2 min", "59 min", "1 h 0 min", "1 h 7 min", "25 h 0 min"]
    assert [duration(each) for each in seconds] == words


def test_the_time_left_is_that_of_all_parts_once_the_pace_of_each_kind_is_known(clock: list[float]) -> None:
    left = TimeLeft()
    left.plan(PLAN)
    left.start("search", 200, 0)
    clock[0] = 60.0  # the first step compiles
    left.advance(1)
    assert left.text() == ""
    clock[0] = 61.0
    left.advance(2)  # two steps a second
    assert left.rate == "2 steps/s"
    assert left.text() == f"{duration((197 + 100) / 2)} left of training" == "2 min left of training"
    left.start("finetune", 100, 100)
    left.start("evaluating", 5000, 0)
    assert left.text() == left.rate == ""
    left.advance(1)
    clock[0] += 10
    left.advance(999)
    assert left.text() == "40 s left in all"
    left.plan(PLAN)  # the next run: both paces are known from the start
    left.start("search", 200, 0)
    assert left.text() == f"{duration(100 + 50 + 50)} left in all" == "3 min left in all"
    clock[0] += 30
    assert left.text(runs_after=1) == f"{duration(200 + 230)} left in all" == "7 min left in all"


def test_parts_that_are_skipped_are_over_and_a_task_without_a_plan_has_its_own_time(clock: list[float]) -> None:
    left = TimeLeft()
    left.start("sweep", 4, 0)
    clock[0] = 10
    left.advance(1)
    assert left.text() == "30 s left"
    left.plan(PLAN)
    left.start("finetune", 100, 40)  # resumed
    left.advance(1)
    clock[0] += 1
    left.advance(1)
    assert left.text() == "58 s left of training"


def test_a_log_has_a_line_after_silence_whatever_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pwoa.progress.SILENCE", 0.05)
    progress = ConsoleProgress()
    with progress.working("loading the data"):
        time.sleep(0.2)
    waiting = capsys.readouterr().out.splitlines()
    assert len(waiting) >= 2
    assert all(re.fullmatch(r"loading the data: \d s so far", line) for line in waiting)
    progress.plan(PLAN)
    progress.say("the data are loaded")
    progress.start("search", 200)
    for units in (1, 49):
        time.sleep(0.01)
        progress.advance(units)
    progress.show("natural accuracy 98.00 %")
    time.sleep(0.12)  # a compiler, or a long attack, that reports nothing
    progress.close()
    _, *said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"search: 25 %, [\d.e+]+ steps/s, \d+ s left of training, natural accuracy 98.00 %", said[0]), (
        said
    )
    time.sleep(0.12)
    assert capsys.readouterr().out == ""  # nothing is under way


def test_short_tasks_one_after_the_other_are_not_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pwoa.progress.SILENCE", 0.1)
    progress = ConsoleProgress()
    for number in range(10):
        progress.start(f"radius {number}", 10)
        time.sleep(0.05)
    progress.close()
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_what_speaks_keeps_the_silence_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pwoa.progress.SILENCE", 0.2)
    progress = ConsoleProgress()
    progress.start("search", 10)
    for number in range(5):
        time.sleep(0.06)
        progress.say(f"epoch {number}")
    progress.close()
    assert capsys.readouterr().out.splitlines() == [f"epoch {number}" for number in range(5)]


class Recorder(Progress):
    """Keeps the plan, the tasks and the units done of each."""

    def __init__(self) -> None:
        self.planned: list[Part] = []
        self.done: dict[str, tuple[int, int]] = {}
        self.shown: list[str] = []
        self.task = ""

    def plan(self, parts: object) -> None:
        assert isinstance(parts, list)
        self.planned = parts

    def start(self, task: str, total: int, done: int = 0) -> None:
        self.task, self.done[task] = task, (total, done)

    def advance(self, units: int = 1) -> None:
        total, done = self.done[self.task]
        self.done[self.task] = total, done + units

    def show(self, figures: str) -> None:
        self.shown.append(figures)


def check_plan(progress: Recorder, checked: int) -> None:
    """The tasks are those of the plan, as long as announced, and all but the checks are done to the end."""
    tasks = {task: numbers for task, numbers in progress.done.items() if not task.startswith("loading")}
    assert list(tasks) == list(dict.fromkeys(part.task for part in progress.planned))
    assert {part.task: part.work for part in progress.planned} == {task: total for task, (total, _) in tasks.items()}
    assert sum(total != done for total, done in tasks.values()) <= checked


@pytest.mark.filterwarnings("ignore::pwoa.errors.DefenceWarning")
def test_a_run_announces_all_that_it_will_do(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Callable[..., Recipe]
) -> None:
    short = {"search__epochs": 1, "finetune__epochs": 1, "evaluation__attacks": ("natural", "pgd2")}
    recipe = quick(**short, evaluation__strong=0, evaluation__radii=(0.0,), evaluation__images=8)
    pruning = Recorder()
    prune(tiny_teacher, tiny_data, recipe=recipe, folder=tmp_path / "run", force=True, progress=pruning)
    assert [part.kind for part in pruning.planned][:3] == [EVALUATION, TRAINING, TRAINING]
    check_plan(pruning, checked=1)
    measuring = Recorder()
    options: dict[str, Any] = {"threat": Threat(radius=0.05, step=0.01), "radii": [0.02], "progress": measuring}
    pwoa.evaluate(tiny_teacher, tiny_data, attacks="natural,pgd3", images=8, **options)
    check_plan(measuring, checked=1)
    assert re.fullmatch(r"natural [\d.]+ %(, PGD-3 [\d.]+ %)?", measuring.shown[-1])


def shown(width: int, monkeypatch: pytest.MonkeyPatch, task: str = "search", part: Part = PLAN[0]) -> str:
    """What a terminal of so many columns shows of a stage and its first epoch."""
    from rich.console import Console

    file = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **options: Console(file=file, force_terminal=True, width=width))
    progress = ConsoleProgress()
    progress.plan([part])
    progress.start(task, 200)
    progress.advance()
    time.sleep(0.01)
    progress.advance(99)
    line = {
        "stage": "search",
        "epoch": 0,
        "train": {"loss": 0.5},
        "validation": {"loss": 0.25, "accuracy": 97.5},
        "accuracy_of": "natural",
        "seconds": 1.0,
        "validation_seconds": 0.5,
    }
    progress.epoch(line, 3)
    progress.close()
    return re.sub(r"\x1b\[[\d;?]*\w", "", file.getvalue())


PATH = "/a/long/path/of-a-folder/with-hyphens-that-is-not-broken"
MESSAGE = f"resuming the run in {PATH} where it was stopped before\n\n  2 threads instead of 16"


def said(monkeypatch: pytest.MonkeyPatch, width: int, terminal: bool) -> str:
    """What is printed of a message."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    ConsoleProgress().say(MESSAGE)
    return file.getvalue()


@pytest.mark.parametrize("width", [24, 40, 70])
def test_on_a_terminal_a_message_breaks_between_words(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    text = said(monkeypatch, width, terminal=True)
    assert text.split() == MESSAGE.split()
    assert all(len(line) <= width or line == PATH for line in text.splitlines())
    assert "\n\n  2 threads" in text


def test_in_a_log_a_message_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, 24, terminal=False) == f"{MESSAGE}\n"


def test_a_bar_has_time_left_and_figures_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(110, monkeypatch)
    assert re.search(r"search [━╸╺ ]+ 50% [\d.e+]+ steps/s 0 s left in all natural accuracy 97.50 %, val", text), text
    assert "    search   1/3  loss 0.5000  validation 0.2500  natural 97.50 %  1.5 s\n" in text


@pytest.mark.parametrize(("width", "figures"), [(80, "natural accuracy 97.50 %"), (60, "")])
def test_in_a_narrow_terminal_the_figures_give_way(monkeypatch: pytest.MonkeyPatch, width: int, figures: str) -> None:
    *_, last = re.findall(r"search ━[━╸╺ ]+ 50% (.*?) *[\r\n]", shown(width, monkeypatch))
    assert last.split() == f"0 s left in all {figures}".split()


@pytest.mark.parametrize(
    ("width", "name", "beside"),
    [
        (20, "evaluatin…", ""),
        (40, "evaluating…", ""),
        (60, "evaluating the…", "0 s left in all"),
        (80, "evaluating the pruned model at radi…", "0 s left in all"),
    ],
)
def test_a_long_name_gives_way_before_the_percentage(
    monkeypatch: pytest.MonkeyPatch, width: int, name: str, beside: str
) -> None:
    task = "evaluating the pruned model at radius 0.05 and much more"
    text = shown(width, monkeypatch, task, Part(task, 200, TRAINING))
    bars = [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.startswith("evaluating"[:9])]
    assert re.fullmatch(rf"{name} [━╸╺ ]+ +50% *{beside}", bars[-1]), bars
    assert all(len(bar) <= width for bar in bars)
    assert "accuracy" not in text


def test_an_epoch_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    line = {
        "stage": "finetune",
        "epoch": 99,
        "train": {"loss": 12.5},
        "validation": {"loss": 10.25, "accuracy": 100.0},
        "accuracy_of": "PGD-10",
        "seconds": 1200.0,
        "validation_seconds": 34.5,
    }
    ConsoleProgress().epoch(line, 100)
    (told,) = capsys.readouterr().out.splitlines()
    assert told == "  finetune 100/100  loss 12.5000  validation 10.2500  PGD-10 100.00 %  1234.5 s"
    assert len(told) < 80
