"""Patterns (projections), allocations, masks, and the ADMM variables."""

from pwoa.sparsity.admm import Admm
from pwoa.sparsity.allocation import ALLOCATIONS, allocate, budget, shared_out
from pwoa.sparsity.constraint import Count, count, prunable, sizes
from pwoa.sparsity.masks import Masks
from pwoa.sparsity.patterns import PATTERNS, project

__all__ = [
    "ALLOCATIONS",
    "PATTERNS",
    "Admm",
    "Count",
    "Masks",
    "allocate",
    "budget",
    "count",
    "project",
    "prunable",
    "shared_out",
    "sizes",
]
