from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.sparsity.constraint import Constraint
from pwoa.sparsity.masks import Masks
from pwoa.sparsity.selection import prunable
from pwoa.training.steps import Average

KEPT = {"0.weight": 20, "3.weight": 13}


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(8, 1, 4, 4, generator=generator), torch.randint(3, (8,), generator=generator)


def zeros(net: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach() == 0 for name, weight in prunable(net).items()}


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def test_choose_keeps_exactly_the_largest() -> None:
    net = network()
    before = {name: weight.detach().clone() for name, weight in prunable(net).items()}
    masks = Masks(Constraint(prunable(net), KEPT))
    masks.choose()
    for name, weight in prunable(net).items():
        mask = masks.masks[name].bool()
        assert int(mask.sum()) == KEPT[name] == int(torch.count_nonzero(weight))
        assert torch.equal(weight[mask], before[name][mask])
        assert before[name][mask].abs().min() >= before[name][~mask].abs().max()


def test_gradients_are_masked_and_other_parameters_left_alone() -> None:
    net = network()
    masks = Masks(Constraint(prunable(net), KEPT))
    masks.choose()
    F.cross_entropy(net(batch()[0]), batch()[1]).backward()
    before = {name: gradient(parameter).clone() for name, parameter in net.named_parameters()}
    masks.mask_gradients()
    for name, parameter in net.named_parameters():
        mask = masks.masks.get(name, torch.ones_like(parameter))
        assert torch.equal(gradient(parameter), before[name] * mask)
    assert all((before[name][masks.masks[name] == 0] != 0).any() for name in KEPT)


def test_weights_without_gradient_are_passed_over() -> None:
    net = network()
    net.get_parameter("0.weight").requires_grad_(False)
    masks = Masks(Constraint(prunable(net), KEPT))
    masks.choose()
    F.cross_entropy(net(batch()[0]), batch()[1]).backward()
    masks.mask_gradients()
    assert net.get_parameter("0.weight").grad is None
    assert int(torch.count_nonzero(gradient(net.get_parameter("3.weight")))) <= KEPT["3.weight"]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, weight_decay=0.01),
    ],
    ids=["sgd", "adam"],
)
def test_zeros_stay_zero_through_momentum_weight_decay_and_averaging(
    make: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
) -> None:
    net = network()
    masks = Masks(Constraint(prunable(net), KEPT))
    masks.choose()
    pruned = zeros(net)
    kept_before = net.get_parameter("3.weight").detach().clone()
    average = Average(net, 0.9)
    optimizer = make(net.parameters())
    for _ in range(12):
        optimizer.zero_grad()
        F.cross_entropy(net(batch()[0]), batch()[1]).backward()
        masks.mask_gradients()
        optimizer.step()
        average.update()
    for name, weight in prunable(net).items():
        assert torch.equal(weight == 0, pruned[name])
        assert int(torch.count_nonzero(weight)) == KEPT[name]
    assert not torch.equal(net.get_parameter("3.weight"), kept_before)
    live = net.get_parameter("3.weight").detach().clone()
    with average.applied():
        assert not torch.equal(net.get_parameter("3.weight"), live)
        for name, weight in prunable(net).items():
            assert torch.equal(weight == 0, pruned[name])
    assert torch.equal(net.get_parameter("3.weight"), live)


def test_state_round_trip() -> None:
    net = network()
    masks = Masks(Constraint(prunable(net), KEPT))
    masks.choose()
    other = Masks(Constraint(prunable(network()), KEPT))
    assert all(mask.dtype == torch.bool for mask in masks.state_dict().values())
    other.load_state_dict(masks.state_dict())
    for name in KEPT:
        assert torch.equal(other.masks[name], masks.masks[name])
        assert other.masks[name].dtype == torch.float32
        assert int(other.masks[name].sum()) == KEPT[name]
