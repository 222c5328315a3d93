"""The seam between methods and the engine: a method yields stages of batches; the engine knows nothing else of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.data.images import AUGMENTATIONS, Data, Images
from pwoa.errors import InputError, counted
from pwoa.recipe.sections import Recipe


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
        """Return the training part and the held-out validation part of the data's training set."""
        train, validation = data.split(recipe.data.validation, recipe.training.seed, recipe.data.images)
        if recipe.training.batch > len(train):
            raise InputError(
                f"a batch of {recipe.training.batch} is larger than the {counted(len(train), 'training image')}; lower "
                "training.batch"
            )
        images = data.train.to(device)
        return cls(images, train.to(device), validation.to(device), data.classes, recipe.data.augment)

    def in_words(self) -> str:
        """Return how many images there are to train on, and how many are held out."""
        return f"{counted(len(self.train), 'image')} ({len(self.validation):,} held out)"

    def augmented(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return images to train on, each changed at random, and labels; the generator is on the images' device."""
        x, y = self.images.batch(index)
        return AUGMENTATIONS[self.augment](x, generator), y

    def some(self, images: int, batch: int) -> Tensor:
        """Return the positions of about so many training images, in whole batches; from all parts of sorted data."""
        count = max(min(len(self.train), images) // batch, 1) * batch
        return self.train[torch.arange(count, device=self.train.device) * len(self.train) // count]

    def example(self) -> Tensor:
        """Return an image, as a batch of one."""
        return self.images.batch(self.validation[:1])[0]

    def held_out(self) -> Images:
        """Return the images of the validation part."""
        return Images(self.images.pixels[self.validation], self.images.labels[self.validation])


@dataclass(frozen=True)
class Batch:
    """Images in [0, 1], labels, and the images' positions in the data's training set."""

    x: Tensor
    y: Tensor
    index: Tensor


@dataclass(frozen=True)
class Loss:
    """What a stage minimises, the named parts it consists of (unweighted), and the logits it saw."""

    total: Tensor
    parts: Mapping[str, Tensor]
    logits: Tensor


class Stage(ABC):
    """A phase of a method with its own epochs and optimizer. Everything but `loss` is optional."""

    name: str
    epochs: int
    learning_rate: float
    warmup: int = 0
    """Over so many epochs the learning rate rises from 0, before it falls."""
    section: str = ""
    """The section of the recipe that has its learning rate, if that is not the name."""
    criterion: str = "loss"
    """What an epoch of the last stage is selected by: the loss, or a part of it, on the validation split."""

    attacks: bool = False
    """Whether its steps make adversarial examples, each of which takes many passes through the network."""

    accuracy_of: str = "natural"
    """Which accuracy on the validation split it is that the logits of `validation_loss` give."""

    def parameters(self) -> Iterable[nn.Parameter] | None:
        """Return what the optimizer changes, if it is not the weights of the model that require gradients."""
        return None

    def running(self) -> AbstractContextManager[object]:
        """Entered while the stage is trained, from its start or from where it is resumed."""
        return nullcontext()

    def begin(self) -> None:
        """Called once when the stage starts; not when it is resumed."""

    def before_epoch(self, epoch: int) -> None:
        """Called before each epoch, counted from 0; also when it is resumed, before the state is taken back."""

    def before_step(self, step: int, steps: int) -> None:
        """Called before each step, with its number in the stage, counted from 0, and how many an epoch has."""

    def constants(self) -> object:
        """Return the numbers that may change between epochs and that a step has built in.

        A step that was recorded is recorded anew when they are no longer equal. All else that changes must be in
        tensors that stay where they are.
        """
        return None

    @abstractmethod
    def loss(self, batch: Batch) -> Loss:
        """Return the loss of a training batch."""

    def validation_loss(self, batch: Batch) -> Loss:
        """Return the loss of a validation batch, by whose mean epochs are selected; the same by default."""
        return self.loss(batch)

    def after_backward(self) -> None:
        """Called when the gradients are there and the step is not yet taken."""

    def after_step(self) -> None:
        """Called when the step is taken."""

    def after_epoch(self, epoch: int, validation: Mapping[str, float]) -> Mapping[str, Any]:
        """Called after each epoch with the mean parts of the loss on the validation split.

        What it returns is written down with the epoch's metrics.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values with which a killed stage goes on to the same bits."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
