"""Runs of a sweep on the devices of this machine, each in a process of its own."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Event, Timer, current_thread, main_thread

import torch

from pwoa.errors import Terminated, counted
from pwoa.storage.folder import appending
from pwoa.storage.reading import read_json
from pwoa.sweep.child import ENDED, failure_file

PATIENCE = 10.0
"""Seconds that runs have to stop before they are killed."""

_CHILD = "import sys; from pwoa.sweep.child import main; sys.exit(main())"


@dataclass(frozen=True)
class Task:
    """A run of a sweep: its recipe, its folder, the file for what it prints, and settings that no file may give.

    teacher: where its teacher is measured, once for all runs; a task whose folder that is does nothing else.
    """

    recipe: Path
    folder: Path
    log: Path
    settings: tuple[str, ...] = ()
    teacher: Path | None = None

    @property
    def name(self) -> str:
        """What the run is called in the sweep."""
        return self.folder.name

    def reason(self) -> str:
        """Return why it failed, as it left it in a file; else point to the log."""
        try:
            return str(read_json(failure_file(self.folder))["error"])
        except (ValueError, LookupError, TypeError):
            return f"it ended without a word; see {self.log}"


def run_here(
    tasks: Sequence[Task],
    ended: Callable[[Task, str | None], None],
    jobs: int = 0,
    retries: int = 0,
    until: float = math.inf,
) -> None:
    """Carry out all tasks, `jobs` at a time (0: one for each GPU, or one); `ended` gets each task's failure, or None.

    A process that is killed is started again up to `retries` times. Ctrl-C, SIGTERM and SIGHUP stop them all, to be
    resumed; what does not stop in time, or by a second Ctrl-C, is killed. When this process is killed, they end by
    themselves.
    until: when by `time.monotonic` those that are left are stopped, to be resumed another time.
    """
    places = environments(jobs)
    free: SimpleQueue[dict[str, str]] = SimpleQueue()
    for place in places:
        free.put(place)
    running: set[subprocess.Popen[bytes]] = set()
    stopping = Event()

    def once(task: Task, environment: dict[str, str]) -> int:
        places = str(task.recipe), str(task.folder), str(task.teacher or "")
        command = [sys.executable, "-c", _CHILD, *places, *task.settings]
        with appending(task.log) as log:
            process = subprocess.Popen(
                command,
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with process:
            running.add(process)
            if stopping.is_set():
                process.send_signal(signal.SIGINT)
            code = process.wait()
            running.discard(process)
        return -signal.SIGTERM if code == ENDED else code

    def carry_out(task: Task) -> None:
        environment = free.get()
        try:
            for _ in range(1 + retries):
                code = -1 if stopping.is_set() else once(task, environment)
                if code >= 0 or stopping.is_set():
                    break
        finally:
            free.put(environment)
        if not stopping.is_set():
            killed = f"killed by signal {-code}, {counted(1 + retries, 'time')}"
            ended(task, None if code == 0 else task.reason() if code > 0 else killed)

    def kill() -> None:
        for process in list(running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # each leads a session, and so a group

    def stop() -> None:
        stopping.set()
        for process in list(running):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        with suppress(RuntimeError):  # it runs already
            last.start()

    def interrupt(number: int, frame: object) -> None:
        if stopping.is_set():
            kill()
        else:
            stopping.set()
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    pool = ThreadPoolExecutor(len(places))
    last = Timer(PATIENCE, kill)
    limit = Timer(min(max(until - time.monotonic(), 0), TIMEOUT_MAX), stop)
    limit.daemon = True
    limit.start()
    with _answering(interrupt):
        try:
            for _ in pool.map(carry_out, tasks):
                pass
        except BaseException:
            stop()
            raise
        finally:
            limit.cancel()
            pool.shutdown(cancel_futures=True)
            last.cancel()


@contextmanager
def _answering(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Let the handler answer what asks this process to stop, but for what it ignores (SIGHUP under nohup)."""
    names = ("SIGINT", "SIGTERM", "SIGHUP") if current_thread() is main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: known for number, known in before.items() if known not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def environments(jobs: int) -> list[dict[str, str]]:
    """Return what each of the runs at a time has in its environment: the one GPU it sees, or its share of the cores."""
    gpus = torch.cuda.device_count()
    if not gpus:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return [{"OMP_NUM_THREADS": str(max(1, cores // jobs))} for _ in range(jobs)] or [{}]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = visible if len(visible) == gpus and all(visible) else [str(number) for number in range(gpus)]
    return [{"CUDA_VISIBLE_DEVICES": names[number % gpus]} for number in range(jobs or gpus)]
