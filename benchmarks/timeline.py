"""Show where the seconds of one command go, the loading of modules included: a tree of functions.

    python -m benchmarks.timeline prune --recipe cifar10-robust --checkpoint trades.pt --rate 4 --out runs/timed

The main thread's stack is looked at fifty times a second. A function that spends nearly all its time in one other is
left out, and so is all that takes less than a hundredth of the whole. Work on a GPU counts where the host waits for it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType

EVERY = 0.02
_LEAST = 0.01
_PASSES_ON = 0.93
_LOADER = "importlib"


@dataclass
class Spent:
    """Seconds in a function, and in those that it called."""

    seconds: float = 0.0
    inside: dict[str, Spent] = field(default_factory=dict)

    def add(self, stack: list[str], seconds: float) -> None:
        """Count seconds for a stack, the outermost function first."""
        self.seconds += seconds
        if stack:
            self.inside.setdefault(stack[0], Spent()).add(stack[1:], seconds)

    def lines(self, least: float, depth: int = 0) -> Iterator[str]:
        """Yield a line for each function in which at least so many seconds were spent, those inside indented."""
        for name, spent in self.inside.items():
            if spent.seconds < least:
                continue
            passed_on = max((inner.seconds for inner in spent.inside.values()), default=0.0)
            if passed_on > _PASSES_ON * spent.seconds:
                yield from spent.lines(least, depth)
            else:
                yield f"{spent.seconds:7.2f} s  {'  ' * depth}{name}"
                yield from spent.lines(least, depth + 1)


def timeline(run: Callable[[], object]) -> Spent:
    """Run something, and return where the time of this thread went."""
    whole, watched, over = Spent(), threading.get_ident(), threading.Event()

    def look() -> None:
        before = time.perf_counter()
        while not over.wait(EVERY):
            stack = _stack(sys._current_frames().get(watched))
            now = time.perf_counter()
            whole.add(stack, now - before)
            before = now

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    try:
        run()
    finally:
        over.set()
        watching.join()
    return whole


def _stack(frame: FrameType | None) -> list[str]:
    """Return the functions that are being run, the outermost first; one that calls itself once."""
    names: list[str] = []
    while frame is not None:
        name = _name(frame.f_code)
        if _LOADER not in name and names[-1:] != [name]:
            names.append(name)
        frame = frame.f_back
    return names[::-1]


def _name(code: CodeType) -> str:
    file = code.co_filename
    for root in ("-packages/", "/src/"):
        file = file.rpartition(root)[2]
    return f"{file}:{code.co_qualname}"


def main() -> None:
    """Run the command that is given, and print its timeline."""
    from pwoa.cli import main as command

    def run() -> None:
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise

    sys.argv[0] = "pwoa"
    whole = timeline(run)
    print("\n".join(whole.lines(_LEAST * whole.seconds)))


if __name__ == "__main__":
    main()
