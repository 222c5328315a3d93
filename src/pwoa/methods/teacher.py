"""What the teacher says of a batch: natural or mixed, looked up where it can be."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pwoa.models import LogitModel, as_logits, forward_model
from pwoa.training import Batch, Material

CHUNK = 1000


def teacher_logits(
    teacher: nn.Module, material: Material, fast: bool = False, moving: bool = False
) -> Callable[[Batch], Tensor]:
    """What the teacher says of a batch, without a graph; looked up where images are never augmented or `moving`."""
    device = material.images.pixels.device
    logits = as_logits(teacher, material.classes)
    if material.augment == "none" and not moving:
        return _table(logits, material)
    if fast:
        logits = forward_model(teacher, material.images.batch(material.validation[:CHUNK])[0], material.classes)

    @torch.no_grad()
    def ask(batch: Batch) -> Tensor:
        with torch.autocast(device.type, enabled=False):  # a fast copy has the precision it was made with
            return logits(batch.x)

    return ask


def _table(logits: LogitModel, material: Material) -> Callable[[Batch], Tensor]:
    """What the teacher says of each training image, computed when it is first asked for, in float32."""
    table: list[Tensor] = []

    @torch.no_grad()
    def look_up(batch: Batch) -> Tensor:
        if not table:
            positions = torch.arange(len(material.images), device=material.images.pixels.device)
            with torch.autocast(positions.device.type, enabled=False):
                rows = [logits(material.images.batch(part)[0]) for part in torch.split(positions, CHUNK)]
            table.append(torch.cat(rows))
        return table[0][batch.index]

    return look_up
