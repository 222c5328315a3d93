from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from pwoa.attacks.gradient import fgsm, margin, pgd
from pwoa.guard import ExampleFreeViolation, example_free
from pwoa.threat import Threat

THREAT = Threat(radius=0.1, step=0.05)
Act = Callable[[nn.Module, Tensor, Tensor], Any]


@pytest.fixture
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batch() -> tuple[Tensor, Tensor]:
    return torch.rand(5, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])


def loss(call: Callable[[Tensor], Tensor], x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(call(x), labels)


def tracked_input(model: nn.Module, x: Tensor, labels: Tensor) -> Any:
    x = x.clone().requires_grad_()
    loss(model, x, labels).backward()
    return x.grad


def tracked_keyword(model: nn.Module, x: Tensor, labels: Tensor) -> Any:
    x = x.clone().requires_grad_()
    model(input=x).sum().backward()
    return x.grad


def input_that_comes_from_a_tracked_one(model: nn.Module, x: Tensor, labels: Tensor) -> Any:
    noise = torch.zeros_like(x).requires_grad_()
    loss(model, x + noise, labels).backward()
    return noise.grad


def grad_past_the_door(model: nn.Module, x: Tensor, labels: Tensor) -> Any:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(loss(model.forward, x, labels), x)


def grad_of_a_list_by_keyword(model: nn.Module, x: Tensor, labels: Tensor) -> Any:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(outputs=loss(model.forward, x, labels), inputs=[*model.parameters(), x])


def functional_grad(model: nn.Module, x: Tensor, labels: Tensor) -> Any:
    return torch.func.grad(lambda v: loss(model, v, labels))(x)


def functional_grad_past_the_door(model: nn.Module, x: Tensor, labels: Tensor) -> Any:
    return torch.func.grad(lambda v: loss(model.forward, v, labels))(x)


def functional_jacobian(model: nn.Module, x: Tensor, labels: Tensor) -> Any:
    return torch.func.jacrev(lambda v: loss(model.forward, v, labels))(x)


def forward_mode(model: nn.Module, x: Tensor, labels: Tensor) -> Any:
    return torch.func.jvp(lambda v: loss(model, v, labels), (x,), (torch.ones_like(x),))


FORBIDDEN: list[Act] = [
    lambda model, x, labels: fgsm(model, x, labels, THREAT),
    lambda model, x, labels: pgd(model, x, labels, THREAT, 2),
    lambda model, x, labels: pgd(model, x, labels, THREAT, 0, loss=margin),
    tracked_input,
    tracked_keyword,
    input_that_comes_from_a_tracked_one,
    grad_past_the_door,
    grad_of_a_list_by_keyword,
    functional_grad,
    functional_grad_past_the_door,
    functional_jacobian,
    forward_mode,
]
forbidden = pytest.mark.parametrize(
    "act", FORBIDDEN, ids=["fgsm", "pgd", "cw", *(act.__name__ for act in FORBIDDEN[3:])]
)


@forbidden
def test_inside_it_raises_and_outside_it_works(model: nn.Module, act: Act) -> None:
    with example_free(model), pytest.raises(ExampleFreeViolation, match="example-free"):
        act(model, *batch())
    assert act(model, *batch()) is not None


@forbidden
def test_it_works_again_after_an_exception(model: nn.Module, act: Act) -> None:
    with pytest.raises(KeyError), example_free(model):
        raise KeyError("a bug")
    assert act(model, *batch()) is not None


@forbidden
def test_leaving_an_inner_guard_leaves_the_outer_one_standing(model: nn.Module, act: Act) -> None:
    with example_free(model):
        with example_free(model), pytest.raises(ExampleFreeViolation):
            act(model, *batch())
        with pytest.raises(ExampleFreeViolation):
            act(model, *batch())
    assert act(model, *batch()) is not None


@pytest.mark.parametrize("act", FORBIDDEN[:2], ids=["fgsm", "pgd"])
def test_attacks_on_models_not_guarded_are_refused_too(model: nn.Module, act: Act) -> None:
    with example_free(nn.Linear(1, 1)), pytest.raises(ExampleFreeViolation, match="no attack may run"):
        act(model, *batch())


def test_every_guarded_model_has_its_door(model: nn.Module) -> None:
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    x, _ = batch()
    tracked = x.detach().requires_grad_()
    with example_free(model, teacher):
        for each in (model, teacher):
            for given in (tracked, tracked + 1):
                with pytest.raises(ExampleFreeViolation, match="Sequential tracks gradients"):
                    each(given)


def test_no_input_can_be_made_to_track_gradients(model: nn.Module) -> None:
    """Not even around the door: `forward` called by hand, then `backward`."""
    x, _ = batch()
    with example_free(model):
        with pytest.raises(ExampleFreeViolation, match="requires_grad_"):
            model.forward(x.detach().requires_grad_()).sum().backward()
        with pytest.raises(ExampleFreeViolation, match="requires_grad was set"):
            x.requires_grad = True
        with forward_ad.dual_level(), pytest.raises(ExampleFreeViolation, match="make_dual"):
            forward_ad.make_dual(x, x)
        assert x.requires_grad is False
        model.requires_grad_(False).requires_grad_(True)
    assert "requires_grad" not in vars(Tensor)
    assert x.detach().requires_grad_().requires_grad


def test_nothing_is_left_behind(model: nn.Module) -> None:
    plain = torch.autograd.grad
    with example_free(model):
        assert torch.autograd.grad is not plain
    assert torch.autograd.grad is plain
    assert not model._forward_pre_hooks


def test_training_is_untouched(model: nn.Module) -> None:
    """The same steps inside and outside lead to the same weights."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    x, labels = batch()

    def train() -> dict[str, Tensor]:
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        for _ in range(4):
            optimizer.zero_grad()
            loss(model, x, labels).backward()
            optimizer.step()
        return {name: value.clone() for name, value in model.state_dict().items()}

    outside = train()
    with example_free(model):
        inside = train()
    assert not torch.equal(inside["1.weight"], start["1.weight"])
    assert all(torch.equal(inside[name], outside[name]) for name in outside)


def test_gradients_of_parameters_may_be_asked_for(model: nn.Module) -> None:
    x, labels = batch()
    expected = torch.autograd.grad(loss(model, x, labels), list(model.parameters()))
    with example_free(model):
        found = torch.autograd.grad(loss(model, x, labels), list(model.parameters()))
        (one,) = torch.autograd.grad(loss(model, x, labels), next(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(one, expected[0])
