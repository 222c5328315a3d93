"""The distance of hidden layers from the teacher's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pwoa.objectives.terms import FLOOR, matching, mean_squares


def layers(seed: int, n: int = 8) -> list[Tensor]:
    """Activations of a convolution, of tokens, and of a linear layer; their channels are of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n, 3, 4, 4, generator=generator) * torch.tensor([1.0, 10.0, 0.1]).view(3, 1, 1),
        torch.randn(n, 5, 2, generator=generator) * torch.tensor([1.0, 3.0]),
        torch.randn(n, 6, generator=generator),
    ]


@pytest.mark.parametrize("by_channel", [True, False])
def test_the_teacher_itself_is_at_distance_0_and_a_minimum(by_channel: bool) -> None:
    teacher = layers(0)
    student = [layer.clone().requires_grad_() for layer in teacher]
    distance = matching(student, teacher, mean_squares(teacher, by_channel))
    distance.backward()
    assert distance.item() == 0
    assert all(layer.grad is not None and not layer.grad.any() for layer in student)


def test_a_student_that_is_silent_is_at_distance_1_in_each_layer() -> None:
    teacher = layers(0)
    silent = [torch.zeros_like(layer) for layer in teacher]
    assert float(matching(silent, teacher, mean_squares(teacher, by_channel=False))) == pytest.approx(3, rel=1e-5)


def test_number_by_number() -> None:
    student, teacher = layers(1), layers(2)
    expected = 0.0
    for ours, theirs in zip(student, teacher, strict=True):
        channels = [(ours[:, c], theirs[:, c]) for c in range(3)] if ours.dim() == 4 else []
        channels = channels or [(ours[..., c], theirs[..., c]) for c in range(ours.shape[-1])]
        whole = sum(float(t.square().mean()) for _, t in channels) / len(channels)
        parts = [float((z - t).square().mean()) / (float(t.square().mean()) + FLOOR * whole) for z, t in channels]
        expected += sum(parts) / len(parts)
    assert float(matching(student, teacher, mean_squares(teacher))) == pytest.approx(expected, rel=1e-5)


def test_by_channel_a_small_channel_counts_as_much_as_a_large_one() -> None:
    teacher = layers(0)[:1]
    moved = [teacher[0].clone(), teacher[0].clone()]
    moved[0][:, 1] *= 2  # the largest channel
    moved[1][:, 0] *= 2  # one ten times smaller
    by_channel, by_layer = mean_squares(teacher), mean_squares(teacher, by_channel=False)
    assert float(matching(moved[1:], teacher, by_layer)) < 0.02 * float(matching(moved[:1], teacher, by_layer))
    assert float(matching(moved[1:], teacher, by_channel)) > 0.3 * float(matching(moved[:1], teacher, by_channel))


def test_a_dead_channel_and_lower_precision_are_no_division_by_0() -> None:
    teacher = [torch.zeros(4, 2, 3, 3, dtype=torch.bfloat16)]
    teacher[0][:, 1] = 1
    student = [torch.ones(4, 2, 3, 3, dtype=torch.bfloat16, requires_grad=True)]
    distance = matching(student, teacher, mean_squares(teacher))
    assert distance.dtype == torch.float32
    assert 0 < distance.item() < 100


@pytest.mark.parametrize("shape", [(5, 3, 4, 4), (6, 3)])
@pytest.mark.parametrize("by_channel", [True, False])
def test_the_gradient_is_that_of_the_formula_to_the_bit(shape: tuple[int, ...], by_channel: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    teacher = torch.randn(shape, generator=generator)
    student = torch.randn(shape, generator=generator).requires_grad_()
    (scale,) = mean_squares([teacher], by_channel)
    others = [axis for axis in range(teacher.dim()) if axis != 1]
    expected = ((student.float() - teacher.float()).square().mean(others) / scale).mean()
    (wanted,) = torch.autograd.grad(3 * expected, student)
    found = matching([student], [teacher], [scale])
    (gradient,) = torch.autograd.grad(3 * found, student)
    assert torch.equal(found, expected)
    assert torch.equal(gradient, wanted)


def test_the_gradient_of_a_layer_in_lower_precision_has_its_kind_and_layout() -> None:
    student = torch.randn(4, 3, 2, 2).to(torch.bfloat16, memory_format=torch.channels_last).requires_grad_()
    teacher = torch.randn(4, 3, 2, 2).to(torch.float16, memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(matching([student], [teacher], mean_squares([teacher])), student)
    assert gradient.dtype == torch.bfloat16
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    exact = student.detach().float().requires_grad_()
    distance = matching([exact], [teacher.float()], mean_squares([teacher]))
    (wanted,) = torch.autograd.grad(distance, exact)
    assert torch.equal(gradient, wanted.to(torch.bfloat16))
