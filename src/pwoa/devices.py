"""Which device a run uses, and what it is called in a result."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager

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
