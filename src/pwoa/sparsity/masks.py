"""Binary masks for fine-tuning: pruned weights are zero and stay zero."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pwoa.sparsity.constraint import Constraint


class Masks:
    """The masks of all layers. Applied to weights once and to gradients each step, pruned weights never come back.

    Momentum and weight decay of a zero weight with a zero gradient are zero, and so is its average.
    """

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.weights = dict(constraint.weights)
        self.masks = {name: torch.ones_like(weight) for name, weight in self.weights.items()}

    @torch.no_grad()
    def choose(self) -> None:
        """Take the masks of Π_S(θ) and zero the other weights."""
        for name, weight in self.weights.items():
            self.masks[name].copy_(self.constraint.mask(name))
            weight.mul_(self.masks[name])

    @torch.no_grad()
    def mask_gradients(self) -> None:
        """Set ∇θ ← M ∘ ∇θ, for all layers at once."""
        pairs = [(w.grad, self.masks[name]) for name, w in self.weights.items() if w.grad is not None]
        torch._foreach_mul_([grad for grad, _ in pairs], [mask for _, mask in pairs])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the masks as booleans."""
        return {name: mask.bool() for name, mask in self.masks.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state_dict` gave."""
        for name in self.weights:
            self.masks[name].copy_(state[name])
