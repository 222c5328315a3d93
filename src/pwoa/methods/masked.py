"""The stage that most ways to prune end with: training the weights that masks keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pwoa.sparsity import Masks
from pwoa.training import Batch, Loss, Stage


class MaskedStage(Stage):
    """Minimises a loss over the weights that the masks keep; who chooses them, and when, is for a subclass to say."""

    name = "finetune"

    def __init__(self, loss: Callable[[Batch], Loss], masks: Masks, epochs: int, learning_rate: float) -> None:
        self.epochs = epochs
        self.learning_rate = learning_rate
        self._loss = loss
        self._masks = masks

    def loss(self, batch: Batch) -> Loss:
        return self._loss(batch)

    def after_backward(self) -> None:
        self._masks.mask_gradients()

    def state_dict(self) -> dict[str, Any]:
        return self._masks.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._masks.load_state_dict(state)
