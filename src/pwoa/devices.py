"""Which device a run uses, with how many threads, and what it is called in a result."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from pwoa.errors import InputError, counted, first_line

_KINDS = ("cpu", "cuda")


def choose_device(name: str) -> torch.device:
    """Return the named device; `auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type in _KINDS:
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"device {name!r} cannot be used: {first_line(error)}") from None
    if device.type not in _KINDS:
        raise InputError(f"device {name!r} cannot be used: only {' and '.join(_KINDS)} can")
    return device


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or the CPU's architecture and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {counted(torch.get_num_threads(), 'thread')}"


def choose_threads(seconds: float = 0.1) -> int:
    """Return how many threads to compute with: as many as there are cores that nobody else uses, at least one.

    Threads that share a core wait for each other at every step: two on one free core were eight times slower than one.
    OMP_NUM_THREADS, where it is set, is left as it is. seconds: how long is looked how busy the cores are.
    """
    usual = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ or usual == 1:
        return usual
    return max(1, int(min(usual, _granted_cores(), round(_idle_cores(seconds)))))


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Compute on the CPU with so many threads while inside."""
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


_CGROUP = Path("/sys/fs/cgroup")
_STAT = Path("/proc/stat")


def _granted_cores() -> float:
    """Return how many cores' worth of time the system grants this container; no limit where it says none."""
    for file in ("cpu.max", "cpu/cpu.cfs_quota_us"):
        with suppress(OSError, ValueError):
            quota, _, period = (_CGROUP / file).read_text().partition(" ")
            period = period or (_CGROUP / "cpu" / "cpu.cfs_period_us").read_text()
            if float(quota) > 0:
                return float(quota) / float(period)
    return float("inf")


def _idle_cores(seconds: float) -> float:
    """Return how many of the cores that this process may use were idle in the time that it waits here."""
    before = _core_times()
    time.sleep(seconds if before else 0)
    pairs = [(then, now) for then, now in zip(before, _core_times(), strict=False) if now[1] > then[1]]
    return sum((now[0] - then[0]) / (now[1] - then[1]) for then, now in pairs) if pairs else float(os.cpu_count() or 1)


def _core_times() -> list[tuple[float, float]]:
    """Return for each core that this process may use how long it was idle, and in all, where the system tells."""
    times: list[tuple[float, float]] = []
    with suppress(OSError, ValueError, AttributeError):
        allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        for name, *fields in map(str.split, _STAT.read_text().splitlines()):
            if name in allowed:
                values = [float(field) for field in fields[:8]]
                times.append((values[3] + values[4], sum(values)))
    return times


@contextmanager
def float32_products() -> Iterator[None]:
    """While inside, products of float32 matrices on a GPU are float32, not TF32."""
    matmul = torch.backends.cuda.matmul
    allowed = matmul.allow_tf32
    matmul.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32 = allowed


@contextmanager
def exact_float32() -> Iterator[None]:
    """While inside, float32 on a GPU is float32 (not TF32), and the same input gives the same bits."""
    cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with float32_products(), cudnn:
        yield
