from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from pwoa.data.images import Data, Images
from pwoa.data.load import load_data
from pwoa.errors import InputError

X, Y = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
GOOD = (X, Y)


def test_a_data_is_returned_as_it_is() -> None:
    data = Data("mine", Images(X, Y), Images(X, Y), 3)
    assert load_data(data) is data


def test_tensors() -> None:
    data = load_data((GOOD, (X[:2], torch.tensor([4, 0]))))
    assert torch.equal(data.train.pixels, X)
    assert torch.equal(data.test.labels, torch.tensor([4, 0]))
    assert data.classes == 5


def test_images() -> None:
    assert load_data((Images(*GOOD), Images(*GOOD))).classes == 3


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, np.float16])
def test_arrays(dtype: Any) -> None:
    pixels = np.ones((6, 8, 8), dtype)
    pixels.flags.writeable = False
    data = load_data(((pixels, Y.numpy().astype(np.int16)), (pixels[::-1], list(range(6)))))
    assert data.train.pixels.shape == (6, 1, 8, 8)
    assert data.train.pixels.dtype == (torch.uint8 if dtype is np.uint8 else torch.float32)
    assert data.train.labels.dtype == torch.int64


class Samples(Dataset[Any]):
    """Does not end with IndexError, like many a data set."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Any:
        return self.samples[i % len(self.samples)]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y.tolist(), strict=True)


def test_torch_datasets() -> None:
    data = load_data((TensorDataset(X, Y), Stream()))
    assert torch.equal(data.train.pixels, X)
    assert torch.equal(data.test.pixels, X)
    assert torch.equal(data.test.labels, Y)


@pytest.mark.parametrize(("image", "label"), [("image", "label"), ("img", "label"), ("pixel_values", "labels")])
def test_datasets_of_dicts(image: str, label: str) -> None:
    samples = Samples(*({label: int(y), image: x, "id": 7} for x, y in zip(X, Y, strict=True)))
    data = load_data((samples, samples))
    assert torch.equal(data.train.pixels, X)
    assert torch.equal(data.test.labels, Y)


class Flipped(Samples):
    """Has a random transform."""

    def __getitem__(self, i: int) -> Any:
        image, label = super().__getitem__(i)
        return (image.flip(2) if torch.rand(()) < 0.5 else image), label


def test_random_transforms_are_noticed_and_frozen() -> None:
    pairs = [(x, int(y)) for x, y in zip(X, Y, strict=True)]
    torch.manual_seed(0)
    with pytest.warns(
        UserWarning, match=r"images of train change .* read once and stay as they are: .*data\.augment"
    ) as told:
        data = load_data((Flipped(*pairs), Samples(*pairs)))
    assert told[0].filename == __file__
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(data.train.pixels, torch.stack([Flipped(*pairs)[i][0] for i in range(6)]))
    assert torch.equal(drawn, torch.rand(1))


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_datasets_of_pillow_images(mode: str, channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, channels), dtype=np.uint8)
    samples = Samples((Image.fromarray(pixels.squeeze(), mode), 1), (Image.new(mode, (4, 5)), np.int64(0)))
    data = load_data((samples, samples))
    assert torch.equal(data.train.pixels[0], torch.from_numpy(pixels).permute(2, 0, 1))
    assert data.train.labels.tolist() == [1, 0]


def with_pixel(value: float) -> Tensor:
    x = X.clone()
    x[3, 1, 2, 2] = value
    return x


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ((with_pixel(255), Y), r"train images run from .* to 255, .* divide them by 255"),
        ((with_pixel(-2.5), Y), r"train images run from -2.5 to .* move the normalisation into the model"),
        ((with_pixel(float("nan")), Y), "train images run from nan to nan"),
        ((with_pixel(float("inf")), Y), "to inf, not within"),
        ((X.long(), Y), "train images are torch.int64: give uint8"),
        ((X[0, 0], Y), r"train images have shape \(8, 8\): give \[N, C, H, W\]"),
        (
            (X.permute(0, 2, 3, 1), Y),
            r"\(6, 8, 8, 3\), which looks like \[N, H, W, C\]: put the channels second",
        ),
        ((X[:0], Y[:0]), "train images are empty"),
        ((X, Y[:5]), "train has 6 images and 5 labels"),
        ((X, Y.float()), "train labels are torch.float32: give integers"),
        ((X, Y > 1), "train labels are torch.bool"),
        ((X, Y - 1), "train labels go down to -1"),
        ((X, torch.eye(6)), r"train labels have shape \(6, 6\): give one class number an image"),
        ((X, ["cat"] * 6), "train labels: not a tensor or an array of numbers"),
        ((X, Y, Y), "train has 3 parts: give"),
        (X, r"train\[0\] is not a pair"),
        (Samples({"image": X[0], "class": 1}), r"train\[0\] is a dict of image, class: .* must give image and label"),
        (7, r"train is a int: give \(train, test\)"),
        ((X[:, :, :4], Y), r"train images have shape \(3, 4, 8\) and test images \(3, 8, 8\)"),
        (Samples(), "train is empty"),
        (
            Samples((X[0], 0), (X[1, :1], 0)),
            r"train\[1\] is torch.float32 of shape \(1, 8, 8\), train\[0\] is",
        ),
        (Samples((X[0], torch.eye(3)[0])), r"train\[0\] has a label of shape \(3,\)"),
        (Samples(("cat.png", 0)), r"train\[0\] has an image of type str"),
        (Samples((X[0], "cat")), r"train\[0\] label: not a tensor"),
    ],
)
def test_what_is_wrong_with_ones_own_data_is_said(train: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_data((train, GOOD))


def test_the_wrong_split_is_named() -> None:
    with pytest.raises(InputError, match="test labels go down to -1"):
        load_data((GOOD, (X, Y - 1)))


@pytest.mark.parametrize("source", [None, 3, (GOOD,), (GOOD, GOOD, GOOD)])
def test_sources_that_are_none(source: Any) -> None:
    with pytest.raises(InputError, match="cannot load data from a"):
        load_data(source)


def test_a_name_that_is_mistyped_is_told_before_the_folder_that_goes_with_it() -> None:
    with pytest.raises(InputError, match="there is no data set and no folder 'cifer10': did you mean 'cifar10'"):
        load_data("cifer10", data_folder="somewhere")


def test_a_data_folder_goes_with_a_name() -> None:
    with pytest.raises(InputError, match=r"^data_folder='somewhere' goes with the name of a data set"):
        load_data((GOOD, GOOD), data_folder="somewhere")
