"""Augmentation of a whole batch where it lies, in one gather."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad


def identity(x: Tensor, generator: Generator) -> Tensor:
    return x


def crop_and_flip(x: Tensor, generator: Generator, padding: int = 4) -> Tensor:
    """Shift each image of x [N, C, H, W] by up to `padding` pixels (zeros come in), mirror half of them.

    `generator` must be on the device of x.
    """
    n, channels, height, width = x.shape

    def draw(choices: int) -> Tensor:
        return torch.randint(choices, (n, 1), generator=generator, device=x.device)

    def count(size: int) -> Tensor:
        return torch.arange(size, device=x.device)

    rows = count(height) + draw(2 * padding + 1)
    columns = count(width) + draw(2 * padding + 1)
    columns = torch.where(draw(2) == 1, columns.flip(1), columns)
    image, channel = count(n)[:, None, None, None], count(channels)[:, None, None]
    return pad(x, (padding,) * 4)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


AUGMENTATIONS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "none": identity,
    "crop-flip": crop_and_flip,
}
