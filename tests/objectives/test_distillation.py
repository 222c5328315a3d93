from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from pwoa.objectives.terms import classification, distillation


def logits(seed: int, scale: float = 3.0, n: int = 6, classes: int = 5) -> Tensor:
    return scale * torch.randn(n, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(row: list[float], tau: float) -> list[float]:
    powers = [math.exp(value / tau) for value in row]
    return [power / sum(powers) for power in powers]


def direct(student: Tensor, teacher: Tensor, tau: float) -> float:
    """τ² · mean_i Σ_j h_j log(h_j / T_j), number by number."""
    total = 0.0
    for ours, theirs in zip(student.tolist(), teacher.tolist(), strict=True):
        h, t = softmax(ours, tau), softmax(theirs, tau)
        total += sum(a * math.log(a / b) for a, b in zip(h, t, strict=True))
    return tau**2 * total / len(student)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 1.0, 4.0, 30.0]))
def test_it_is_the_formula_student_first(seed: int, tau: float) -> None:
    student, teacher = logits(seed), logits(seed + 1)
    assert float(distillation(student, teacher, tau)) == pytest.approx(direct(student, teacher, tau), rel=1e-9)
    in_float32 = float(distillation(student.float(), teacher.float(), tau))
    assert in_float32 == pytest.approx(direct(student, teacher, tau), rel=1e-3)


def test_the_direction_matters_at_low_temperature() -> None:
    student, teacher = logits(0), logits(1)
    assert direct(student, teacher, 1) != pytest.approx(direct(teacher, student, 1), rel=0.05)


def test_equal_logits_cost_nothing_and_neither_does_a_constant() -> None:
    student = logits(0)
    shift = torch.arange(6.0).double()[:, None]
    assert float(distillation(student, student, 30)) == 0
    assert float(distillation(student + shift, student, 4)) == pytest.approx(0, abs=1e-12)


def test_at_high_temperature_it_is_the_distance_of_centred_logits() -> None:
    teacher = logits(0, scale=1.0)
    student = teacher + logits(1, scale=0.1)
    difference = student - teacher
    centred = difference - difference.mean(1, keepdim=True)
    expected = float(centred.square().sum(1).mean() / (2 * 5))
    assert float(distillation(student, teacher, 30)) == pytest.approx(expected, rel=0.05)


def test_the_gradient_does_not_vanish_with_the_temperature() -> None:
    teacher = logits(0)

    def gradient_norm(tau: float) -> float:
        student = logits(1).requires_grad_()
        distillation(student, teacher, tau).backward()
        assert student.grad is not None
        return float(student.grad.norm())

    limit = (logits(1) - teacher - (logits(1) - teacher).mean(1, keepdim=True)).norm() / (5 * 6)
    assert gradient_norm(1000) == pytest.approx(float(limit), rel=0.01)
    assert gradient_norm(30) == pytest.approx(float(limit), rel=0.3)


def test_the_gradient_is_right() -> None:
    teacher = logits(0)
    assert torch.autograd.gradcheck(lambda s: distillation(s, teacher, 4.0), logits(1).requires_grad_())


def test_a_batch_twice_the_size_costs_the_same() -> None:
    student, teacher = logits(0), logits(1)
    twice = distillation(student.repeat(2, 1), teacher.repeat(2, 1), 30)
    assert float(twice) == pytest.approx(float(distillation(student, teacher, 30)), rel=1e-12)


def test_classification_is_the_mean_negative_log_likelihood() -> None:
    outputs, labels = logits(0), torch.tensor([0, 1, 2, 3, 4, 0])
    expected = -sum(
        math.log(softmax(row, 1)[label]) for row, label in zip(outputs.tolist(), labels.tolist(), strict=True)
    )
    assert float(classification(outputs, labels)) == pytest.approx(expected / 6, rel=1e-12)
    assert float(classification(outputs, labels)) == float(F.cross_entropy(outputs, labels))
