"""What a long-running part tells a person: nothing by default, bars on a terminal, plain lines elsewhere."""

import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, NamedTuple, TypeVar

from pwoa.errors import printable

T = TypeVar("T", bound=Sized)
U = TypeVar("U")

TRAINING, EVALUATION = "training", "evaluation"
"""The kinds of work that a command has. Training counts steps, evaluation counts calls of the model with one image."""
SILENCE = 20.0
"""After so many seconds without a word there is a line in a log."""
MANY = 100
"""Of so many units the first one is not taken for a measure of the others: it may compile."""
WIDE = 110
"""So many columns a terminal must have for the steps a second to be beside the bar."""
BAR = 20
"""Columns of the bar."""
SHORT = 11
"""For so many columns of the task's name the time left gives way, then the bar; not the percentage."""


def forgive_output() -> None:
    """Let this process print what its output can encode, and a question mark for the rest; it never fails for that.

    What a process prints that was started without an output is dropped.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


class Part(NamedTuple):
    """A part of a command: the name of its task, how many units of work it has, and of which kind."""

    task: str
    work: int
    kind: str


class Progress:
    """The silent one, and the interface of all: tasks of so many units, epochs, and messages.

    runs_after: how many runs such as the one under way come after it; the time left is that of them all.
    """

    runs_after = 0

    @property
    def silent(self) -> bool:
        """Whether nobody sees what it is told."""
        return type(self) is Progress

    def plan(self, parts: Sequence[Part]) -> None:
        """Take note of all that a run will do, for the time left."""

    def start(self, task: str, total: int, done: int = 0) -> None:
        """Begin a task of so many units, 0 if nobody knows; the task before it is over."""

    def advance(self, units: int = 1) -> None:
        """Count so many more units as done."""

    def reach(self, task: str, done: int, total: int) -> None:
        """Let the task (a new one, if its name is new) have come to `done` of `total` units."""

    def show(self, figures: str) -> None:
        """Show the latest figures beside the bar."""

    def epoch(self, line: Mapping[str, Any], epochs: int) -> None:
        """Tell that an epoch ended with this line of metrics."""

    def say(self, message: str) -> None:
        """Tell something that a person should know."""

    def close(self) -> None:
        """End the last task."""

    @contextmanager
    def working(self, task: str) -> Iterator[None]:
        """Have a task inside whose length nobody knows."""
        self.start(task, 0)
        try:
            yield
        finally:
            self.close()


class Pace:
    """Advances by `calls` units for each image, a little with each call of the model that an attack searches on.

    calls: about how often the model is called for an image. Images that are decided early are through at once.
    share: how much of the way all images have come already, where an attack goes on.
    """

    def __init__(self, advance: Callable[[int], None], images: int, calls: int, share: float = 0.0) -> None:
        self._advance, self._images, self._calls = advance, images, calls
        self._decided, self._reported, self._share = 0, 0, share

    def watch(self, model: Callable[[T], U]) -> Callable[[T], U]:
        """Return the model, with every call of it counted."""

        def watched(x: T) -> U:
            left = max(self._images - self._decided, 1)
            self._share = min(1.0, self._share + len(x) / (left * self._calls))
            self._report()
            return model(x)

        return watched

    def decide(self, images: int) -> None:
        """Count so many images more as done."""
        self._decided += images
        self._report()

    def _report(self) -> None:
        reached = int(self._calls * (self._decided + (self._images - self._decided) * self._share))
        if reached > self._reported:
            self._advance(reached - self._reported)
            self._reported = reached


class TimeLeft:
    """How long a run will still take: what is left of each kind of work, at the pace that was seen of it last."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._planned: float | None = None
        self._pace: dict[str, float] = {}
        self._kind, self._total, self._done, self._mark, self._first = "", 0, 0, (0.0, 0), False

    def plan(self, parts: Sequence[Part]) -> None:
        """Take note of all parts, in their order; what was measured before still holds."""
        self._parts, self._planned = list(parts), time.monotonic()

    def start(self, task: str, total: int, done: int) -> None:
        """Begin a task; if it is a part of the plan, those before it are over, or have been skipped."""
        names = [part.task for part in self._parts]
        self._kind = task
        if task in names:
            self._kind = self._parts[names.index(task)].kind
            del self._parts[: names.index(task) + 1]
        self._total, self._done, self._mark = total, done, (time.monotonic(), done)
        self._first = total >= MANY

    def advance(self, units: int) -> None:
        """Count units of the task as done, and measure their pace."""
        now = time.monotonic()
        self._done += units
        if self._first:
            self._mark, self._first = (now, self._done), False
        elif self._done > self._mark[1]:
            self._pace[self._kind] = (now - self._mark[0]) / (self._done - self._mark[1])

    @property
    def rate(self) -> str:
        """How many steps are done in a second, where steps are counted."""
        pace = self._pace.get(self._kind, 0.0)
        return f"{1 / pace:.3g} steps/s" if self._kind == TRAINING and pace else ""

    def text(self, runs_after: int = 0) -> str:
        """Return the time left in words, and of what it is: of all, if the pace of each kind is known, or of one."""
        if self._kind not in self._pace:
            return ""
        known = [part for part in self._parts if part.kind in self._pace]
        whole = len(known) == len(self._parts)
        counted = known if whole else [part for part in known if part.kind == self._kind]
        seconds = (self._total - self._done) * self._pace[self._kind]
        seconds += sum(part.work * self._pace[part.kind] for part in counted)
        if not whole:
            return f"{duration(seconds)} left of {self._kind}"
        if self._planned is None:
            return f"{duration(seconds)} left"
        return f"{duration(seconds + runs_after * (seconds + time.monotonic() - self._planned))} left in all"


