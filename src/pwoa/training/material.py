"""What a run trains on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pwoa.data import AUGMENTATIONS, Data, Images
from pwoa.errors import InputError
from pwoa.recipe import Recipe
from pwoa.words import counted


@dataclass(frozen=True)
class Material:
    """What is trained on: images on the device, the positions of the two splits, and the augmentation."""

    images: Images
    train: Tensor
    validation: Tensor
    classes: int
    augment: str = "none"

    @classmethod
    def of(cls, data: Data, recipe: Recipe, device: torch.device) -> Material:
        """The training part and the held-out validation part of the data's training set."""
        train, validation = data.split(recipe.data.validation, recipe.training.seed)
        if recipe.training.batch > len(train):
            raise InputError(
                f"a batch of {recipe.training.batch} is larger than the {counted(len(train), 'training image')}"
            )
        images = data.train.to(device)
        return cls(images, train.to(device), validation.to(device), data.classes, recipe.data.augment)

    def in_words(self) -> str:
        """How many images there are to train on, and how many are held out."""
        return f"{counted(len(self.train), 'image')} ({len(self.validation):,} held out)"

    def augmented(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images to train on, each changed at random, and their labels; the generator is on the images' device."""
        x, y = self.images.batch(index)
        return AUGMENTATIONS[self.augment](x, generator), y

    def held_out(self) -> Images:
        """The images of the validation part."""
        return Images(self.images.pixels[self.validation], self.images.labels[self.validation])
