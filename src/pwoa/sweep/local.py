"""Runs on the devices of this machine, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from threading import Event

import torch

from pwoa.sweep.task import Task


def run_here(tasks: Sequence[Task], ended: Callable[[Task, str | None], None], jobs: int = 0, retries: int = 0) -> None:
    """Carry out all tasks, `jobs` at a time (0: one a GPU, or one); `ended` is told each task's failure, or None.

    A process that is killed is started again up to `retries` times. Ctrl-C stops them all, to be resumed.
    """
    places = environments(jobs)
    free: SimpleQueue[dict[str, str]] = SimpleQueue()
    for place in places:
        free.put(place)
    running: set[subprocess.Popen[bytes]] = set()
    stopping = Event()

    def once(task: Task, environment: dict[str, str]) -> int:
        command = [sys.executable, "-m", "pwoa", *task.arguments]
        with task.log.open("wb") as log:
            process = subprocess.Popen(
                command, env=os.environ | environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        running.add(process)
        if stopping.is_set():
            process.send_signal(signal.SIGINT)
        code = process.wait()
        running.discard(process)
        return code

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
            killed = f"killed by signal {-code}, {1 + retries} times"
            ended(task, None if code == 0 else task.reason() if code > 0 else killed)

    pool = ThreadPoolExecutor(len(places))
    try:
        for _ in pool.map(carry_out, tasks):
            pass
    except BaseException:
        stopping.set()
        for process in list(running):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def environments(jobs: int) -> list[dict[str, str]]:
    """What each of the runs at a time has in its environment: the one GPU it sees, or its share of the cores."""
    gpus = torch.cuda.device_count()
    if not gpus:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return [{"OMP_NUM_THREADS": str(max(1, cores // jobs))} for _ in range(jobs)] or [{}]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = visible if len(visible) == gpus and all(visible) else [str(number) for number in range(gpus)]
    return [{"CUDA_VISIBLE_DEVICES": names[number % gpus]} for number in range(jobs or gpus)]
