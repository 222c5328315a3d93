"""The terms of the loss: pure functions of tensors."""

from pwoa.objectives.classification import classification
from pwoa.objectives.distillation import distillation
from pwoa.objectives.hsic import GROUP, Bottleneck, bottleneck

__all__ = ["GROUP", "Bottleneck", "bottleneck", "classification", "distillation"]
