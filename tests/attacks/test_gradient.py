from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pwoa.attacks.ball import random_start
from pwoa.attacks.gradient import cross_entropy, fgsm, margin, pgd
from pwoa.threat import Threat

few = settings(deadline=None, max_examples=20)
THREAT = Threat(radius=0.1, step=0.03)
Attack = Callable[..., Tensor]

attacks = pytest.mark.parametrize(
    "attack",
    [
        fgsm,
        lambda model, x, y, threat: pgd(model, x, y, threat, 8),
        lambda model, x, y, threat: pgd(model, x, y, threat, 8, loss=margin),
    ],
    ids=["fgsm", "pgd", "cw"],
)


def images(n: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images with pixels at 0 and 1 among them, and labels of two classes."""
    generator = torch.Generator().manual_seed(seed)
    x = (1.4 * torch.rand(n, 1, 3, 3, generator=generator) - 0.2).clamp(0, 1)
    return x, torch.randint(2, (n,), generator=generator)


def linear(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(9, 2))


def curved(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 3))


def worst_case(model: nn.Sequential, x: Tensor, labels: Tensor, radius: float) -> Tensor:
    """Every pixel to the end of its interval at which the true class loses most against the other."""
    weight = model.get_parameter("1.weight").detach()
    direction = (weight[1 - labels] - weight[labels]).view_as(x)
    return torch.where(direction > 0, (x + radius).clamp_max(1), (x - radius).clamp_min(0))


@attacks
@few
@given(seed=st.integers(0, 1000), radius=st.sampled_from([0.0, 0.02, 0.1, 0.15]))
def test_on_a_linear_model_the_worst_case_is_reached_exactly(attack: Attack, seed: int, radius: float) -> None:
    model, (x, labels) = linear(seed), images(seed=seed)
    threat = Threat(radius=radius, step=0.04)  # eight steps cross the ball
    assert torch.equal(attack(model, x, labels, threat), worst_case(model, x, labels, radius))


def test_pgd_with_too_few_steps_for_the_ball_does_not_reach_it() -> None:
    model, (x, labels) = linear(), images()
    found = pgd(model, x, labels, Threat(radius=0.3, step=0.01), 3)
    assert not torch.equal(found, worst_case(model, x, labels, 0.3))


@attacks
@few
@given(seed=st.integers(0, 1000), radius=st.floats(0, 1), step=st.floats(0, 1))
def test_the_result_stays_in_the_ball_and_in_the_box(attack: Attack, seed: int, radius: float, step: float) -> None:
    model, (x, labels) = curved(seed), images(seed=seed)
    found = attack(model, x, labels, Threat(radius=radius, step=step))
    assert found.shape == x.shape
    assert found.dtype == x.dtype
    assert float((found - x).abs().max()) <= radius + 1e-6
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1


@few
@given(seed=st.integers(0, 1000), radius=st.floats(0, 1))
def test_a_random_start_is_in_the_ball_and_in_the_box(seed: int, radius: float) -> None:
    x, _ = images(seed=seed)
    start = random_start(x, Threat(radius=radius), torch.Generator().manual_seed(seed))
    assert float((start - x).abs().max()) <= radius + 1e-6
    assert float(start.min()) >= 0
    assert float(start.max()) <= 1


def test_random_starts_fill_the_ball() -> None:
    x = torch.full((2000, 1, 1, 1), 0.5)
    offsets = random_start(x, Threat(radius=0.2), torch.Generator().manual_seed(0)) - x
    assert float(offsets.min()) < -0.19
    assert float(offsets.max()) > 0.19
    assert abs(float(offsets.mean())) < 0.01


def test_the_attacks_hurt() -> None:
    model, (x, _) = curved(), images(64)
    labels = model(x).argmax(1)
    for loss in (cross_entropy, margin):
        with torch.no_grad():
            before, after = (loss(model(v), labels) for v in (x, pgd(model, x, labels, THREAT, 10, loss=loss)))
        assert after > before


def test_the_same_seed_gives_the_same_images() -> None:
    model, (x, labels) = curved(), images()

    def run(seed: int) -> Tensor:
        return pgd(model, x, labels, THREAT, 3, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_a_generator_leaves_the_global_random_numbers_alone() -> None:
    model, (x, labels) = curved(), images()
    before = torch.get_rng_state()
    pgd(model, x, labels, THREAT, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("loss", [cross_entropy, margin])
def test_ten_steps_after_ten_are_twenty(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    model, (x, labels) = curved(), images()
    threat = Threat(radius=0.3, step=0.02)
    ten = pgd(model, x, labels, threat, 10, loss=loss, generator=torch.Generator().manual_seed(0))
    chained = pgd(model, x, labels, threat, 10, loss=loss, start=ten)
    twenty = pgd(model, x, labels, threat, 20, loss=loss, generator=torch.Generator().manual_seed(0))
    assert torch.equal(chained, twenty)
    assert not torch.equal(ten, twenty)


@few
@given(st.integers(0, 1000), st.integers(2, 6))
def test_margin_is_the_largest_other_logit_minus_the_true_one(seed: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (5,), generator=generator)
    expected = sum(
        max(value for j, value in enumerate(row) if j != label) - row[label]
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True)
    )
    assert float(margin(logits, labels)) == pytest.approx(expected, abs=1e-12)


def test_margin_has_a_gradient_at_two_logits_an_image() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, 1.0]], requires_grad=True)
    margin(logits, torch.tensor([1, 1])).backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0, -1, 1], [1, -1, 0]]


@attacks
def test_parameters_get_no_gradient(attack: Attack) -> None:
    model, (x, labels) = curved(), images()
    weight = model.get_parameter("1.weight")
    weight.grad = torch.full_like(weight, 7.0)
    before = x.clone()
    found = attack(model, x, labels, THREAT)
    assert not found.requires_grad
    assert bool((weight.grad == 7).all())
    assert all(p.grad is None for name, p in model.named_parameters() if name != "1.weight")
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(x, before)
    assert not x.requires_grad


@attacks
def test_it_works_without_grad_mode_and_on_frozen_models(attack: Attack) -> None:
    model, (x, labels) = linear().requires_grad_(False), images()
    with torch.no_grad():
        found = attack(model, x, labels, Threat(radius=0.1, step=0.04))
        assert not torch.is_grad_enabled()
    assert torch.equal(found, worst_case(model, x, labels, 0.1))


@attacks
def test_the_mode_of_the_model_is_left_alone(attack: Attack) -> None:
    model, (x, labels) = curved().eval(), images()
    attack(model, x, labels, THREAT)
    assert not model.training
