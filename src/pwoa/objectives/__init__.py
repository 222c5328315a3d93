"""The terms of the loss: pure functions of tensors."""

from pwoa.objectives.classification import classification
from pwoa.objectives.distillation import distillation
from pwoa.objectives.hsic import Bottleneck, bottleneck

__all__ = ["Bottleneck", "bottleneck", "classification", "distillation"]
