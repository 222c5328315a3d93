"""What the torture shares: a tiny run that ends in a second, children that die or fail at an event, and the figures.

A trial is carried out in a fork of this process, which has torch loaded already. The child counts what it asks of the
file system (files opened for writing, renamed, removed, made), and at a given event it is killed, or the event fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "results" / "torture.json"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "fsync")
SECONDS = 300
"""After which a child hangs; a busy machine needs a minute to start a sweep."""
TIMES = ("seconds", "checksum")


@dataclass
class Part:
    """A part of the torture: how many trials, and what each violation was. Of all there are, every n-th is tried."""

    name: str
    every: int = 1
    offered: int = 0
    tried: int = 0
    violations: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def due(self) -> bool:
        """Tell whether the next trial is one of those that are tried."""
        self.offered += 1
        return not self.offered % self.every

    def note(self, trial: str, violation: str) -> None:
        """Count a trial, and what went wrong in it if anything did."""
        self.tried += 1
        if not self.tried % 100:
            print(f"{self.name}: {self.tried} tried, {len(self.violations)} violations", file=sys.stderr, flush=True)
        if violation:
            self.violations.append(f"{trial}: {violation}")

    def row(self) -> dict[str, Any]:
        seconds = round(time.perf_counter() - self.began, 1)
        return {"part": self.name, "tried": self.tried, "violations": len(self.violations), "seconds": seconds}


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code (negative for a signal), what it printed, and how many events it came to."""

    code: int
    output: str
    events: int

    @property
    def one_line(self) -> bool:
        """Whether it ended as a bad input does: one line of an error, and exit code 2."""
        errors = [line for line in self.output.splitlines() if line.startswith("error: ")]
        return self.code == 2 and len(errors) == 1 and "Traceback" not in self.output


def attempt(work: Callable[[], object], folder: Path, at: int | None = None, fault: int | None = None) -> Ended:
    """Do some work in a child, which at its event number `at` is killed, or meets the fault (an errno)."""
    log, count = folder / "output.txt", folder / "events.txt"
    for file in (log, count):
        file.write_bytes(b"")
    child = os.fork()
    if not child:
        _be_child(work, log, count, at, fault)
    end = time.monotonic() + SECONDS
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Ended(-1, f"it did not end in {SECONDS} s", 0)
        time.sleep(0.002)
    return Ended(os.waitstatus_to_exitcode(status), log.read_text(errors="replace"), count.stat().st_size)


def _be_child(work: Callable[[], object], log: Path, count: Path, at: int | None, fault: int | None) -> None:
    """Carry out the work and leave; nothing of the parent's is run on the way out."""
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(descriptor, number)
        sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
        _listen(os.open(count, os.O_WRONLY | os.O_APPEND), at, fault)
        code = _ended(work)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _ended(work: Callable[[], object]) -> int:
    """Return the exit code that the command line would have."""
    from pwoa.errors import explain

    try:
        work()
    except SystemExit as end:
        return int(end.code or 0)
    except Exception as error:
        line = explain(error)
        os.write(2, (f"error: {line}\n" if line else traceback.format_exc()).encode())
        return 2 if line else 70
    return 0


