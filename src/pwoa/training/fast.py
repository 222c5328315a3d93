"""Speed: compiled networks, and whole training steps replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

BACKEND = "inductor"


@contextmanager
def compiled(model: nn.Module) -> Iterator[None]:
    """While inside, the forward and backward passes of a model, or of several in a ModuleDict, are compiled.

    Each shape of batch has a program of its own. Hooks on parts of the model must be there before the first pass:
    they become a part of the program.
    """
    networks = list(model.values()) if isinstance(model, nn.ModuleDict) else [model]
    for network in networks:
        network.forward = torch.compile(network.forward, backend=BACKEND, dynamic=False)
    try:
        yield
    finally:
        for network in networks:
            del network.forward


class Recorder:
    """Training steps as CUDA graphs: launched as one, whatever the number of kernels in them.

    A step must read what changes from batch to batch from the tensor it is given, and from nowhere else.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._graph: torch.cuda.CUDAGraph | None = None

    def record(
        self, step: Callable[[Tensor], None], example: Tensor, generator: torch.Generator
    ) -> Callable[[Tensor], None]:
        """The step as a graph, for tensors like `example`; recording it does not run it."""
        self._graph = None  # the last one's memory is free again
        graph, given = torch.cuda.CUDAGraph(), example.clone()
        graph.register_generator_state(generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool):
            step(given)
        self._graph = graph

        def replay(values: Tensor) -> None:
            given.copy_(values)
            graph.replay()

        return replay
