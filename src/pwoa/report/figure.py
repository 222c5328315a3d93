"""What a figure shows, as plain values: drawn into the page by `svg`, and into files by `plots`."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Interval = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Points that belong together. look: the number of its colour and mark, the same in all figures of a page.

    intervals: the low and high end at each point. links, labels: where a point leads, and what it is.
    joined: by a line. by_order: coloured from the first point to the last.
    """

    name: str
    points: tuple[Point, ...]
    look: int = 0
    intervals: tuple[Interval, ...] = ()
    links: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    joined: bool = True
    by_order: bool = False


@dataclass(frozen=True)
class Plot:
    """Points over two axes. description: what a reader who cannot see it should know.

    x_range, y_range: where they are not what the points ask for. log: the axes with a logarithmic scale, of "xy".
    doubling: a logarithmic x axis is marked at powers of two, as rates are.
    borders: vertical lines, as where a stage begins, and their names. small: one of many side by side.
    """

    title: str
    description: str
    x: str
    y: str
    series: tuple[Series, ...]
    x_range: Interval | None = None
    y_range: Interval | None = None
    log: str = ""
    borders: tuple[tuple[float, str], ...] = ()
    small: bool = False
    doubling: bool = False


@dataclass(frozen=True)
class Bar:
    """A value in percent, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Bars:
    """A group of bars for each row, one for each name; None where nothing was measured."""

    title: str
    description: str
    names: tuple[str, ...]
    looks: tuple[int, ...]
    rows: tuple[tuple[str, tuple[Bar | None, ...]], ...]


Figure = Plot | Bars


@dataclass(frozen=True)
class Scale:
    """From values to places between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (_log(each) if self.log else each for each in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, most: int = 6) -> list[float]:
        """Return a few round values that lie on the scale."""
        return log_ticks(self.low, self.high, most) if self.log else round_ticks(self.low, self.high, most)


def range_of(values: Iterable[float], log: bool = False, room: float = 0.05) -> Interval:
    """Return an interval that holds all values with some room; around a single value too."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = min(known, default=1.0), max(known, default=1.0)
    if log:
        factor = (high / low) ** room if high / low > 1.001 else 1.5
        return low / factor, high * factor
    extra = room * (high - low) or max(abs(high) * 0.1, 1e-9)
    return low - extra, high + extra


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most so many multiples of 1, 2 or 5 times a power of ten. Example: `round_ticks(0, 100)`."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most so many of 1, 2 and 5 times the powers of ten, or of the powers alone, or of every second…"""
    powers = range(math.floor(_log(low)), math.ceil(_log(high)) + 1)
    choices = [[factor * 10.0**power for power in powers for factor in (1, 2, 5)]]
    choices += [[10.0**power for power in powers[::every]] for every in (1, 2, 3, 5, 10, 50)]
    within = ([value for value in choice if low * 0.999 <= value <= high * 1.001] for choice in choices)
    return next((ticks for ticks in within if len(ticks) <= most), [])


def doubling_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most so many powers of two, or of four, or of eight…"""
    powers = range(math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9) + 1)
    return [2.0**power for power in powers if power % max(1, -(-len(powers) // most)) == 0]


def thinned(points: Sequence[Point], most: int = 100) -> tuple[Point, ...]:
    """Return at most so many of the points, the first and the last among them."""
    if len(points) <= most:
        return tuple(points)
    return tuple(points[round(number * (len(points) - 1) / (most - 1))] for number in range(most))


def tick_text(value: float) -> str:
    """Write the value of a tick."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:,.6g}"
    mantissa, _, power = f"{value:.0e}".partition("e")
    return f"{mantissa}e{int(power)}"


def _log(value: float) -> float:
    return math.log10(max(value, 1e-300))
