from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pwoa.objectives.hsic import EPSILON, bottleneck

both = pytest.mark.parametrize("normalised", [True, False], ids=["normalised", "plain"])


def sample(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Images, labels, and two layers that depend on them, of different shapes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, 3, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (n,), generator=generator)
    first = torch.relu(x.flatten(1) @ torch.randn(12, 8, generator=generator, dtype=torch.float64))
    second = 5 * first[:, :4] + labels[:, None]
    return x.to(dtype), labels, [first.view(n, 2, 2, 2).to(dtype), second.to(dtype)]


def gaussian_kernel(z: Tensor) -> Tensor:
    """K_ij = exp(−‖z_i − z_j‖² / (2σ²)), σ = 5√d, pair by pair."""
    rows = z.double().flatten(1).tolist()
    variance = (5 * math.sqrt(len(rows[0]))) ** 2
    squares = [[sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) for b in rows] for a in rows]
    entries = [[math.exp(-square / (2 * variance)) for square in row] for row in squares]
    return torch.tensor(entries, dtype=torch.float64)


def label_kernel(labels: Tensor) -> Tensor:
    one_hot = torch.nn.functional.one_hot(labels).double()
    return one_hot @ one_hot.T


def centring(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64) - torch.full((n, n), 1 / n, dtype=torch.float64)


def plain(a: Tensor, b: Tensor) -> float:
    """tr(K_a H K_b H) / (n − 1)²."""
    n = len(a)
    return float(torch.trace(a @ centring(n) @ b @ centring(n)) / (n - 1) ** 2)


def published(a: Tensor, b: Tensor) -> float:
    """tr(R_a R_b) with R = K̃ (K̃ + εn I)⁻¹ and the one-sided K̃ = KH."""
    n = len(a)

    def ratio(kernel: Tensor) -> Tensor:
        one_sided = kernel @ centring(n)
        inverse: Tensor = torch.linalg.inv(one_sided + EPSILON * n * torch.eye(n, dtype=torch.float64))
        return one_sided @ inverse

    return float(torch.trace(ratio(a) @ ratio(b)))


def two_sided(a: Tensor, b: Tensor) -> float:
    """The same with K̃ = HKH."""
    h = centring(len(a))
    return published(h @ a @ h, h @ b @ h)


def direct(x: Tensor, labels: Tensor, hidden: list[Tensor], normalised: bool) -> tuple[list[float], list[float]]:
    estimator = published if normalised else plain
    kernels = [gaussian_kernel(z) for z in hidden]
    from_x, from_y = gaussian_kernel(x), label_kernel(labels)
    return [estimator(from_x, k) for k in kernels], [estimator(from_y, k) for k in kernels]


@both
@settings(deadline=None, max_examples=8)
@given(n=st.integers(2, 14), seed=st.integers(0, 1000))
def test_it_is_the_formula(normalised: bool, n: int, seed: int) -> None:
    x, labels, hidden = sample(n, seed)
    found = bottleneck(x, labels, hidden, normalised)
    expected = direct(x, labels, hidden, normalised)
    assert found.x.tolist() == pytest.approx(expected[0], rel=1e-8, abs=1e-12)
    assert found.y.tolist() == pytest.approx(expected[1], rel=1e-8, abs=1e-12)


def test_one_sided_and_two_sided_centring_agree() -> None:
    x, labels, hidden = sample(10)
    for other in (gaussian_kernel(hidden[0]), label_kernel(labels)):
        assert published(gaussian_kernel(x), other) == pytest.approx(two_sided(gaussian_kernel(x), other), rel=1e-7)


def test_normalised_is_the_default() -> None:
    x, labels, hidden = sample(8)
    assert torch.equal(bottleneck(x, labels, hidden).x, bottleneck(x, labels, hidden, True).x)
    assert not torch.allclose(bottleneck(x, labels, hidden).x, bottleneck(x, labels, hidden, False).x)


@both
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1.0, 100.0), (0.01, 0.0)])
def test_float32_is_close_to_float64(normalised: bool, scale: float, shift: float) -> None:
    """At the published batch of 128: far from the origin, and where all entries of K are close to 1."""
    x, labels, hidden = sample(128, dtype=torch.float32)
    hidden = [scale * z + shift for z in hidden]
    exact = bottleneck(x.double(), labels, [z.double() for z in hidden], normalised)
    found = bottleneck(x, labels, hidden, normalised)
    assert found.x.dtype == torch.float32
    assert found.x.tolist() == pytest.approx(exact.x.tolist(), rel=2e-3)
    assert found.y.tolist() == pytest.approx(exact.y.tolist(), rel=2e-3)


@both
def test_the_gradient_by_finite_differences(normalised: bool) -> None:
    x, labels, hidden = sample(6)
    weights = torch.tensor([0.3, -0.8]).double()

    def loss(first: Tensor, second: Tensor) -> Tensor:
        found = bottleneck(x, labels, [first, second], normalised)
        return 1e3 * (weights @ found.x - 2 * weights @ found.y)

    leaves = [z.clone().requires_grad_() for z in hidden]
    assert torch.autograd.gradcheck(loss, leaves, eps=1e-5, atol=1e-6, rtol=1e-4)


