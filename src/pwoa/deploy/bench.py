"""Which route runs a network fastest, and how much faster a pruned one is than its teacher.

All models and routes are timed in turns, round after round, so that what else the machine does falls on all of them
alike. Of one thread it is the processor's time that counts, not the clock's: on a busy machine a call of 10 ms is
interrupted each time and one of 1 ms hardly ever, and no median mends that.
"""

from __future__ import annotations

import copy
import math
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pwoa import __version__
from pwoa.data.load import load_data
from pwoa.deploy.memory import peak_memory
from pwoa.deploy.routes import Route, Task, find_routes
from pwoa.errors import InputError, counted, first_line
from pwoa.models.border import as_logits
from pwoa.models.compiled import CModel
from pwoa.models.load import Source, lacks_architecture, load_model, refuse_missing
from pwoa.models.twins import twin_of
from pwoa.progress import Progress, choose_progress
from pwoa.recipe import recorded_recipe, records_recipe
from pwoa.sparsity import count_multiply_adds
from pwoa.storage.folder import RESULT, Folder

if TYPE_CHECKING:
    from pwoa.data.images import Data, Images
    from pwoa.deploy.routes import Call

Row = dict[str, Any]
TEACHER, ALL = "teacher", "all"
ROUNDS = 10
CALIBRATION = 256
"""Training images that int8 is calibrated by."""
COMPILATIONS = 1000
"""Of one network's code by torch.compile, which gives up after eight: each model, batch and count of threads is one."""


@dataclass(frozen=True)
class Bench:
    """What was measured: a flat row for each model, route and number of threads.

    A row has `model`, `route`, `threads`, `milliseconds` (the median at batch 1: with one thread the processor's time,
    else the clock's), `milliseconds_95` (the 95th percentile), `images_per_second` (so many at a time as `about` says),
    `memory`, `bytes`, `macs` and `macs_dense` (multiply-adds of the weights that are not zero, and of all),
    `max_difference` (of the logits from torch's, relative to the largest) and `same_class` (the share of images
    on which the class is torch's). Where a route cannot run a model it has `error` instead of them.
    missing: by route that is not here, how to get it.
    """

    rows: tuple[Row, ...]
    missing: Mapping[str, str]
    about: Mapping[str, Any]
    folder: Path | None = None

    def fastest(self, model: str, threads: int = 1, *, exact: bool = False) -> Row | None:
        """Return the row of a model's fastest route; exact: of those in float32. None if no route runs it."""
        mine = [row for row in self.rows if (row["model"], row["threads"]) == (model, threads) and "error" not in row]
        able = [row for row in mine if row["exact"] or not exact]
        return min(able, key=lambda row: float(row["milliseconds"]), default=None)

    @property
    def sentences(self) -> list[str]:
        """Say in a line for each model and number of threads which route is fastest, and how it is to the teacher."""
        lines = []
        for model, threads in dict.fromkeys((row["model"], row["threads"]) for row in self.rows):
            best, exact = self.fastest(model, threads), self.fastest(model, threads, exact=True)
            if best is None:
                continue
            line = f"{model}, {counted(threads, 'thread')}: fastest by {_named(best)}"
            if exact is not None and exact is not best:
                line += f", in float32 by {_named(exact)}"
            teacher = self.fastest(TEACHER, threads, exact=True)
            if teacher is not None and model != TEACHER:
                times = teacher["milliseconds"] / (exact or best)["milliseconds"]
                line += f": {times:.3g} times as fast as the teacher's fastest, {_named(teacher)}"
            lines.append(line)
        return lines


