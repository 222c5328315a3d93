"""A stand-in for CUDA graphs on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Stands in for a CUDA graph: the operations with the numbers and the tensors that they had when it was recorded.

    What Python computed in between is not done again, so that a number that has changed since is a stale one. Where a
    CUDA graph is recorded without being done, this one is done; `done` says that the first replay has nothing to do.
    """

    def __init__(self, done: bool = True) -> None:
        super().__init__()
        self._operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self._done = done

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._operations.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, result in [] if self._done else self._operations:
            again = func(*args, **kwargs)
            if not any(value.alias_info for value in func._schema.returns):
                for place, value in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(place, torch.Tensor):  # backward passes leave some out
                        place.copy_(value)
        self._done = False
