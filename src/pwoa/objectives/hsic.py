"""L_H: the HSIC bottleneck (Gretton et al. 2005; Ma et al. 2020; Wang et al. 2021), in one batched pass.

Gaussian kernels with σ = 5√d for X and Z, the linear kernel for Y. Two estimators of dependence:

- plain (the paper's Eq. 8): tr(K_a H K_b H) / (n − 1)²
- normalised, as the published code computes it: tr(R_a R_b) with R = K̃ (K̃ + εn I)⁻¹, K̃ = HKH, ε = 1e-5.
  (The code has K̃ = KH; since tr(R_a R_b) sees R only between two H, the value is the same.)

With σ = 5√d all entries of K are close to 1, and centring is a difference of nearly equal numbers. H removes
constants, so K − 1 has the same centred matrix; it is computed directly as expm1, which keeps float32 exact
enough (tests compare with float64). Activations in bfloat16 are multiplied as they are and summed up in float32
(`benchmarks/hsic_error.py` measures what that costs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIGMA = 5.0
EPSILON = 1e-5
GROUP = 128


class Bottleneck(NamedTuple):
    """HSIC(X, Z_l) and HSIC(Y, Z_l) for every hidden layer l, each of shape [L]."""

    x: Tensor
    y: Tensor


def bottleneck(
    x: Tensor, labels: Tensor, hidden: Sequence[Tensor], normalised: bool = True, group: int = GROUP
) -> Bottleneck:
    """The dependence of each hidden activation on the input and on the label.

    A batch of more than `group` images (128 is the published batch) is taken in groups of that size and averaged
    over them, so that the value and its weight λ do not depend on the batch size; images left over do not count.
    """
    size = min(len(x), group)
    groups = len(x) // size

    def grouped(value: Tensor) -> Tensor:
        """[groups, size, d], with the d values of an image in the order in which they lie in memory."""
        if value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last):
            value = value.permute(0, 2, 3, 1)
        if len(value) > groups * size:
            value = value[: groups * size]
        return value.reshape(groups, size, -1)

    with torch.autocast(x.device.type, enabled=False):
        inputs = gaussian(grouped(x))
        targets = same(labels[: groups * size].view(groups, size)).to(inputs.dtype)
        layers = torch.stack([gaussian(grouped(z)) for z in hidden])  # [L, groups, size, size]
        given = _prepare(torch.stack([inputs, targets]), normalised)
        scale = 1.0 if normalised else max(size - 1, 1) ** -2
        dependence = scale * torch.einsum("lgij,kgij->klg", _prepare(layers, normalised), given).mean(-1)
    return Bottleneck(*dependence.unbind(0))


def _prepare(kernels: Tensor, normalised: bool) -> Tensor:
    return normalise(centre(kernels)) if normalised else centre(kernels)


def gaussian(z: Tensor) -> Tensor:
    """K − 1 for K_ij = exp(−‖z_i − z_j‖² / (2σ²)), σ = 5√d, over the last two dimensions [n, d]."""
    if z.dtype == torch.bfloat16:
        squared: Tensor = _Distances.apply(z)  # type: ignore[no-untyped-call]
    else:
        z = z if z.dtype == torch.float64 else z.float()
        z = z - z.mean(-2, keepdim=True)  # distances stay, and cancel less
        squared = _distances(z @ z.mT)
    return torch.expm1(-squared.clamp_min(0) / (2 * SIGMA**2 * z.shape[-1]))


def _distances(products: Tensor) -> Tensor:
    """‖z_i − z_j‖² from all ⟨z_i, z_j⟩."""
    norms = products.diagonal(dim1=-2, dim2=-1)
    return norms.unsqueeze(-1) + norms.unsqueeze(-2) - 2 * products


class _Distances(torch.autograd.Function):
    """‖z_i − z_j‖² of bfloat16 [groups, n, d] in float32, from products that are never rounded to bfloat16."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return _distances(_products(z, z.mT))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """With S = G + Gᵀ the gradient is 2 (diag(S1) − S) z.

        The weights are split into two bfloat16 numbers each: of activations of low rank, most of the sum cancels.
        """
        (z,) = ctx.saved_tensors
        both = gradient + gradient.mT
        weights = 2 * (torch.diag_embed(both.sum(-1)) - both)
        rounded = weights.to(z.dtype)
        return torch.baddbmm(rounded @ z, (weights - rounded).to(z.dtype), z)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """The matrix products of bfloat16, in float32."""
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def same(labels: Tensor) -> Tensor:
    """The linear kernel ⟨y_i, y_j⟩ of one-hot labels: whether they are equal."""
    return labels.unsqueeze(-1) == labels.unsqueeze(-2)


def centre(kernel: Tensor) -> Tensor:
    """HKH with H = I − 11ᵀ/n."""
    rows = kernel.mean(-1, keepdim=True)
    columns = kernel.mean(-2, keepdim=True)
    return kernel - rows - columns + rows.mean(-2, keepdim=True)


def normalise(centred: Tensor) -> Tensor:
    """R = K̃ (K̃ + εn I)⁻¹ = I − εn A⁻¹ with A = K̃ + εn I.

    The inverse P is found without a graph; 2P − PAP equals it (a Newton step from P, which also takes off most
    of its rounding error) and has its derivative −P dA P, so that the backward pass is two products.
    """
    n = centred.shape[-1]
    ridge = EPSILON * n
    identity = torch.eye(n, dtype=centred.dtype, device=centred.device)
    shifted = centred + ridge * identity
    with torch.no_grad():
        inverse = _inverse(shifted)
    refined: Tensor = 2 * inverse - inverse @ shifted @ inverse
    return identity - ridge * refined


def _inverse(positive: Tensor) -> Tensor:
    """The inverses of symmetric positive definite matrices [..., n, n], by Cholesky.

    On a GPU torch.linalg.inv waits for the result, takes five times as long, and cannot be a part of a CUDA graph.
    """
    identity = torch.eye(positive.shape[-1], dtype=positive.dtype, device=positive.device)
    factor = torch.linalg.cholesky_ex(positive).L
    inverse: Tensor = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    return inverse.mT @ inverse
