"""What a long-running part tells a person: nothing by default, bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Mapping, Sized
from typing import Any, TypeVar

from pwoa.errors import printable

T = TypeVar("T", bound=Sized)
U = TypeVar("U")


def forgive_output() -> None:
    """Let this process print what its output can encode, and a question mark for the rest; it never fails for that."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


class Progress:
    """The silent one, and the interface of all: tasks of so many units, epochs, and messages."""

    def start(self, task: str, total: int, done: int = 0) -> None:
        """Return a task begins; the task before it is over."""

    def advance(self, units: int = 1) -> None:
        """So many more units are done."""

    def reach(self, task: str, done: int, total: int) -> None:
        """Return the task (a new one, if its name is new) has come to `done` of `total` units."""

    def epoch(self, line: Mapping[str, Any], epochs: int) -> None:
        """Return an epoch ended with this line of metrics."""

    def say(self, message: str) -> None:
        """Something a person should know."""

    def close(self) -> None:
        """Return the last task is over."""


class Pace:
    """Advances by one unit for each image, a little with each call of the model that an attack searches on.

    calls: about how often the model is called for an image. Images that are decided early are through at once.
    """

    def __init__(self, advance: Callable[[int], None], images: int, calls: int) -> None:
        self._advance, self._images, self._calls = advance, images, calls
        self._decided, self._reported, self._share = 0, 0, 0.0

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
        reached = self._decided + int((self._images - self._decided) * self._share)
        if reached > self._reported:
            self._advance(reached - self._reported)
            self._reported = reached


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
    """Epochs and messages as lines; on a terminal also a bar with rate and time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._console = Console(highlight=False, markup=False, emoji=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self._bar = Bar(*columns, console=self._console, transient=True)
        self._terminal = self._console.is_terminal
        self._name, self._done, self._total, self._first = "", 0, 0, 0
        self._began = self._spoke = 0.0

    def start(self, task: str, total: int, done: int = 0) -> None:
        self.close()
        self._name, self._done, self._total, self._first = task, done, total, done
        self._began = self._spoke = time.monotonic()
        if self._terminal:
            self._bar.add_task(task, total=total, completed=done, rate="")
            self._bar.start()

    def advance(self, units: int = 1) -> None:
        self._done += units
        now = time.monotonic()
        if self._terminal and self._bar.task_ids:
            rate = (self._done - self._first) / max(now - self._began, 1e-9)
            self._bar.update(self._bar.task_ids[0], advance=units, rate=f"{rate:.0f}/s" if rate >= 1 else "")
        elif now - self._spoke > 30 and self._done < self._total:  # a sign of life in a log
            self._spoke = now
            self.say(f"{self._name}: {self._done}/{self._total}")

    def reach(self, task: str, done: int, total: int) -> None:
        if task != self._name:
            self.start(task, total, done)
        self.advance(done - self._done)

    def epoch(self, line: Mapping[str, Any], epochs: int) -> None:
        self.say(
            f"{line['stage']:>8} {line['epoch'] + 1:>3}/{epochs}  loss {line['train']['loss']:.4f}  "
            f"validation loss {line['validation']['loss']:.4f}  "
            f"{line['accuracy_of']} accuracy {line['validation']['accuracy']:.2f} %  "
            f"{line['seconds'] + line['validation_seconds']:.1f} s"
        )

    def say(self, message: str) -> None:
        self._console.print(printable(message, "\n"), soft_wrap=True)

    def close(self) -> None:
        if self._terminal:
            self._bar.stop()
            for task in list(self._bar.task_ids):
                self._bar.remove_task(task)
