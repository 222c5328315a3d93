from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from pwoa.data.images import AUGMENTATIONS, crop_and_flip


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def every_outcome(image: Tensor, padding: int) -> list[Tensor]:
    """All shifts and mirrorings of one image, written the plain way."""
    _, height, width = image.shape
    padded = pad(image, (padding,) * 4)
    shifts = range(2 * padding + 1)
    crops = [padded[:, i : i + height, j : j + width] for i in shifts for j in shifts]
    return crops + [crop.flip(2) for crop in crops]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_each_image_is_one_of_its_own_shifts_and_all_of_them_occur(dtype: torch.dtype) -> None:
    image = torch.arange(1, 2 * 5 * 4 + 1).reshape(2, 5, 4).to(dtype)
    outcomes = {tuple(outcome.flatten().tolist()) for outcome in every_outcome(image, padding=1)}
    result = crop_and_flip(image.expand(1000, 2, 5, 4), generator(), padding=1)
    assert result.dtype == dtype
    assert {tuple(one.flatten().tolist()) for one in result} == outcomes


def test_images_keep_their_place() -> None:
    x = torch.arange(1.0, 9).reshape(8, 1, 1, 1).expand(8, 3, 6, 6)
    result = crop_and_flip(x, generator(), padding=2)
    assert torch.equal(result.amax((1, 2, 3)), torch.arange(1.0, 9))


def test_shift_and_mirror_are_drawn_evenly_and_apart() -> None:
    x = torch.zeros(9000, 1, 3, 3)
    x[:, 0, 1, 1] = 1  # in the middle, so that its place tells the shift
    place = crop_and_flip(x, generator(), padding=1).flatten(1).argmax(1).bincount(minlength=9)
    assert (place / 9000 - 1 / 9).abs().max() < 0.02


def test_half_are_mirrored() -> None:
    x = torch.tensor([1.0, 2.0]).expand(4000, 1, 1, 2)
    mirrored = crop_and_flip(x, generator(), padding=0)[:, 0, 0, 0] == 2
    assert abs(mirrored.float().mean().item() - 0.5) < 0.03


def test_a_reflected_edge_is_that_of_padding_by_reflection() -> None:
    x = torch.arange(200 * 2 * 6 * 5).reshape(200, 2, 6, 5).float()
    shifted, reflected = (crop_and_flip(x, generator(), padding=3, reflect=reflect) for reflect in (False, True))
    inside = shifted != 0  # the same shifts are drawn
    inside[0] = False  # whose first pixel is 0 itself
    assert torch.equal(shifted[inside], reflected[inside])
    padded = pad(x, (3,) * 4, mode="reflect")
    crops = [padded[:, :, i : i + 6, j : j + 5] for i in range(7) for j in range(7)]
    outcomes = torch.stack([*crops, *(crop.flip(3) for crop in crops)])
    assert (outcomes == reflected).flatten(2).all(2).any(0).all()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_an_image_smaller_than_the_shift_is_reflected_again_and_again(size: int) -> None:
    x = torch.arange(size * size).reshape(1, 1, size, size).to(torch.uint8).expand(500, 1, size, size)
    result = crop_and_flip(x, generator(), padding=4, reflect=True)
    differences = (result[:, 0, :, 1:].int() - result[:, 0, :, :-1].int()).abs()
    assert (differences == 1).all()  # neighbours stay neighbours
    assert set(result.flatten().tolist()) <= set(range(size * size))


def test_the_generator_decides() -> None:
    x = torch.rand(20, 3, 8, 8)
    assert torch.equal(crop_and_flip(x, generator(1)), crop_and_flip(x, generator(1)))
    assert not torch.equal(crop_and_flip(x, generator(1)), crop_and_flip(x, generator(2)))


def test_none_changes_nothing() -> None:
    x = torch.rand(2, 3, 4, 4)
    assert AUGMENTATIONS["none"](x, generator()) is x
    assert AUGMENTATIONS["crop-flip"] is crop_and_flip


def test_reflect_flip_shifts_over_the_reflection() -> None:
    x = torch.rand(50, 3, 8, 8)
    found = AUGMENTATIONS["reflect-flip"](x, generator())
    assert torch.equal(found, crop_and_flip(x, generator(), reflect=True))
    assert found.min() > 0
