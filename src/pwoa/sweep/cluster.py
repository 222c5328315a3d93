"""Runs over a Ray cluster: one task a run, GPUs as resources, and another node when one is lost."""

import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from pwoa.errors import InputError, first_line
from pwoa.storage.folder import appending
from pwoa.sweep.child import carry_out
from pwoa.sweep.local import PATIENCE, Task


def run_on_ray(
    tasks: Sequence[Task],
    ended: Callable[[Task, str | None], None],
    address: str | None = None,
    retries: int = 0,
    until: float = math.inf,
) -> None:
    """Carry out all tasks on the cluster at an address; `ended` gets each task and its failure, or None.

    Each has one CPU, and one GPU where the cluster has any. A task whose node or process is lost is started again up
    to `retries` times, and resumes its run: all nodes must see this folder and those that the tasks name.
    until: when by `time.monotonic` those that are left are stopped, to be resumed another time.
    """
    ray = _ray()
    connected: bool = ray.is_initialized()
    if not connected:
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(f"no Ray cluster at {address or 'this machine'}: {first_line(error)}") from None
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=retries, max_calls=1)(_on_node)
    waiting: dict[Any, Task] = {}
    for task in tasks:
        places = str(task.recipe), str(task.folder), str(task.log), os.getcwd(), task.teacher and str(task.teacher)
        waiting[remote.remote(*places, task.settings)] = task
    try:
        while waiting:
            left = None if until == math.inf else max(until - time.monotonic(), 0)
            over, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
            if not over:
                _stop(ray, list(waiting))
                break
            (done,) = over
            task = waiting.pop(done)
            try:
                code = ray.get(done)
            except ray.exceptions.RayError as error:
                ended(task, f"{type(error).__name__}: {first_line(error)}")
            else:
                ended(task, task.reason() if code else None)
    finally:
        if not connected:
            ray.shutdown()


def _stop(ray: Any, left: Sequence[Any]) -> None:
    """Stop tasks as Ctrl-C does, and let them save what they are resumed from."""
    for task in left:
        ray.cancel(task)
    ray.wait(left, num_returns=len(left), timeout=PATIENCE)


def _on_node(recipe: str, folder: str, log: str, here: str, teacher: str | None, settings: tuple[str, ...]) -> int:
    """On a node: carry out a run in this very process, which ends with its node; return the exit code."""
    os.chdir(here)
    with TextIOWrapper(appending(Path(log)), "utf-8", "backslashreplace") as file, ExitStack() as inside:
        inside.enter_context(redirect_stdout(file))
        inside.enter_context(redirect_stderr(file))
        return carry_out(Path(recipe), Path(folder), settings, Path(teacher) if teacher else None)


def _knock(address: str | None) -> None:
    """Raise an OSError at once where nobody answers; Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("a sweep over a cluster needs Ray: pip install 'pwoa[ray]'") from None
    return ray
