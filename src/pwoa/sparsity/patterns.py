"""Patterns: which weights stay. A mask picks them; weight × mask is the nearest point of the constraint set."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def unstructured(weight: Tensor, kept: int) -> Tensor:
    """The mask of the `kept` weights largest in absolute value: exactly that many, ties included."""
    largest = torch.topk(weight.abs().flatten(), kept, sorted=False).indices
    mask = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device)
    return mask.scatter_(0, largest, True).view_as(weight)  # at no point does the host wait for the device


PATTERNS: dict[str, Callable[[Tensor, int], Tensor]] = {"unstructured": unstructured}


def project(weight: Tensor, kept: int, pattern: str = "unstructured") -> Tensor:
    """Π_S(weight): the Euclidean projection on the weights with `kept` entries in the pattern."""
    return weight * PATTERNS[pattern](weight, kept)