def duration(seconds: float) -> str:
    """Write a time as one says it. Example: `duration(4000)` is "1 h 7 min"."""
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def wrapped(line: str, width: int) -> str:
    """Break a line at spaces, so that it fits; a word that is longer than the width, such as a path, stays whole."""
    return line if len(line) <= width else textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)


def shortened(name: str, width: int) -> str:
    """Cut a name off so that it fits."""
    return name if len(name) <= width else name[: max(0, width - 1)].rstrip() + "…"


def choose_progress(progress: "Progress | bool | None") -> Progress:
    """Return what shows the progress of a call from Python: by default bars on a terminal, and nothing elsewhere.

    Example: `choose_progress(False)` is silent; True prints plain lines where there is no terminal.
    """
    if isinstance(progress, Progress):
        return progress
    if progress or (progress is None and sys.stdout is not None and sys.stdout.isatty()):
        return ConsoleProgress()
    return Progress()


class ConsoleProgress(Progress):
    """Epochs and messages as lines; on a terminal also a bar, elsewhere a line now and then, with the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = Console(highlight=False, markup=False, emoji=False)
        texts = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("rate", "left", "figures"))
        self._column = BarColumn(BAR)
        columns = (TextColumn("{task.description}", markup=False), self._column, TaskProgressColumn(), *texts)
        self._bar = Bar(*columns, console=self._console, transient=True)
        self._terminal = self._console.is_terminal
        self._left = TimeLeft()
        self._name, self._figures, self._done, self._total = "", "", 0, 0
        self._began = self._spoke = time.monotonic()
        self._over = Event()

    def plan(self, parts: Sequence[Part]) -> None:
        self._left.plan(parts)

    def start(self, task: str, total: int, done: int = 0) -> None:
        self.close()
        self._name, self._figures, self._done, self._total = task, "", done, total
        self._began = time.monotonic()  # but short tasks one after the other are no reason to be silent
        self._left.start(task, total, done)
        if self._terminal:
            self._bar.add_task(task, total=total or None, completed=done, rate="", left="", figures="")
            self._refresh()
            self._bar.start()
        else:
            self._over = Event()
            Thread(target=self._speak_up, args=(self._over,), daemon=True).start()

    def advance(self, units: int = 1) -> None:
        self._done += units
        self._left.advance(units)
        self._refresh()

    def reach(self, task: str, done: int, total: int) -> None:
        if task != self._name:
            self.start(task, total, done)
        self.advance(done - self._done)

    def show(self, figures: str) -> None:
        self._figures = figures
        self._refresh()

    def epoch(self, line: Mapping[str, Any], epochs: int) -> None:
        validation = line["validation"]
        of, accuracy = line["accuracy_of"], f"{validation['accuracy']:.2f} %"
        self.show(f"{of} accuracy {accuracy}, validation loss {validation['loss']:.4f}")
        self.say(
            f"{line['stage']:>10} {line['epoch'] + 1:>3}/{epochs}  loss {line['train']['loss']:.4f}  "
            f"validation {validation['loss']:.4f}  {of} {accuracy}  "
            f"{line['seconds'] + line['validation_seconds']:.1f} s"
        )

    def say(self, message: str) -> None:
        self._spoke = time.monotonic()
        text = printable(message, "\n")
        if self._terminal:
            text = "\n".join(wrapped(line, self._console.width) for line in text.split("\n"))
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        self._name = ""
        self._over.set()
        if self._terminal:
            self._bar.stop()
            for task in list(self._bar.task_ids):
                self._bar.remove_task(task)

    def _refresh(self) -> None:
        if self._terminal and self._bar.task_ids:
            name, rate, left, figures = self._name, self._left.rate, self._left.text(self.runs_after), self._figures
            if self._console.width < WIDE:
                rate, room = "", self._console.width - len("  100%   ")  # for all that is beside the percentage
                while figures and len(figures) > room - BAR - len(name + left):
                    figures = figures.rpartition(", ")[0]
                if room - BAR - len(left) < min(SHORT, len(name)):
                    left = ""
                self._column.bar_width = max(1, min(BAR, room - SHORT))
                name = shortened(name, room - self._column.bar_width - len(left))
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=self._done, description=name, rate=rate, left=left, figures=figures)

    def _speak_up(self, over: Event) -> None:
        """Say where the task stands whenever nothing was said for a while, whatever it is waiting for."""
        while not over.wait(self._spoke + SILENCE - time.monotonic()):
            if time.monotonic() - self._spoke >= SILENCE:
                self.say(self._status())

    def _status(self) -> str:
        so_far = f"{duration(time.monotonic() - self._began)} so far"
        percent = f"{100 * self._done // self._total} %" if self._total else ""
        where = [percent, self._left.rate, self._left.text(self.runs_after) or so_far, self._figures]
        return f"{self._name}: {', '.join(filter(None, where))}"
