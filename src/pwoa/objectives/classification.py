"""L_CE: the cross-entropy that naive pruning minimises."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy with the labels."""
    return F.cross_entropy(logits, labels)
