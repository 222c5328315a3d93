"""Patterns (projections), allocations, the constraint made of both, masks, and the ADMM variables."""

from pwoa.sparsity.admm import Admm
from pwoa.sparsity.allocation import ALLOCATIONS, allocate, budget, shared_out, sizes
from pwoa.sparsity.constraint import Constraint, Count, count, prunable
from pwoa.sparsity.masks import Masks
from pwoa.sparsity.patterns import PATTERNS, Pattern

__all__ = [
    "ALLOCATIONS",
    "PATTERNS",
    "Admm",
    "Constraint",
    "Count",
    "Masks",
    "Pattern",
    "allocate",
    "budget",
    "count",
    "prunable",
    "shared_out",
    "sizes",
]