def bench(
    models: Source | Sequence[Source] | Mapping[str, Source],
    data: Any = None,
    *,
    teacher: Source | None = None,
    routes: str | Sequence[str] | None = None,
    threads: str | int | Sequence[int | str] = "1,all",
    seconds: float = 30.0,
    batch: int = 32,
    images: int = 256,
    memory: bool = True,
    architecture: str | nn.Module | None = None,
    data_folder: str | Path | None = None,
    folder: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> Bench:
    """Time models on the CPU by several routes: latency, throughput, memory, size, and whether they answer as torch.

    Example: `bench("runs/mine", teacher="trades.pt").fastest("runs/mine")`.

    models: one or more of what `load_model` takes, also what `prune` returns, or networks by name.
    data: what `load_data` takes; None takes that of the first model that is a run, or was exported from one and lies in
        it.
    teacher: the dense network that the models are compared with.
    routes: of `pwoa.deploy.routes.ROUTES`; all by default. One that is not installed is named in `missing`.
    threads: how many to compute with; `all` is one for each core.
    seconds: how long to time in all, about: each turn has two calls at least. Writing and compiling come before.
    batch: images at a time, for the throughput.
    images: how many test images the answers are compared on.
    memory: whether to measure it, in a new process for each model and route.
    architecture: as for `load_model`, of all models here that are checkpoints or of a network of your own.
    data_folder: as for `load_data`.
    folder: where result.json is kept; None keeps nothing.
    progress: by default bars on a terminal and nothing elsewhere; False shows nothing, True lines everywhere.
    """
    progress = choose_progress(progress)
    _check_numbers(seconds, batch, images)
    counts, chosen, sources = _counts(threads), find_routes(routes), _sources(models, teacher)
    built = {name for name, source in sources.items() if architecture is not None and lacks_architecture(source)}
    if architecture is not None and not built:
        raise InputError(f"{', '.join(sources)} knows its architecture; leave out --arch (in Python: architecture=)")
    place = None if folder is None else BenchFolder(folder)
    if place is not None:
        place.check({})
    loaded = _load_data(sources, data, data_folder, progress)
    progress.close()
    missing = {route.name: how for route in chosen if (how := route.missing())}
    here = [route for route in chosen if route.name not in missing]
    if not here:
        raise InputError(f"none of these routes is installed: {'; '.join(f'{k}: {v}' for k, v in missing.items())}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as work, _many_compilations(here):
        lanes: list[_Lane] = []
        for name, source in sources.items():
            own = copy.deepcopy(source) if isinstance(source, nn.Module) else source  # the user's stays as it is
            fresh = copy.deepcopy(architecture) if name in built else None
            network = load_model(own, loaded, architecture=fresh).cpu()
            stand = _Stand.of(name, network, loaded, batch, images, Path(work))
            for route in here:
                progress.say(f"preparing {name} for {route.label}")
                more, able = stand.enter(route, counts, memory)
                rows, lanes = rows + more, lanes + able
        lanes.sort(key=lambda lane: int(lane.row["threads"]))  # threads that others leave waiting disturb them
        _time_in_turns(lanes, seconds, progress)
    about = {
        "device": processor(),
        "cores": _cores(),
        "data": loaded.name,
        "images": min(images, len(loaded.test)),
        "batch": min(batch, len(loaded.test)),
        "seconds": seconds,
        "busyness": _busyness(lanes),
        "versions": {"pwoa": __version__, "torch": torch.__version__},
    }
    result = Bench(tuple(rows), missing, about, None if place is None else place.path)
    if place is not None:
        with place.held():
            place.make()
            place.write_json(RESULT, {**about, "rows": rows, "missing": missing, "fastest": result.sentences})
    return result


class BenchFolder(Folder):
    """The folder of a benchmark: its result, and a plot. The next one replaces it."""

    kind = "benchmark"
    marks = (RESULT,)

    @property
    def started(self) -> bool:
        """Whether it holds the result of a benchmark, and not that of a run."""
        return super().started and {"rows", "missing", "fastest"} <= self.read_json(RESULT).keys()


@dataclass
class _Lane:
    """What is timed in a turn: a call with so many images, each time the next ones."""

    row: Row
    route: Route
    call: Call
    batches: Sequence[np.ndarray]
    times: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)

    def turn(self, seconds: float) -> None:
        """Call once, for what others have pushed out of the caches, then take times for so long."""
        own = time.process_time if self.row["threads"] == 1 else time.perf_counter
        with self.route.threads(self.row["threads"]):
            self.call(self.batches[0])
            begin = before = time.perf_counter()
            while before - begin < seconds or before == begin:
                x = self.batches[len(self.times) % len(self.batches)]
                start = own()
                self.call(x)
                self.times.append(own() - start)
                now = time.perf_counter()
                self.clock.append(now - before)
                before = now

    def note(self) -> None:
        """Write what the times come to into the row."""
        middle, batch = median(self.times), len(self.batches[0])
        self.row.setdefault("images_per_second", round(batch / middle, 2))
        if batch == 1:
            high = quantiles(self.times, n=20, method="inclusive")[-1] if len(self.times) > 1 else middle
            self.row |= {"milliseconds": round(1000 * middle, 5), "milliseconds_95": round(1000 * high, 5)}


@dataclass(frozen=True)
class _Stand:
    """A model with images to try it on: the first `images` of `x` are those that its answers are compared on."""

    name: str
    task: Task
    x: Tensor
    images: int
    batch: int

    @classmethod
    def of(cls, name: str, network: nn.Module, data: Data, batch: int, images: int, work: Path) -> _Stand:
        x, calibration = _floats(data.test, max(images, batch)), _floats(data.train, CALIBRATION)
        sample = x[:1].repeat(2, 1, 1, 1) if len(x) == 1 else x[:2]
        task = Task(network, data.classes, sample, calibration, Path(tempfile.mkdtemp(dir=work)))
        return cls(name, task, x, images, min(batch, len(x)))

    def enter(self, route: Route, counts: Sequence[int], memory: bool) -> tuple[list[Row], list[_Lane]]:
        """Write the network for a route and check its answers; return a row for each number of threads, and lanes."""
        head = {"model": self.name, "route": route.name, "label": route.label, "exact": route.exact}
        x, network = self.x, self.task.model
        rows, lanes = [], []
        try:
            artefact = route.write(self.task)
            size = {"bytes": artefact.bytes, **_multiply_adds(network, x[:1])}
            size["memory"] = peak_memory(route.name, artefact, counts[0], x.shape[1:]) if memory else None
            for threads in counts:
                row: Row = {**head, "threads": threads, **size}
                with route.threads(threads):
                    call = route.open(artefact, threads)
                    row |= compared(call, network, x[: self.images], self.batch)
                rows.append(row)
                sizes = dict.fromkeys((self.batch, 1))  # the throughput is that of the first
                lanes += [_Lane(row, route, call, _batches(x.numpy(), n)) for n in sizes]
        except Exception as error:  # of a user's own network, or of any of these libraries
            return [{**head, "threads": threads, "error": first_line(error)} for threads in counts], []
        return rows, lanes


def _batches(x: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut images into batches of one size; what is left over takes no part."""
    return [np.ascontiguousarray(x[first : first + size]) for first in range(0, len(x) - size + 1, size)]


def _time_in_turns(lanes: Sequence[_Lane], seconds: float, progress: Progress) -> None:
    """Give every lane its turn, round after round, and write down what came out."""
    share = seconds / max(len(lanes) * ROUNDS, 1)
    progress.start("timing", len(lanes) * (ROUNDS + 1))
    for lane in lanes:
        lane.turn(0.0)  # torch compiles in the first call
        lane.times.clear()
        lane.clock.clear()
        progress.advance()
    for number in range(ROUNDS):
        for lane in lanes if number % 2 else reversed(lanes):
            lane.turn(share)
            progress.advance()
    progress.close()
    for lane in lanes:
        lane.note()


def _busyness(lanes: Sequence[_Lane]) -> float:
    """Return how many times as long as the processor's time the clock's was, for one thread; 1 on a quiet machine."""
    ratios = [median(lane.clock) / max(median(lane.times), 1e-9) for lane in lanes if lane.row["threads"] == 1]
    return round(median(ratios), 2) if ratios else 1.0


def compared(call: Call, network: nn.Module, x: Tensor, batch: int) -> Row:
    """Tell how far a route's answers are from the network's: `max_difference` and `same_class`, as a row has them."""
    parts = torch.split(x, batch)
    with torch.inference_mode():
        wanted = torch.cat([as_logits(network)(part) for part in parts])
    found = torch.cat([torch.from_numpy(np.array(call(part.numpy()))) for part in parts])
    if found.shape != wanted.shape:
        raise InputError(f"it answers with a shape of {tuple(found.shape)}, not {tuple(wanted.shape)}")
    largest = float(wanted.abs().max()) or 1.0
    same = float((found.argmax(1) == wanted.argmax(1)).double().mean())
    return {"max_difference": float((found - wanted).abs().max()) / largest, "same_class": same}


def _multiply_adds(network: nn.Module, x: Tensor) -> Row:
    """Count the multiply-adds for an image, of all weights of layers and of those that are not zero."""
    if isinstance(network, CModel):
        return {"macs": network.call.artefact.get("multiply_adds"), "macs_dense": None}
    whole = count_multiply_adds(network, x)[-1]
    return {"macs": whole.kept, "macs_dense": whole.total} if whole.total else {"macs": None, "macs_dense": None}


def processor() -> str:
    """Return what this machine's processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _floats(images: Images, n: int) -> Tensor:
    few = images.first(n)
    return few.batch(torch.arange(len(few), device=few.labels.device))[0].cpu()


def _named(row: Row) -> str:
    return f"{row['label']} ({row['milliseconds']:.3g} ms)"


@contextmanager
def _many_compilations(routes: Sequence[Route]) -> Iterator[None]:
    """Let torch compile the same code for many models, batches and numbers of threads, if it is to compile at all."""
    if not any(route.name == "torch-compiled" for route in routes):
        yield
        return
    with torch._dynamo.config.patch(recompile_limit=COMPILATIONS, accumulated_recompile_limit=COMPILATIONS):
        yield
    torch._dynamo.reset()


def _check_numbers(seconds: float, batch: int, images: int) -> None:
    if not (isinstance(seconds, (int, float)) and math.isfinite(seconds) and seconds > 0):
        raise InputError(f"seconds = {seconds!r}; give a number above 0")
    for name, value in (("batch", batch), ("images", images)):
        if type(value) is not int or value < 1:
            raise InputError(f"{name} = {value!r}; give a whole number of 1 or more")


def _counts(threads: str | int | Sequence[int | str]) -> list[int]:
    """Read numbers of threads, each once, from a list or `1,all`."""
    given = threads.split(",") if isinstance(threads, str) else [threads] if isinstance(threads, int) else threads
    counts = []
    for one in given:
        text = str(one).strip()
        if text != ALL and not (text.isdecimal() and 0 < int(text) <= 1024):
            raise InputError(f"threads = {text!r}; give numbers of 1 or more, or all, as 1,all")
        counts.append(_cores() if text == ALL else int(text))
    return list(dict.fromkeys(counts))


def _sources(models: Source | Sequence[Source] | Mapping[str, Source], teacher: Source | None) -> dict[str, Source]:
    """Return the models by name, the teacher first; a run that `prune` returned goes by its folder."""
    named: dict[str, Source] = {} if teacher is None else {TEACHER: teacher}
    if isinstance(models, Mapping):
        return named | dict(models)
    for model in [models] if isinstance(models, (str, os.PathLike, nn.Module)) else models:
        name = type(model).__name__ if isinstance(model, nn.Module) else os.fspath(model)
        number = sum(known == name or known.startswith(f"{name} (") for known in named)
        named[f"{name} ({number + 1})" if number else name] = model
    if not named:
        raise InputError("no model is given; give one or more")
    return named


def _load_data(sources: Mapping[str, Source], data: Any, data_folder: str | Path | None, progress: Progress) -> Data:
    if data is None:
        paths = [source for source in sources.values() if not isinstance(source, nn.Module)]
        run = next(filter(None, map(_run_of, paths)), None)
        if run is None:
            for path in paths:
                refuse_missing(path)
            raise InputError("no model is a run, which knows its data; give --data NAME (in Python: data=)")
        recorded = recorded_recipe(run).data
        if recorded.name == "custom":
            raise InputError(f"{run} was made from data given in Python; give them again: --data (in Python: data=)")
        data, data_folder = recorded.name, data_folder or recorded.folder or None
    return load_data(data, data_folder=data_folder, progress=progress.reach)


def _run_of(path: str | os.PathLike[str]) -> Path | None:
    """Return the run that a model is, or that an exported one was made from and lies in, as `evaluate` finds it."""
    name = os.fspath(path)
    return Path(name) if records_recipe(name) else twin_of(name)
