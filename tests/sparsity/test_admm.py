from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pwoa.sparsity.admm import Admm
from pwoa.sparsity.constraint import Constraint


def project(weight: Tensor, kept: int) -> Tensor:
    """The nearest weight with `kept` entries."""
    return Constraint({"w": nn.Parameter(weight)}, {"w": kept}).project("w", weight)


def parameters(*shapes: tuple[int, ...], seed: int = 0) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"layer{i}": nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for i, shape in enumerate(shapes)
    }


def constrained_minimum(a: Tensor, d: Tensor, kept: int) -> tuple[float, tuple[int, ...]]:
    """The least 1/2 (w − a)ᵀ D (w − a) over all w with `kept` entries, by solving for every support."""
    best: tuple[float, tuple[int, ...]] = (float("inf"), ())
    for support in itertools.combinations(range(len(a)), kept):
        inside = list(support)
        w = torch.zeros_like(a)
        w[inside] = torch.linalg.solve(d[inside][:, inside], (d @ a)[inside])
        best = min(best, (float((w - a) @ d @ (w - a) / 2), support))
    return best


def diagonal() -> tuple[Tensor, Tensor]:
    """A weight small in value and large in effect: the magnitudes of `a` choose the wrong support."""
    return torch.tensor([1.0, 0.6, -0.7, 0.2, -0.1]).double(), torch.diag(torch.tensor([0.5, 4, 0.5, 1, 1])).double()


def correlated() -> tuple[Tensor, Tensor]:
    a = torch.tensor([1.2, -0.8, 0.9, 0.3, 0.2, -0.1]).double()
    mix = torch.randn(6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return a, torch.eye(6).double() + 0.1 * mix @ mix.T


@pytest.mark.parametrize(("problem", "kept"), [(diagonal, 2), (correlated, 3)])
def test_it_finds_the_constrained_minimum_of_a_quadratic(
    problem: Callable[[], tuple[Tensor, Tensor]], kept: int
) -> None:
    a, d = problem()
    value, support = constrained_minimum(a, d, kept)
    weight = nn.Parameter(a.clone())
    admm = Admm(Constraint({"w": weight}, {"w": kept}), rho=0.1, growth=1.2, limit=1.0)
    optimizer = torch.optim.SGD([weight], lr=0.15)
    for step in range(3000):
        if step and step % 10 == 0:
            admm.update()
        optimizer.zero_grad()
        ((weight - a) @ d @ (weight - a) / 2).backward()
        admm.penalty()
        admm.add_gradient()
        optimizer.step()
    found = project(weight.detach(), kept)
    assert tuple(found.nonzero().flatten().tolist()) == support
    assert float((found - a) @ d @ (found - a) / 2) == pytest.approx(value, rel=1e-6)
    assert torch.allclose(weight, found, atol=1e-6)  # θ itself has come into the set


def test_the_diagonal_problem_is_not_solved_by_magnitude() -> None:
    a, d = diagonal()
    assert tuple(project(a, 2).nonzero().flatten().tolist()) != constrained_minimum(a, d, 2)[1]


def test_penalty_is_the_formula_and_add_gradient_its_derivative() -> None:
    weights = parameters((3, 4), (2, 3, 2, 2))
    kept = {"layer0": 5, "layer1": 7}
    admm = Admm(Constraint(weights, kept), rho=0.3, growth=2.0, limit=10.0)
    with torch.no_grad():
        for weight in weights.values():
            weight.add_(0.1 * weight.square() + 0.05)
    at_update = {name: weight.detach().clone() for name, weight in weights.items()}
    admm.update()
    with torch.no_grad():
        for weight in weights.values():
            weight.mul_(0.7)
    z = {name: project(at_update[name], kept[name]) for name in weights}
    u = {name: at_update[name] - z[name] for name in weights}
    expected = sum((0.6 / 2 * (weights[n] - z[n] + u[n]).square().sum() for n in weights), torch.zeros(()))
    expected.backward()
    by_autograd = {name: weight.grad.clone() for name, weight in weights.items() if weight.grad is not None}
    for i, weight in enumerate(weights.values()):
        weight.grad = torch.full_like(weight, 0.25) if i else None
    assert float(admm.penalty()) == pytest.approx(expected.item(), rel=1e-12)
    admm.add_gradient()
    for i, (name, weight) in enumerate(weights.items()):
        assert weight.grad is not None
        assert torch.allclose(weight.grad, by_autograd[name] + 0.25 * i, rtol=1e-12)


def test_before_any_update_the_penalty_is_the_distance_to_the_projection() -> None:
    weights = parameters((4, 5))
    admm = Admm(Constraint(weights, {"layer0": 6}), rho=0.02)
    distance = (weights["layer0"] - project(weights["layer0"], 6)).detach().square().sum()
    assert float(admm.penalty()) == pytest.approx(0.01 * float(distance), rel=1e-12)


def test_no_penalty_where_nothing_is_pruned() -> None:
    admm = Admm(Constraint(parameters((4, 5)), {"layer0": 20}))
    assert float(admm.penalty()) == 0


def test_rho_grows_to_the_limit_and_stops() -> None:
    admm = Admm(Constraint(parameters((4,)), {"layer0": 2}), rho=0.1, growth=3.0, limit=1.0)
    seen = []
    for _ in range(5):
        seen.append(admm.rho)
        admm.update()
    assert seen == pytest.approx([0.1, 0.3, 0.9, 1.0, 1.0])


def test_a_rho_above_the_limit_stays() -> None:
    admm = Admm(Constraint(parameters((4,)), {"layer0": 2}), rho=5.0, growth=3.0, limit=1.0)
    admm.update()
    assert admm.rho == 5.0


def advance(weights: dict[str, nn.Parameter], admm: Admm, steps: int) -> None:
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        sum(((weight - 1).square().sum() for weight in weights.values()), start=torch.tensor(0.0)).backward()
        admm.penalty()
        admm.add_gradient()
        optimizer.step()
        if step % 2:
            admm.update()


def test_it_goes_on_from_its_state_to_the_same_bits() -> None:
    def fresh() -> tuple[dict[str, nn.Parameter], Admm]:
        weights = parameters((3, 4), (5,))
        return weights, Admm(Constraint(weights, {"layer0": 4, "layer1": 2}), rho=0.05)

    weights, admm = fresh()
    advance(weights, admm, 5)
    state = through_a_file(admm.state_dict())
    values = {name: weight.detach().clone() for name, weight in weights.items()}
    advance(weights, admm, 6)

    other, resumed = fresh()
    with torch.no_grad():
        for name, weight in other.items():
            weight.copy_(values[name])
    resumed.load_state_dict(state)
    advance(other, resumed, 6)
    assert resumed.rho == admm.rho
    assert all(torch.equal(other[name], weights[name]) for name in weights)
    assert torch.equal(resumed.penalty(), admm.penalty())


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded
