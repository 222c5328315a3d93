"""The terms of the loss: pure functions of tensors."""

from pwoa.objectives.hsic import GROUP, Bottleneck, bottleneck
from pwoa.objectives.terms import classification, distillation

__all__ = ["GROUP", "Bottleneck", "bottleneck", "classification", "distillation"]
