"""Where the time of a command goes."""

from __future__ import annotations

import threading
import time

import pytest

from benchmarks.timeline import Spent, timeline


def slow() -> None:
    time.sleep(0.3)


def fast() -> None:
    time.sleep(0.1)


def both() -> None:
    slow()
    fast()


def test_time_is_counted_where_it_is_spent_and_in_all_that_called_it() -> None:
    whole = timeline(both)
    lines = list(whole.lines(0.05))
    seconds = {line.split(":")[-1]: float(line.split()[0]) for line in lines}
    assert whole.seconds == pytest.approx(0.4, abs=0.2)
    assert seconds["both"] == pytest.approx(seconds["slow"] + seconds["fast"], abs=0.1)
    assert seconds["slow"] > 1.5 * seconds["fast"] > 0
    depth = {line.split(":")[-1]: len(line) - len(line.lstrip("0123456789. s")) for line in lines}
    assert depth["slow"] == depth["fast"] == depth["both"] + 2


def test_what_passes_its_time_on_and_what_takes_little_are_left_out() -> None:
    whole = Spent()
    whole.add(["outer", "inner", "deep"], 1.0)
    whole.add(["outer", "inner"], 0.5)
    whole.add(["outer", "short"], 0.01)
    assert [line.split() for line in whole.lines(0.1)] == [["1.50", "s", "inner"], ["1.00", "s", "deep"]]


def test_what_fails_ends_the_watching_too() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        timeline(lambda: 1 / 0)
    assert threading.active_count() == before
