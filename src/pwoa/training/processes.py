"""Many processes, one result: each takes its part of every batch, and gradients are averaged.

Started by torchrun, which says by environment variables how many processes there are and which one this is. Alone,
everything here does nothing.
"""

import gc
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

from pwoa.errors import InputError, ProcessDied

T = TypeVar("T")

DIED = "another process of this run died or does not answer; start the same command again to resume"
PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others before it takes them for dead."""


@dataclass(frozen=True)
class Processes:
    """This process among all of the run's."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def share(self, images: int) -> slice:
        """Return which images of a batch are this process's."""
        size = images // self.count
        return slice(self.rank * size, (self.rank + 1) * size)

    def check_batch(self, batch: int, group: int) -> None:
        """Refuse a batch whose groups, over which statistics are taken, would be spread over processes."""
        own = batch // self.count
        if batch % self.count or own % min(group, batch):
            sharing = f"shared by {self.count} processes" if self.count > 1 else "cut"
            raise InputError(
                f"a batch of {batch} cannot be {sharing} in groups of {group}: "
                f"set training.batch to a multiple of {self.count * group}, or training.group lower"
            )

    @torch.no_grad()
    def average(self, tensors: Iterable[Tensor]) -> None:
        """Return each tensor becomes its mean over the processes; all in one exchange."""
        if self.count > 1:
            self._exchange(list(tensors), 1 / self.count)

    @torch.no_grad()
    def add(self, tensors: Iterable[Tensor]) -> None:
        """Return each tensor becomes its sum over the processes."""
        if self.count > 1:
            self._exchange(list(tensors), 1.0)

    def by_first(self, work: Callable[[], T]) -> T:
        """Return what the first process finds, in all of them; so is an InputError that it raises."""
        if self.count == 1:
            return work()
        box: list[Any] = [None]
        if self.first:
            try:
                box = [work()]
            except InputError as error:
                box = [error]
        with _watching():
            distributed.broadcast_object_list(box, src=0)
        if isinstance(box[0], InputError):
            raise box[0]
        return cast(T, box[0])

    def _exchange(self, tensors: Sequence[Tensor], factor: float) -> None:
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            with _watching():
                distributed.all_reduce(flat)
            pieces = torch.split(flat * factor, [tensor.numel() for tensor in alike])
            for tensor, piece in zip(alike, pieces, strict=True):
                tensor.copy_(piece.view(tensor.shape))


@contextmanager
def connected(device: torch.device) -> Iterator[Processes]:
    """Connect the processes that torchrun started while inside; without torchrun, this one alone."""
    count = _count_processes()
    if count == 1:
        yield Processes()
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise InputError(
            f"WORLD_SIZE is {count}, and {missing[0]} is not set: start several processes with torchrun, or unset it"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)  # objects are exchanged on the current one
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    before = signal.signal(signal.SIGTERM, _stopped)  # which torchrun sends to the others when one has died
    yield Processes(distributed.get_rank(), count)
    signal.signal(signal.SIGTERM, before)
    # After an error the connections are left as they are: torchrun ends all processes at once, and there is just time
    # to say why. Else they are taken down together, and their threads end before the interpreter does.
    with _watching():
        distributed.barrier()
    distributed.destroy_process_group()
    gc.collect()


def _count_processes() -> int:
    """Return how many processes torchrun says that there are."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isascii() or not text.isdigit() or not 1 <= len(text) <= 6 or not int(text):
        raise InputError(f"WORLD_SIZE = {text!r} is no number of processes; unset it, or start them with torchrun")
    return int(text)


def own_device(name: str) -> str:
    """Return the device of this process among those of its machine, where torchrun started several."""
    local = os.environ.get("LOCAL_RANK")
    if local is None or _count_processes() == 1 or name == "cpu" or not torch.cuda.is_available():
        return name
    return f"cuda:{local}"


def _stopped(number: int, frame: object) -> None:
    raise _died()


def _died() -> ProcessDied:
    """Return an error that is raised once: a broken connection and torchrun's signal come at nearly the same time."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return ProcessDied(DIED)


@contextmanager
def _watching() -> Iterator[None]:
    try:
        yield
    except ProcessDied:
        raise
    except RuntimeError as error:
        raise _died() from error
