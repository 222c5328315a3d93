"""Batch normalisation over groups: the same whether a batch comes at once or in parts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pwoa.training.groups import Plan, grouped, statistics_anew


def net(**settings: Any) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3, bias=False),
            nn.BatchNorm2d(3, **settings),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3 * 4, 5),
            nn.BatchNorm1d(5, **settings),
        )
        for layer in model:
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) and layer.affine:
                nn.init.normal_(layer.weight)
                nn.init.normal_(layer.bias)
    return model.double()


def batch(n: int = 12) -> Tensor:
    return torch.rand(n, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("settings", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": 0.3}])
def test_a_group_is_normalised_like_a_batch_of_its_own(settings: dict[str, Any]) -> None:
    model, x = net(**settings), batch()
    expected = torch.cat([copy.deepcopy(model)(part) for part in x.split(4)])
    with grouped(model, Plan(4)):
        found = model(x)
    assert torch.allclose(found, expected, atol=1e-5)
    expected = copy.deepcopy(model).eval()(x)
    with grouped(model.eval(), Plan(4)):
        assert torch.allclose(model(x), expected)


def test_one_group_is_plain_batch_normalisation() -> None:
    plain, model, x = net(), net(), batch()
    x.requires_grad_()
    weights = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (expected,) = torch.autograd.grad((plain(x) * weights).sum(), x)
    with grouped(model, Plan(128)):
        (found,) = torch.autograd.grad((model(x) * weights).sum(), x)
    assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
    for name, value in plain.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, atol=1e-6), name


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_running_statistics_do_not_depend_on_the_parts(parts: int) -> None:
    whole, cut, x = net(), net(), batch(24)
    with grouped(whole, Plan(4)):
        for _ in range(2):
            whole(x)
    plan = Plan(4, parts=parts)
    with grouped(cut, plan):
        for _ in range(2):
            for plan.part, piece in enumerate(x.split(24 // parts)):
                cut(piece)
    for name, value in whole.state_dict().items():
        assert torch.allclose(cut.state_dict()[name], value, atol=1e-6), name


def test_running_statistics_are_means_over_groups() -> None:
    layer = nn.BatchNorm2d(2, momentum=0.25)
    model, x = nn.Sequential(layer), batch(8).float()
    with grouped(model, Plan(4)):
        model(x)
    assert isinstance(layer.running_mean, Tensor)
    assert isinstance(layer.running_var, Tensor)
    means = torch.stack([part.mean((0, 2, 3)) for part in x.split(4)]).mean(0)
    variances = torch.stack([part.var((0, 2, 3)) for part in x.split(4)]).mean(0)
    assert torch.allclose(layer.running_mean, 0.25 * means)
    assert torch.allclose(layer.running_var, 0.75 + 0.25 * variances)


def test_the_layers_are_as_before_afterwards_and_in_eval_mode_all_along() -> None:
    model, x = net(), batch()
    kinds, keys = [type(layer) for layer in model], list(model.state_dict())
    expected = copy.deepcopy(model).eval()(x)
    with grouped(model, Plan(4)):
        assert list(model.state_dict()) == keys
        assert torch.allclose(model.eval()(x), expected)
    with pytest.raises(ValueError, match="cannot be cut"), grouped(model, Plan(5)):
        model.train()(x)
    assert [type(layer) for layer in model] == kinds
    assert "plan" not in vars(model[1])


def test_a_batch_that_is_no_whole_number_of_groups_is_refused() -> None:
    model = net()
    with grouped(model, Plan(5)), pytest.raises(ValueError, match="12 images cannot be cut into groups of 5"):
        model(batch())


@pytest.mark.parametrize("settings", [{}, {"momentum": None}, {"momentum": 0.3}])
def test_new_statistics_are_means_over_the_passes(settings: dict[str, Any]) -> None:
    model, x = nn.Sequential(nn.BatchNorm2d(2, **settings)), batch(12).float()
    model(10 * x)
    before = copy.deepcopy(model.state_dict())
    with statistics_anew(model) as note:
        for part in x.split(4):
            model(part)
            note()
    after = model.state_dict()
    means = torch.stack([part.mean((0, 2, 3)) for part in x.split(4)]).mean(0)
    variances = torch.stack([part.var((0, 2, 3)) for part in x.split(4)]).mean(0)
    assert torch.allclose(after.pop("0.running_mean"), means)
    assert torch.allclose(after.pop("0.running_var"), variances)
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    assert len(after) == len(before) - 2
    assert model[0].momentum == settings.get("momentum", 0.1)


def test_new_statistics_are_taken_in_groups_however_a_batch_was_cut_up() -> None:
    model, plan, x = net(), Plan(4, part=1, parts=2), batch(24)
    with grouped(model, plan), plan.undivided(), statistics_anew(model) as note:
        for part in x.split(8):
            model(part)
            note()
    assert (plan.part, plan.parts) == (1, 2)
    expected = net()
    with statistics_anew(expected) as note:
        for part in x.split(4):
            expected(part)
            note()
    for name, value in expected.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, atol=1e-6), name
