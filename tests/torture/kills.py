"""Kills: a process that dies at any event of the file system, or at any time, is resumed to the same content.

`python -m tests.torture.kills` tries every event of every method and of an evaluation, and random times of them and of
a sweep; with `--every 6`, a sixth of these.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.torture.trials import SETTINGS, Bench, Part, attempt, content, difference, fresh, main, write_digits

SHORT_METHODS = ("pwoa",)
GRID = """
recipe = "demo"
set.data.name = "{data}"
grid.training.seed = [0]
"""


def torture(short: bool, every: int = 1) -> Part:
    """Kill and resume; a violation is an end that is not the undisturbed one."""
    from pwoa.methods import METHODS

    part, bench = Part("kills", every), Bench()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        works: dict[str, Callable[[Path], object]] = {"evaluate": bench.evaluate}
        works |= {method: partial(bench.run, method) for method in (SHORT_METHODS if short else METHODS)}
        for what, work in works.items():
            _kill_at_events(part, what, work, place, 4 if short else 1000)
            _kill_at_times(part, what, work, place, 1 if short else 15)
        _kill_sweep(part, place, 1 if short else 12)
    return part


def _kill_at_events(part: Part, what: str, work: Callable[[Path], object], place: Path, most: int) -> None:
    """Kill at so many events at most, spread over all of them, the last among them."""
    with fresh(place / "whole") as whole:
        ended = attempt(lambda: work(whole / "run"), whole)
        if ended.code:
            part.note(what, f"an undisturbed one ends with {ended.code}: {ended.output[-500:]}")
            return
        expected = content(whole / "run")
    step = max(1, ended.events // most)
    for event in sorted({*range(ended.events % step, ended.events, step), ended.events - 1}):
        if part.due():
            part.note(f"{what} killed at event {event}", _resumed(work, place, expected, at=event))


def _resumed(work: Callable[[Path], object], place: Path, expected: dict[str, object], at: int) -> str:
    with fresh(place / "killed") as folder:
        killed = attempt(lambda: work(folder / "run"), folder, at)
        if killed.code != -9:
            return f"it was not killed, but ended with {killed.code}: {killed.output[-500:]}"
        return _end(work, folder, expected)


def _end(work: Callable[[Path], object], folder: Path, expected: dict[str, object]) -> str:
    again = attempt(lambda: work(folder / "run"), folder)
    if again.code:
        return f"resumed, it ends with {again.code}: {again.output[-500:]}"
    return difference(expected, content(folder / "run"))


def dying(work: Callable[[Path], object], folder: Path, after: float) -> None:
    """Do the work in a process that is killed after so many seconds."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, after)
    work(folder / "run")


def _kill_at_times(part: Part, what: str, work: Callable[[Path], object], place: Path, most: int) -> None:
    """Kill at random times, twice each, with an alarm that nothing catches."""
    with fresh(place / "whole") as whole:
        start = time.perf_counter()
        attempt(lambda: work(whole / "run"), whole)
        seconds, expected = time.perf_counter() - start, content(whole / "run")
    chance = random.Random(what)

    for _ in range(most):
        after = [max(0.001, chance.random() * seconds) for _ in range(2)]
        if not part.due():
            continue
        with fresh(place / "killed") as folder:
            for moment in after:
                attempt(partial(dying, work, folder, moment), folder)
            part.note(f"{what} killed after {after} s", _end(work, folder, expected))


def _kill_sweep(part: Part, place: Path, most: int) -> None:
    """Kill a sweep at random times: its runs end by themselves, and the same again goes on to the same rows."""
    from pwoa.sweep import sweep

    grid = place / "grid.toml"
    grid.write_text(GRID.format(data=write_digits(place / "digits")), encoding="utf-8")
    settings = [f"{key}={str(value).lower()}" for key, value in SETTINGS.items() if "attacks" not in key]
    settings.append("evaluation.attacks=natural")

    def work(folder: Path) -> None:
        sweep(grid, folder, settings=settings, jobs=1)

    with fresh(place / "whole") as whole:
        start = time.perf_counter()
        ended = attempt(lambda: work(whole / "run"), whole)
        seconds, expected = time.perf_counter() - start, content(whole / "run") if not ended.code else {}
    if ended.code:
        part.note("sweep", f"an undisturbed one ends with {ended.code}: {ended.output[-500:]}")
        return
    chance = random.Random("sweep")
    for _ in range(most):
        moment = seconds * (0.4 + chance.random() / 2)
        if not part.due():
            continue
        with fresh(place / "killed") as folder:
            attempt(partial(dying, work, folder, moment), folder)
            time.sleep(1)  # the runs of a sweep that was killed have a moment to end
            part.note(f"sweep killed after {moment:.1f} s", _end(work, folder, expected))


if __name__ == "__main__":
    main(torture)
