"""Averaged weights (an exponential moving average over steps)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """A running average of a model's weights and buffers; with decay 0 it is the model itself."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._live = [value for value in model.state_dict().values() if value.is_floating_point()]
        self.values: list[Tensor] = [value.clone() for value in self._live] if decay else []

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the model, for all tensors at once."""
        if self._decay:
            torch._foreach_lerp_(self.values, self._live, 1 - self._decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While inside, the model has the averaged weights."""
        if not self._decay:
            yield
            return
        kept = [value.clone() for value in self._live]
        self._copy(self._live, self.values)
        try:
            yield
        finally:
            self._copy(self._live, kept)

    def load(self, values: list[Tensor]) -> None:
        """Take back the `values` of an earlier average."""
        self._copy(self.values, values)

    @staticmethod
    @torch.no_grad()
    def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
