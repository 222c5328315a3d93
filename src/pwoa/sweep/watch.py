"""How far the runs of a sweep have come, by what they leave in their folders, wherever they are carried out."""

from collections.abc import Iterable
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Self

from pwoa.methods import find_method
from pwoa.progress import Progress
from pwoa.runs.folder import METRICS
from pwoa.sweep.grid import Point

TASK = "sweep"
SECONDS = 2.0
"""So often the folders are looked at."""


class Watch:
    """While inside, shows how many epochs all runs together have behind them; a run's evaluation counts as one more."""

    def __init__(self, points: Iterable[Point], folder: Path, progress: Progress) -> None:
        self._units = {
            folder / point.name: 1 + sum(find_method(point.recipe.method).stage_epochs(point.recipe))
            for point in points
        }
        self._ended: set[Path] = set()
        self._progress = progress
        self._over, self._looking = Event(), Lock()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._progress.start(TASK, sum(self._units.values()), self._done())
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self._progress.close()

    def end(self, run: Path) -> None:
        """Count a run as over, in whatever way it ended."""
        self._ended.add(run)
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(SECONDS):
            self._look()

    def _look(self) -> None:
        with self._looking:
            self._progress.reach(TASK, self._done(), sum(self._units.values()))

    def _done(self) -> int:
        return sum(units if run in self._ended else min(_epochs(run), units - 1) for run, units in self._units.items())


def _epochs(run: Path) -> int:
    """Return how many epochs a run has behind it: the lines of its metrics, of which a killed run may repeat some."""
    try:
        return (run / METRICS).read_bytes().count(b"\n")
    except OSError:
        return 0
