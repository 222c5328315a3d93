"""What is measured after each epoch for the record, whatever the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from pwoa.models import hidden_points, recording
from pwoa.objectives import bottleneck
from pwoa.training.material import Material

IMAGES = 512


def hsic_plane(
    model: nn.Module, material: Material, points: Sequence[str], normalised: bool
) -> Callable[[], Mapping[str, float]]:
    """HSIC(X, Z_L) and HSIC(Y, Z_L) of the last hidden activation on validation images (the HSIC plane)."""
    x, y = material.images.batch(material.validation[:IMAGES])
    last = hidden_points(model, x[:2], points)[-1:]

    @torch.no_grad()
    def measure() -> Mapping[str, float]:
        if not last:
            return {}
        model.eval()
        with recording(model, last) as hidden:
            model(x)
        found = bottleneck(x, y, [hidden[name] for name in last], normalised)
        return {"hsic_x_last": found.x.item(), "hsic_y_last": found.y.item()}

    return measure
