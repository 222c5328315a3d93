"""Binary masks for fine-tuning: pruned weights are zero and stay zero."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pwoa.sparsity.patterns import PATTERNS


class Masks:
    """One mask a layer. Applied to weights once and to gradients each step, pruned weights never come back:

    momentum and weight decay of a zero weight with a zero gradient are zero, and so is its average.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], kept: Mapping[str, int], pattern: str) -> None:
        self.weights = dict(weights)
        self._kept = dict(kept)
        self._pattern = pattern
        self.masks = {name: torch.ones_like(weight) for name, weight in weights.items()}

    @torch.no_grad()
    def choose(self) -> None:
        """Take the masks of Π_S(θ) and zero the other weights."""
        for name, weight in self.weights.items():
            self.masks[name].copy_(PATTERNS[self._pattern](weight, self._kept[name]))
            weight.mul_(self.masks[name])

    @torch.no_grad()
    def mask_gradients(self) -> None:
        """∇θ ← M ∘ ∇θ, for all layers at once."""
        pairs = [(w.grad, self.masks[name]) for name, w in self.weights.items() if w.grad is not None]
        torch._foreach_mul_([grad for grad, _ in pairs], [mask for _, mask in pairs])

    def state_dict(self) -> dict[str, Tensor]:
        return {name: mask.bool() for name, mask in self.masks.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name in self.weights:
            self.masks[name].copy_(state[name])