def _listen(count: int, at: int | None, fault: int | None) -> None:
    """Count the events of this process; at one of them be killed, or let it fail."""
    seen, inside, fsync = 0, False, os.fsync

    def event(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen, inside
        opened = name == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        if inside or not (name in EVENTS or opened) or str(arguments[0]).startswith("/dev/"):
            return
        inside = True
        os.write(count, b".")
        inside, seen = False, seen + 1
        if at is not None and seen == at + 1:
            if fault is None:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(fault, os.strerror(fault or 0))

    def synchronise(descriptor: int) -> None:
        event("fsync", (descriptor,))
        fsync(descriptor)

    os.fsync = synchronise  # type: ignore[assignment]
    sys.addaudithook(event)


def content(folder: Path) -> dict[str, Any]:
    """Return what is in a folder, by name, without what a clock says."""
    from pwoa.evaluation.scores import load_verdicts

    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            found[name] = None
        elif path.suffix == ".json":
            found[name] = timeless(json.loads(path.read_text(encoding="utf-8")))
        elif path.suffix == ".jsonl":
            found[name] = [timeless(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        elif path.name == "verdicts.safetensors":
            right, about = load_verdicts(path)
            found[name] = {attack: verdicts.tolist() for attack, verdicts in right.items()} | {"about": about}
        elif path.suffix != ".log":
            found[name] = path.read_bytes()
    return found


def timeless(value: Any) -> Any:
    """Return a value of JSON without what takes another time each time."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if not key.endswith(TIMES)}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Name the first file in which two folders differ; nothing if they are the same."""
    names = [name for name in sorted({*one, *other}) if one.get(name, 0) != other.get(name, 0)]
    return f"{names[0]} is not what an undisturbed one has" if names else ""


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """Give an empty folder for a trial, and remove it afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_digits(folder: Path, train: int = 120, test: int = 20) -> Path:
    """Write a folder of images of digits, as a user may have one."""
    from PIL import Image

    from pwoa.data.load import load_data

    data = load_data("mnist-mini")
    for split, images, n in (("train", data.train, train), ("test", data.test, test)):
        for i in range(n):
            target = folder / split / str(int(images.labels[i]))
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.pixels[i, 0].numpy()).save(target / f"{i:04}.png")
    return folder


SETTINGS: dict[str, Any] = {
    "data.validation": 24,
    "threat.radius": 0.05,
    "threat.step": 0.0125,
    "search.epochs": 1,
    "search.interval": 1,
    "finetune.epochs": 1,
    "pretrain.epochs": 2,
    "pretrain.steps": 2,
    "teacher.minimum": 0,
    "training.batch": 32,
    "training.device": "cpu",
    "training.checkpoint_seconds": 0.0,
    "evaluation.attacks": ["natural", "pgd2"],
    "evaluation.batch": 24,
    "evaluation.checks": False,
}


class Bench:
    """The tiny material of all trials: images of three classes, a network, and one call for each thing that is done."""

    def __init__(self) -> None:
        import torch

        from pwoa.data.load import load_data
        from pwoa.evaluation import folder as evaluation_folder
        from tests.conftest import TinyNet, _images

        torch.set_num_threads(1)
        evaluation_folder.SAVE_SECONDS = 0.0
        self.data = load_data((_images(96, 0), _images(48, 1)))
        torch.manual_seed(0)
        self.teacher = TinyNet().eval()

    def run(self, method: str, folder: Path, **settings: Any) -> None:
        """Prune or train by a method."""
        from pwoa.methods import find_method
        from pwoa.recipe.sections import Recipe
        from pwoa.runs.pretrain import pretrain
        from pwoa.runs.prune import prune

        recipe = Recipe().with_settings(SETTINGS | {"method": method} | settings)
        if find_method(method).prunes:
            prune(self.teacher, self.data, recipe=recipe, folder=folder, force=True)
        else:
            pretrain(self.teacher, self.data, recipe=recipe, folder=folder)

    def evaluate(self, folder: Path, **settings: Any) -> None:
        """Measure the network."""
        from pwoa.evaluation.evaluate import evaluate
        from pwoa.threat import Threat

        chosen: dict[str, Any] = {"attacks": "natural,pgd2,apgd-ce", "batch": 16, "checks": False, "radii": [0.02]}
        evaluate(self.teacher, self.data, threat=Threat("linf", 0.05, 0.0125), folder=folder, **(chosen | settings))


def report(part: Part) -> int:
    """Print the figures and the violations of a part, and put its row into results/torture.json."""
    from pwoa.storage.folder import save_rows

    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    save_rows(RESULTS, [*(row for row in rows if row["part"] != part.name), part.row()])
    return show(part)


def show(part: Part) -> int:
    """Print the figures and the violations of a part; return the exit code."""
    print(json.dumps(part.row()))
    for violation in part.violations:
        print(violation)
    return 1 if part.violations else 0


def main(torture: Callable[[bool, int], Part]) -> None:
    """Carry out a part as the command line says: whole, with a row in results/torture.json, or its short form."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="few trials, and no row")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the trials every N-th only")
    options = parser.parse_args()
    part = torture(options.short, options.every)
    sys.exit(show(part) if options.short else report(part))
