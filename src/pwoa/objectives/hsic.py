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

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIGMA = 5.0
EPSILON = 1e-5
GROUP = 128
LARGE = 16384


class Bottleneck(NamedTuple):
    """HSIC(X, Z_l) and HSIC(Y, Z_l) for every hidden layer l, each of shape [L]."""

    x: Tensor
    y: Tensor


def bottleneck(
    x: Tensor, labels: Tensor, hidden: Sequence[Tensor], normalised: bool = True, group: int = GROUP
) -> Bottleneck:
    """Return the dependence of each hidden activation on the input and on the label.

    A batch of more than `group` images (128 is the published batch) is taken in groups of that size and averaged
    over them, so that the value and its weight λ do not depend on the batch size; images left over do not count.
    """
    size = min(len(x), group)
    groups = len(x) // size

    def grouped(value: Tensor) -> Tensor:
        """Return [groups, size, d], with the d values of an image in the order in which they lie in memory."""
        if value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last):
            value = value.permute(0, 2, 3, 1)
        if len(value) > groups * size:
            value = value[: groups * size]
        return value.reshape(groups, size, -1)

    with torch.autocast(x.device.type, enabled=False):
        inputs, layers = gaussian([grouped(x)]), gaussian([grouped(z) for z in hidden])
        targets = same(labels[: groups * size].view(1, groups, size)).to(inputs.dtype)
        kernels = centre(torch.cat([inputs, targets, layers]))  # [2 + L, groups, size, size]
        kernels = normalise(kernels) if normalised else kernels
        scale = 1.0 if normalised else max(size - 1, 1) ** -2
        dependence = scale * torch.einsum("kgij,lgij->klg", kernels[:2], kernels[2:]).mean(-1)
    return Bottleneck(*dependence.unbind(0))


def gaussian(layers: Sequence[Tensor]) -> Tensor:
    """Return K − 1 for K_ij = exp(−‖z_i − z_j‖² / (2σ²)), σ = 5√d: [L, groups, n, n] of L layers [groups, n, d]."""
    squared: Tensor = _Distances.apply(*layers)  # type: ignore[no-untyped-call]
    sizes = tuple(z.shape[-1] for z in layers)
    return torch.expm1(squared.clamp_min(0) * _exponents(sizes, squared.device, squared.dtype))


@functools.cache
def _exponents(sizes: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return −1 / (2σ²) for layers of so many values; kept, since a CUDA graph cannot take numbers from the host."""
    values = [-1 / (2 * SIGMA**2 * size) for size in sizes]
    return torch.tensor(values, device=device, dtype=dtype).view(-1, 1, 1, 1)


class _Distances(torch.autograd.Function):
    """‖z_i − z_j‖² within each group, of all layers at once.

    Products of bfloat16 activations are summed up in float32 and not rounded; other activations are centred first,
    which leaves distances as they are and lets less of the numbers cancel.
    """

    @staticmethod
    def forward(ctx: Any, *layers: Tensor) -> Tensor:
        ctx.save_for_backward(*layers)
        products = torch.stack([_products(z) for z in layers])
        norms = products.diagonal(dim1=-2, dim2=-1)
        return norms.unsqueeze(-1) + norms.unsqueeze(-2) - 2 * products

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        """With S = G + Gᵀ the gradient is 2 (diag(S1) − S) z."""
        both = gradient + gradient.mT
        weights = 2 * (torch.diag_embed(both.sum(-1)) - both)
        high = weights.bfloat16()
        low = (weights - high).bfloat16()
        layers = zip(ctx.saved_tensors, weights, high, low, strict=True)
        return tuple(
            _combined(z, *halves) if z.dtype == torch.bfloat16 else (exact @ z.to(exact.dtype)).to(z.dtype)
            for z, exact, *halves in layers
        )


def _products(z: Tensor) -> Tensor:
    """Return ⟨z_i, z_j⟩ within each group."""
    if z.dtype == torch.bfloat16 and z.is_cuda:
        return torch.bmm(z, z.mT, out_dtype=torch.float32)
    z = z if z.dtype == torch.float64 else z.float()
    z = z - z.mean(-2, keepdim=True)
    return z @ z.mT


def _combined(z: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Return (high + low) z, all in bfloat16. Of activations of low rank, as late layers have, most of the sum cancels;
    for the largest, which are the first layers', `high` is enough."""
    return high @ z if z.shape[-1] > LARGE else torch.baddbmm(high @ z, low, z)


def same(labels: Tensor) -> Tensor:
    """Return the linear kernel ⟨y_i, y_j⟩ of one-hot labels: whether they are equal."""
    return labels.unsqueeze(-1) == labels.unsqueeze(-2)


def centre(kernel: Tensor) -> Tensor:
    """Return HKH with H = I − 11ᵀ/n."""
    rows = kernel.mean(-1, keepdim=True)
    columns = kernel.mean(-2, keepdim=True)
    return kernel - rows - columns + rows.mean(-2, keepdim=True)


def normalise(centred: Tensor) -> Tensor:
    """Return R = K̃ (K̃ + εn I)⁻¹ = I − εn A⁻¹ with A = K̃ + εn I.

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
    """Return the inverses of symmetric positive definite matrices [..., n, n], by Cholesky.

    On a GPU torch.linalg.inv waits for the result, takes five times as long, and cannot be a part of a CUDA graph.
    """
    identity = torch.eye(positive.shape[-1], dtype=positive.dtype, device=positive.device)
    factor = torch.linalg.cholesky_ex(positive).L
    inverse: Tensor = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    return inverse.mT @ inverse
