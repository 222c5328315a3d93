"""The engine and the seam through which methods use it."""

from pwoa.training.engine import Engine
from pwoa.training.stage import Batch, Loss, Material, Stage

__all__ = ["Batch", "Engine", "Loss", "Material", "Stage"]
