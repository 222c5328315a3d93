"""Images that live on one device as one tensor, the data set made of two of them, and augmentation of whole batches."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from pwoa.errors import InputError, counted


@dataclass(frozen=True, repr=False)
class Images:
    """A split of a data set: pixels [N, C, H, W], uint8 or float32 in [0, 1], and labels [N], int64."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'image')} of {'×'.join(map(str, self.pixels.shape[1:]))}>"

    def to(self, device: torch.device | str) -> "Images":
        """Return the images on another device."""
        return Images(self.pixels.to(device), self.labels.to(device))

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return float32 images in [0, 1] and their labels; `index` must be on the device of the images."""
        return as_float(self.pixels.index_select(0, index)), self.labels.index_select(0, index)

    def first(self, n: int) -> "Images":
        """Return the first n images, or all of them where there are fewer."""
        if n < 1:
            raise InputError(f"cannot take the first {n} images: give a number of 1 or more")
        return Images(self.pixels[:n], self.labels[:n])


_HASH = "_sha256"
"""Where a data set keeps its hash, once somebody has asked for it."""


@dataclass(frozen=True, repr=False)
class Data:
    """A data set: training and test images of one shape, with labels 0 … classes − 1."""

    name: str
    train: Images
    test: Images
    classes: int

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.train.pixels.shape[1:]))
        counts = f"{counted(len(self.train), 'training image')} and {counted(len(self.test), 'test image')}"
        return f"<Data {self.name}: {counts} of {shape}, {counted(self.classes, 'class', 'classes')}>"

    def split(self, validation: int, seed: int, images: int = 0) -> tuple[Tensor, Tensor]:
        """Return indices into `train`: the part to train on, and `validation` held-out ones in random order.

        The first so many held-out images are then a fair sample, also of data that is sorted by class. Both are of
        `images` training images (0: all), of each class as many as of the others as far as there are.
        """
        total = len(self.train)
        if images > total:
            raise InputError(
                f"{self.name} has {counted(total, 'training image')}: set data.images to at most that, or to 0 for all"
            )
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        if images:
            order, total = _balanced(order, self.train.labels.cpu(), images), images
        if not 0 <= validation < total:
            raise InputError(
                f"cannot hold out {validation} of the {counted(total, 'training image')} of {self.name}: "
                f"set data.validation to fewer, such as {max(1, total // 10)}"
            )
        device = self.train.labels.device
        return order[validation:].sort().values.to(device), order[:validation].to(device)

    def fingerprint(self) -> str:
        """Return a SHA-256 of all images and labels, which tells two data sets of one name apart."""
        return self._sha256

    @cached_property
    def _sha256(self) -> str:
        digest = hashlib.sha256()
        for images in (self.train, self.test):
            for values in (images.pixels, images.labels):
                digest.update(f"{tuple(values.shape)}{values.dtype}".encode())
                digest.update(values.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> "Data":
        """Return the data set on another device; where its hash is known, it need not be computed again there."""
        moved = Data(self.name, self.train.to(device), self.test.to(device), self.classes)
        if _HASH in vars(self):
            vars(moved)[_HASH] = self._sha256
        return moved


def _balanced(order: Tensor, labels: Tensor, images: int) -> Tensor:
    """Return so many of the positions in `order`, in that order, of each class as many as of the others."""
    by_class = labels[order].argsort(stable=True)
    sizes = labels.bincount()
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    place_in_class = torch.empty_like(order)
    place_in_class[by_class] = torch.arange(len(order)) - starts
    return order[place_in_class.argsort(stable=True)[:images].sort().values]


def as_float(pixels: Tensor) -> Tensor:
    """Return pixels as float32 in [0, 1]."""
    return pixels.to(torch.float32) / 255 if pixels.dtype == torch.uint8 else pixels


def crop_and_flip(x: Tensor, generator: Generator, padding: int = 4, reflect: bool = False) -> Tensor:
    """Shift each image of x [N, C, H, W] by up to `padding` pixels, mirror half of them.

    Zeros come in at the edge, or with `reflect` the image itself, mirrored there. `generator` must be on x's device.
    """
    n, channels, height, width = x.shape

    def draw(choices: int) -> Tensor:
        return torch.randint(choices, (n, 1), generator=generator, device=x.device)

    def count(size: int) -> Tensor:
        return torch.arange(size, device=x.device)

    rows = count(height) + draw(2 * padding + 1)
    columns = count(width) + draw(2 * padding + 1)
    columns = torch.where(draw(2) == 1, columns.flip(1), columns)
    if reflect:
        rows, columns = (_reflected(at - padding, size) for at, size in ((rows, height), (columns, width)))
    else:
        x = pad(x, (padding,) * 4)
    image, channel = count(n)[:, None, None, None], count(channels)[:, None, None]
    return x[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _reflected(at: Tensor, size: int) -> Tensor:
    """Return positions inside an edge for those beyond it, as in a mirror; the edge itself is there once."""
    period = max(2 * (size - 1), 1)
    at = at % period
    return torch.where(at < size, at, period - at)


AUGMENTATIONS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "none": lambda x, generator: x,
    "crop-flip": crop_and_flip,
    "reflect-flip": partial(crop_and_flip, reflect=True),
}