@both
def test_equal_samples_have_a_finite_gradient(normalised: bool) -> None:
    x, labels, _ = sample(6, dtype=torch.float32)
    z = torch.ones(6, 3, requires_grad=True)
    found = bottleneck(x, labels, [z], normalised)
    (found.x + found.y).sum().backward()
    assert z.grad is not None
    assert bool(torch.isfinite(z.grad).all())


@both
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000))
def test_the_order_of_samples_does_not_matter(normalised: bool, seed: int) -> None:
    x, labels, hidden = sample(9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    found = bottleneck(x, labels, hidden, normalised)
    mixed = bottleneck(x[order], labels[order], [z[order] for z in hidden], normalised)
    assert torch.allclose(found.x, mixed.x, rtol=1e-9)
    assert torch.allclose(found.y, mixed.y, rtol=1e-9)


@both
def test_a_constant_depends_on_nothing(normalised: bool) -> None:
    x, labels, hidden = sample(20)
    found = bottleneck(x, labels, [torch.full((20, 5), 3.0).double(), hidden[0]], normalised)
    assert found.x[0].item() == pytest.approx(0, abs=1e-12)
    assert found.y[0].item() == pytest.approx(0, abs=1e-12)
    assert found.x[1] > 0
    assert found.y[1] > 0


@both
def test_one_image_depends_on_nothing(normalised: bool) -> None:
    """The last validation batch may be a single image."""
    x, labels, hidden = sample(1)
    found = bottleneck(x, labels, hidden, normalised)
    assert found.x.tolist() == pytest.approx([0, 0], abs=1e-12)
    assert found.y.tolist() == pytest.approx([0, 0], abs=1e-12)


@both
def test_dependent_variables_score_higher_than_independent_ones(normalised: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, 2, generator=generator)
    labels = torch.randint(4, (128,), generator=generator)
    noise = torch.randn(128, 2, generator=generator)
    of_the_label = torch.nn.functional.one_hot(labels).float()
    found = bottleneck(x, labels, [x.square() + x, of_the_label, noise], normalised)
    assert found.x[0] > 1.5 * found.x[2]
    assert found.y[1] > 1.5 * found.y[2]
    assert found.x[1] < found.x[0]


def test_plain_hsic_of_independent_variables_goes_to_zero() -> None:
    def average(n: int, dependent: bool) -> float:
        values = []
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            x, z = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for _ in range(2))
            labels = torch.randint(4, (n,), generator=generator)
            values.append(bottleneck(x, labels, [x if dependent else z], normalised=False).x.item())
        return sum(values) / len(values)

    assert average(128, dependent=False) < average(8, dependent=False) / 8
    assert average(128, dependent=True) == pytest.approx(average(8, dependent=True), rel=0.5)


@both
def test_a_larger_batch_is_averaged_over_groups_of_128(normalised: bool) -> None:
    x, labels, hidden = sample(300)
    found = bottleneck(x, labels, hidden, normalised)
    groups = [
        bottleneck(x[part], labels[part], [z[part] for z in hidden], normalised)
        for part in (slice(0, 128), slice(128, 256))
    ]
    for value, parts in zip(found, zip(*groups, strict=True), strict=True):
        assert torch.allclose(value, torch.stack(parts).mean(0), rtol=1e-9)


@both
def test_autocast_changes_nothing(normalised: bool) -> None:
    x, labels, hidden = sample(32, dtype=torch.float32)
    found = bottleneck(x, labels, hidden, normalised)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = bottleneck(x, labels, hidden, normalised)
    assert torch.equal(inside.x, found.x)
    assert torch.equal(inside.y, found.y)


@both
def test_bfloat16_activations_are_summed_up_in_float32(normalised: bool) -> None:
    x, labels, hidden = sample(300)
    lower = [z.bfloat16().requires_grad_() for z in hidden]
    exact = [z.detach().double().requires_grad_() for z in lower]
    found, expected = bottleneck(x.float(), labels, lower, normalised), bottleneck(x, labels, exact, normalised)
    for mine, its in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        assert torch.allclose(mine.double(), its, rtol=1e-3)
    weigh = torch.tensor([2.0, 3.0])
    (found.x @ weigh - found.y.sum()).backward()
    (expected.x @ weigh.double() - expected.y.sum()).backward()
    for mine, its in zip(lower, exact, strict=True):
        assert mine.grad is not None
        assert its.grad is not None
        assert mine.grad.dtype == torch.bfloat16
        assert (mine.grad.double() - its.grad).norm() < 0.01 * its.grad.norm()


@both
def test_how_activations_lie_in_memory_does_not_matter(normalised: bool) -> None:
    x, labels, hidden = sample(64)
    turned = [z.to(memory_format=torch.channels_last) if z.dim() == 4 else z for z in hidden]
    assert not turned[0].is_contiguous()
    for mine, its in zip(
        bottleneck(x, labels, turned, normalised), bottleneck(x, labels, hidden, normalised), strict=True
    ):
        assert torch.allclose(mine, its, rtol=1e-9)
