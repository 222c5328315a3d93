"""Where the values of a network lie in memory, and what runs over them.

A plane is cut into 4 × 4 tiles, a lane each; `step` is how many rows (or columns) there are from a tile to the next. An
operator with a stride reads tiles that are so much larger than those it writes, so that one choice of tiles holds from
the image to the logits where sizes allow; else planes are laid out anew on the way. model.c says how it computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pwoa.deploy.graph import Graph, Operator, Pair
from pwoa.errors import InputError

LANES, SIDE = 16, 4
FULL = 1 / 3
"""A linear layer with at least this part of its weights is stored with its zeros; twice that if its input has some."""
COLUMN = 8
"""Weights of an input, on average, that are worth to see first whether that input is zero."""
MOST = 0xFFFF
KINDS = {"gather": 0, "convolution": 1, "affine": 2, "maximum": 3, "average": 4, "mean": 5, "linear": 6, "dense": 7}
ADD, SCATTER = 8, 9
NOTHING, ZERO, LOWEST = 0, 1, 2
"""What is read around a plane, by those who read there."""


@dataclass(eq=False)
class Place:
    """A value as it is stored: flat, or in tiles with so many rows and columns of neighbours around each."""

    channels: int
    height: int
    width: int
    step: Pair | None = None
    before: Pair = (0, 0)
    after: Pair = (0, 0)
    outside: int = NOTHING
    rows: int = 1
    born: int = -1
    dies: int = -1
    offset: int = 0
    index: int = 0

    @property
    def size(self) -> Pair:
        """Return the rows and columns that are stored of a tile."""
        step = self.step or (0, 0)
        return (self.before[0] + step[0] + self.after[0], self.before[1] + step[1] + self.after[1])

    @property
    def plane(self) -> int:
        """Return the vectors of 16 floats from a channel to the next: an odd number, which spreads over the cache."""
        return math.prod(self.size) | 1

    @property
    def vectors(self) -> int:
        """Return the size in vectors."""
        if self.step is None:
            return self.rows * -(-self.channels * self.height * self.width // LANES)
        return self.channels * self.plane

    @property
    def whole(self) -> bool:
        """Tell whether the tiles, without neighbours, hold the whole plane."""
        return self.step is not None and SIDE * self.step[0] >= self.height and SIDE * self.step[1] >= self.width

    def widen(self, before: Pair, after: Pair) -> None:
        """Store at least so many rows and columns of neighbours."""
        self.before = (max(self.before[0], before[0]), max(self.before[1], before[1]))
        self.after = (max(self.after[0], after[0]), max(self.after[1], after[1]))

    def words(self) -> tuple[int, ...]:
        """Return it as model.c reads it."""
        step, size, tiled = self.step or (0, 0), self.size, self.step is not None
        before = self.before if tiled else (0, 0)
        shape = (int(tiled), self.channels, self.height, self.width)
        return (*shape, *step, *before, *(size if tiled else (0, 0)), self.plane, self.offset, self.outside)


@dataclass
class Step:
    """An operator on stored values."""

    kind: int
    input: Place
    output: Place
    residual: Place | None = None
    of: Operator | None = None


@dataclass
class Plan:
    """Everything that runs, and what it is thought to cost in cycles."""

    steps: list[Step] = field(default_factory=list)
    cost: float = 0.0


def plan(graph: Graph) -> Plan:
    """Return the cheapest of a few ways to lay out a network: tiles whose steps are multiples of 1, 2, 4 or 8."""
    return min((_Planner(graph, multiple).plan for multiple in (1, 2, 4, 8)), key=lambda way: way.cost)


class _Planner:
    """Lays out one operator after the other."""

    def __init__(self, graph: Graph, multiple: int) -> None:
        self.graph, self.multiple, self.plan = graph, multiple, Plan()
        channels, height, width = graph.shapes[0]
        self.places: dict[int, list[Place]] = {0: [Place(channels, height, width)]}
        self.never_negative: set[int] = set()
        self.often_zero: set[int] = set()
        for op in graph.operators:
            {"flatten": self.flatten, "linear": self.linear, "mean": self.mean, "affine": self.affine}.get(
                op.kind, self.slide
            )(op)
        self.end()

    def emit(
        self, kind: int, input: Place, output: Place, residual: Place | None = None, of: Operator | None = None
    ) -> None:
        """Append a step."""
        now = len(self.plan.steps)
        output.born = output.dies = now
        for place in (input, residual):
            if place is not None:
                place.dies = now
        self.plan.steps.append(Step(kind, input, output, residual, of))

    def gathered(self, value: int, place: Place) -> Place:
        """Lay a value out anew."""
        self.emit(KINDS["gather"], self.places[value][0], place)
        self.places[value].append(place)
        self.plan.cost += 1.2 * place.vectors * LANES
        return place

    def flat(self, value: int) -> Place:
        """Return the value in a row."""
        found = next((place for place in self.places[value] if place.step is None), None)
        first = self.places[value][0]
        return found or self.gathered(value, Place(first.channels, first.height, first.width))

    def tiled(self, value: int, step: Pair | None = None) -> Place:
        """Return the value in tiles that hold it as a whole, with these steps if any are given."""
        for place in self.places[value]:
            if place.whole and place.outside != LOWEST and step in (None, place.step):
                return place
        first = self.places[value][0]
        return self.gathered(
            value, Place(first.channels, first.height, first.width, step or self.fitting(first.height, first.width))
        )

    def fitting(self, height: int, width: int) -> Pair:
        """Return the smallest steps for planes of a size, multiples of what this plan asks for."""
        unit = SIDE * self.multiple
        return -(-height // unit) * self.multiple, -(-width // unit) * self.multiple

    def add(self, op: Operator, place: Place) -> Place:
        """Note that an operator's value is stored there."""
        self.places[op.output] = [place]
        if op.relu or (op.kind in ("maximum", "average", "mean", "flatten") and op.input in self.never_negative):
            self.never_negative.add(op.output)
        if (op.relu and op.kind != "mean") or (op.kind == "maximum" and op.input in self.often_zero):
            self.often_zero.add(op.output)
        return place

    def flatten(self, op: Operator) -> None:
        self.places[op.output] = [self.flat(op.input)]
        if op.input in self.often_zero:
            self.often_zero.add(op.output)

    def linear(self, op: Operator) -> None:
        assert op.weight is not None
        outputs, part = len(op.weight), int(op.weight.count_nonzero()) / op.weight.numel()
        if op.input in self.often_zero and COLUMN / outputs <= part < 2 * FULL and outputs <= MOST:
            kind = SCATTER
        else:
            kind = KINDS["dense" if part >= FULL else "linear"]
        residual = None if op.residual is None else self.flat(op.residual)
        place = Place(outputs, 1, 1, rows=2 if kind == SCATTER else 1)
        self.emit(kind, self.flat(op.input), self.add(op, place), residual, op)

    def mean(self, op: Operator) -> None:
        tiles = self.tiled(op.input)
        tiles.outside = ZERO
        self.emit(KINDS["mean"], tiles, self.add(op, Place(tiles.channels, 1, 1)), of=op)

    def affine(self, op: Operator) -> None:
        if all(self.places[value][0].step is None for value in op.inputs):
            input, residual = self.flat(op.input), None if op.residual is None else self.flat(op.residual)
            self.emit(ADD, input, self.add(op, Place(input.channels, input.height, input.width)), residual, op)
            return
        steps = [place.step for value in op.inputs for place in self.places[value] if place.whole]
        input = self.tiled(op.input, steps[0])
        residual = None if op.residual is None else self.tiled(op.residual, input.step)
        output = self.add(op, Place(input.channels, input.height, input.width, input.step))
        self.plan.cost += output.vectors
        self.emit(KINDS["affine"], input, output, residual, op)

    def slide(self, op: Operator) -> None:
        """Lay out a convolution or pooling: a window that slides over planes."""
        channels, height, width = self.graph.shapes[op.output]
        work = 0.6 * (channels * math.prod(op.kernel) if op.weight is None else int(op.weight.count_nonzero()))
        work *= 4 if op.pooled else 1
        lowest = op.kind == "maximum" and op.input not in self.never_negative
        outside = NOTHING if not any(op.padding) else LOWEST if lowest else ZERO
        best = self.fitting(height, width)
        first = self.places[op.input][0]
        anew = Place(first.channels, first.height, first.width, _times(best, op.pace), outside=outside)
        anew.widen(*_neighbours(op, best))
        choices: list[tuple[float, Place, Pair]] = [(work * math.prod(best) + 1.2 * anew.vectors * LANES, anew, best)]
        for place in self.places[op.input]:
            if place.step is None or any(map(int.__mod__, place.step, op.pace)):
                continue
            if NOTHING in (place.outside, outside) or place.outside == outside:
                step = (place.step[0] // op.pace[0], place.step[1] // op.pace[1])
                if SIDE * step[0] >= height and SIDE * step[1] >= width:
                    choices.append((work * math.prod(step), place, step))
        _, input, step = min(choices, key=lambda choice: choice[0])
        if input is anew:
            self.gathered(op.input, anew)
        input.widen(*_neighbours(op, step))
        input.outside = max(input.outside, outside)
        self.plan.cost += work * math.prod(step)
        residual = None if op.residual is None else self.tiled(op.residual, step)
        output = self.add(op, Place(channels, height, width, step))
        self.emit(KINDS[op.kind], input, output, residual, op)

    def end(self) -> None:
        """Let the last step write the logits, and nobody read them."""
        place, steps = self.flat(self.graph.output), self.plan.steps
        last = steps[-1] if steps else None  # a scatter writes whole vectors, for which logits have no room
        if last is None or last.output is not place or last.kind == SCATTER or place.born != place.dies:
            self.emit(KINDS["gather"], place, Place(place.channels, place.height, place.width))
        for other in {id(p): p for places in self.places.values() for p in places}.values():
            if other.step is not None and other.plane > MOST:
                raise InputError(f"planes of {other.height}×{other.width} pixels are too large to be written as C")


def _times(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0], a[1] * b[1]


def _neighbours(op: Operator, step: Pair) -> tuple[Pair, Pair]:
    """Return how many rows and columns before and after its own a tile of the input needs for a tile of the output."""
    after = [max(0, r - p - s + 1) for r, p, s in zip(op.reach, op.padding, op.pace, strict=True)]
    return op.padding, (after[0], after[1])
