"""Patterns (projections), allocations, the constraint made of both, masks, and the ADMM variables."""

from pwoa.sparsity.admm import Admm as Admm
from pwoa.sparsity.allocation import affordable as affordable
from pwoa.sparsity.allocation import budget as budget
from pwoa.sparsity.allocation import shared_out as shared_out
from pwoa.sparsity.allocation import sizes as sizes
from pwoa.sparsity.constraint import Constraint as Constraint
from pwoa.sparsity.constraint import count as count
from pwoa.sparsity.constraint import count_multiply_adds as count_multiply_adds
from pwoa.sparsity.constraint import describe_size as describe_size
from pwoa.sparsity.masks import Masks as Masks
from pwoa.sparsity.patterns import PATTERNS as PATTERNS
from pwoa.sparsity.selection import DEFAULT as DEFAULT
from pwoa.sparsity.selection import prunable as prunable
from pwoa.sparsity.selection import select as select
