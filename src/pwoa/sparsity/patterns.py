"""Patterns: which weights stay. A mask picks them; weight × mask is the nearest point of the constraint set.

A new pattern is a function (weight, kept) → mask and one line in PATTERNS.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pwoa.errors import InputError, did_you_mean

Pattern = Callable[[Tensor, int], Tensor]
"""(weight, how many of its entries stay) → a mask of its shape, with exactly so many ones."""


def unstructured(weight: Tensor, kept: int) -> Tensor:
    """Return the mask of the `kept` weights largest in absolute value: exactly that many, ties included."""
    largest = torch.topk(weight.abs().flatten(), kept, sorted=False).indices
    mask = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device)
    return mask.scatter_(0, largest, True).view_as(weight)  # at no point does the host wait for the device


PATTERNS: dict[str, Pattern] = {"unstructured": unstructured}


def find_pattern(name: str) -> Pattern:
    """Return the pattern of that name."""
    if name not in PATTERNS:
        raise InputError(f"unknown pattern {name!r} for sparsity.pattern ({did_you_mean(name, PATTERNS)})")
    return PATTERNS[name]
