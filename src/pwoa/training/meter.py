"""What is written down of an epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from pwoa.training.processes import Processes
from pwoa.training.stage import Loss


class Meter:
    """Means of a loss and its parts over batches, kept on the device and read once an epoch."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._images = 0

    @torch.no_grad()
    def add(self, loss: Loss, labels: Tensor) -> None:
        correct = (loss.logits.argmax(1) == labels).float().mean() * 100
        for name, value in {"loss": loss.total, **loss.parts, "accuracy": correct}.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=torch.float64, device=value.device)
            self._sums[name] += value.detach().double() * len(labels)

    def count(self, images: int) -> None:
        """So many images have been added; apart, since a replayed step adds on the device alone."""
        self._images += images

    def means(self, processes: Processes) -> dict[str, float]:
        """Over the batches of all processes; what follows is counted from 0."""
        names = sorted(self._sums)
        sums = torch.stack([*(self._sums[name] for name in names), self._sums["loss"].new_full((), self._images)])
        processes.add([sums])
        *values, images = sums.tolist()
        for kept in self._sums.values():
            kept.zero_()
        self._images = 0
        found = dict(zip(names, values, strict=True))
        return {name: found[name] / images for name in self._sums}
