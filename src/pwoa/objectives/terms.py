"""The terms on logits: self-distillation L_D (the paper's Problem `prune-kd`) and cross-entropy L_CE."""

from torch import Tensor
from torch.nn import functional as F


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy with the labels."""
    return F.cross_entropy(logits, labels)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return τ² E_X[KL(h^τ(X), T^τ(X))]: the mean over images of the divergence summed over classes.

    At τ = 30 this is close to ‖centred difference of logits‖² / (2 · classes), in either direction of KL.
    """
    ours = F.log_softmax(student / temperature, dim=1)
    theirs = F.log_softmax(teacher / temperature, dim=1)
    return F.kl_div(theirs, ours, reduction="batchmean", log_target=True) * temperature**2
