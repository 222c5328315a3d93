"""Every attack of the registry: what must hold for all of them, and closed forms on linear models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pwoa.attacks.apgd import apgd_ce, apgd_dlr, apgd_t, checkpoints, strong
from pwoa.attacks.ball import Ball, distance
from pwoa.attacks.fab import fab_t, nearest_broken
from pwoa.attacks.fmn import fmn
from pwoa.attacks.gradient import cw, fgsm, pgd
from pwoa.attacks.problem import Problem, is_broken
from pwoa.attacks.registry import ATTACKS
from pwoa.attacks.square import square, square_rounds
from pwoa.errors import InputError
from pwoa.guard import ExampleFreeViolation, example_free
from pwoa.threat import Threat

Run = Callable[..., Tensor]
NORMS = ["linf", "l2"]
both = pytest.mark.parametrize("norm", NORMS)

SHORT: dict[str, Run] = {
    "fgsm": fgsm,
    "apgd-ce": partial(apgd_ce, steps=12),
    "apgd-dlr": partial(apgd_dlr, steps=12),
    "apgd-t": partial(apgd_t, steps=12),
    "strong": strong,
    "fab-t": partial(fab_t, steps=8),
    "fmn": partial(fmn, steps=12),
    "square": partial(square, queries=100),
    "square-paper": partial(square, queries=30, paper=True),
    "pgd": partial(pgd, steps=6, restarts=2),
    "cw": partial(cw, steps=3),
}
every = pytest.mark.parametrize("name", SHORT)
FAMILIES = {"pgdN": "pgd", "cwN": "cw"}
RANDOM = [name for name in SHORT if name not in ("fgsm", "fab-t", "fmn")]


def images(n: int = 6, classes: int = 4, seed: int = 0, side: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = (1.4 * torch.rand(n, 2, side, side, generator=generator) - 0.2).clamp(0, 1)
    return x, torch.randint(classes, (n,), generator=generator)


def network(seed: int = 0, classes: int = 4, hidden: int = 16, side: int = 5) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        d = 2 * side * side
        layers = [nn.Linear(d, hidden), nn.Tanh(), nn.Linear(hidden, classes)] if hidden else [nn.Linear(d, classes)]
        return nn.Sequential(nn.Flatten(), *layers)


linear = partial(network, hidden=0)


def test_no_attack_is_left_out_here() -> None:
    plain = [FAMILIES.get(name, name) for name, attack in ATTACKS.items() if attack.parts == (name,)]
    assert {*plain} - {"natural"} == {*SHORT}


@every
@both
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 1000), radius=st.floats(0, 1), classes=st.integers(2, 5), side=st.integers(1, 7))
def test_every_attack_stays_in_the_ball_and_in_the_box(
    name: str, norm: str, seed: int, radius: float, classes: int, side: int
) -> None:
    model, (x, labels) = network(seed, classes, side=side), images(4, classes, seed, side)
    before = x.clone()
    found = SHORT[name](model, x, labels, Threat(norm, radius, 0.1), generator=torch.Generator().manual_seed(seed))
    assert found.shape == x.shape
    assert found.dtype == x.dtype
    assert not found.requires_grad
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert float(distance(found, x, norm).max()) <= radius + 1e-5
    assert bool(Ball.around(x, Threat(norm, radius)).contains(found).all())
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", RANDOM)
@both
def test_the_same_seed_gives_the_same_images_and_another_one_others(name: str, norm: str) -> None:
    model, (x, labels) = network(), images()
    labels = model(x).argmax(1)

    def run(seed: int) -> Tensor:
        return SHORT[name](model, x, labels, Threat(norm, 0.05, 0.01), generator=torch.Generator().manual_seed(seed))

    state = torch.get_rng_state()
    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    assert torch.equal(torch.get_rng_state(), state)


@every
def test_every_attack_refuses_to_run_in_an_example_free_run(name: str) -> None:
    model, (x, labels) = network(), images()
    refused = {"cw": "pgd", "square-paper": "square"}.get(name, name)
    with example_free(), pytest.raises(ExampleFreeViolation, match=refused):
        SHORT[name](model, x, labels, Threat())


@every
@both
def test_every_attack_breaks_what_is_easy(name: str, norm: str) -> None:
    model, (x, _) = network(), images(20)
    labels = model(x).argmax(1)
    radius = {"linf": 0.9, "l2": 5.0}[norm]
    found = SHORT[name](model, x, labels, Threat(norm, radius, radius / 3), generator=torch.Generator().manual_seed(0))
    assert int(is_broken(model, found, labels).sum()) > 10


@every
def test_no_images_are_no_problem(name: str) -> None:
    if name not in ("apgd-t", "fab-t", "fmn", "square", "square-paper"):
        return
    model, (x, labels) = network(), images()
    assert SHORT[name](model, x[:0], labels[:0], Threat()).shape == x[:0].shape


def worst(model: nn.Sequential, x: Tensor, labels: Tensor, threat: Threat) -> Tensor:
    """The smallest lead of the true class that a linear model of two classes can be brought to, by bisection."""
    weight = model.get_parameter("1.weight").detach().double()
    toward = (weight[1 - labels] - weight[labels]).view_as(x)
    flat = x.double()
    if threat.norm == "linf":
        end = torch.where(toward > 0, (flat + threat.radius).clamp_max(1), (flat - threat.radius).clamp_min(0))
    else:  # x + t·toward, cut to the box, with the largest t that the radius allows
        low, high = torch.zeros(len(x)), torch.full((len(x),), 1e4)
        for _ in range(100):
            t = (low + high) / 2
            end = (flat + t.view(-1, 1, 1, 1) * toward).clamp(0, 1)
            inside = distance(end, flat, "l2") <= threat.radius
            low, high = torch.where(inside, t, low), torch.where(inside, high, t)
        end = (flat + low.view(-1, 1, 1, 1) * toward).clamp(0, 1)
    return leads(model.double(), end, labels)


def leads(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        z: Tensor = model(x)
    return (z.gather(1, labels[:, None]) - z.gather(1, 1 - labels[:, None])).squeeze(1).double()


@pytest.mark.parametrize("attack", [fgsm, apgd_ce, apgd_dlr, apgd_t])
@both
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 1000), radius=st.sampled_from([0.02, 0.1, 0.3]))
def test_on_a_linear_model_the_worst_case_is_found(attack: Run, norm: str, seed: int, radius: float) -> None:
    model, (x, labels) = linear(seed, 2), images(5, 2, seed)
    threat = Threat(norm, radius)
    found = attack(model, x, labels, threat, generator=torch.Generator().manual_seed(0))
    reached = leads(model, found, labels)
    lowest = worst(model, x, labels, threat).clone()
    # In l2 one step cannot turn round the corner of the box; APGD-T stops at images that are wrong already.
    slack = 0.3 * radius if attack is fgsm and norm == "l2" else 1e-3 * radius
    if attack is apgd_t:
        reached, lowest = reached[lowest > 0], lowest[lowest > 0]
    assert bool((reached >= lowest - 1e-5).all())
    assert bool((reached <= lowest + slack + 1e-5).all())


@both
def test_fab_gives_back_what_it_cannot_break_for_want_of_a_gradient(norm: str) -> None:
    plain, (x, _) = linear(0, 3), images(40, 3, 0)

    def model(v: Tensor) -> Tensor:
        logits: Tensor = plain(v)
        return logits + 0 * v.flatten(1)[:, :1].sub(0.5).relu().sqrt()  # NaN where the first pixel is below 0.5

    labels = plain(x).argmax(1)
    dark = x.flatten(1)[:, 0] < 0.5
    found = nearest_broken(model, x, labels, norm)
    assert bool(dark.any())
    assert not bool(dark.all())
    assert bool(found.isfinite().all())
    broken = plain(found).argmax(1) != labels
    assert bool(broken[~dark].any())
    assert torch.equal(found[~broken], x[~broken])


@both
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000), classes=st.integers(2, 4))
def test_fab_finds_the_nearest_image_of_another_class_of_a_linear_model(norm: str, seed: int, classes: int) -> None:
    model, (x, _) = linear(seed, classes), images(5, classes, seed)
    with torch.no_grad():
        logits = model(x)
    labels = logits.argmax(1)
    weight = model.get_parameter("1.weight").detach()
    found, exact = [], []
    for rank in range(classes - 1):
        near = nearest_broken(model, x, labels, norm, rank)
        assert bool((is_broken(model, near, labels) | (near == x).flatten(1).all(1)).all())
        found.append(torch.where(is_broken(model, near, labels), distance(near, x, norm), torch.inf))
    for other in range(classes):
        normal = weight[labels] - weight[other]
        gap = logits.gather(1, labels[:, None]).squeeze(1) - logits[:, other]
        exact.append(torch.where(labels == other, torch.inf, nearest_on_boundary(x.flatten(1), normal, gap, norm)))
    shortest, expected = torch.stack(found).amin(0), torch.stack(exact).amin(0)
    rounding = 2e-6  # of float32 logits, where the image lies almost on the boundary
    assert shortest.tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=rounding)


def nearest_on_boundary(x: Tensor, normal: Tensor, gap: Tensor, norm: str) -> Tensor:
    """How far the box's nearest point with gap + normal·(z − x) ≤ 0 is, by bisection; infinite if there is none."""
    x, normal, gap = x.double(), normal.double(), gap.double()
    direction = normal.sign() if norm == "linf" else normal
    low, high = torch.zeros_like(gap), torch.full_like(gap, 1e5)

    def z(t: Tensor) -> Tensor:
        return (x - t[:, None] * direction).clamp(0, 1)

    for _ in range(100):
        t = (low + high) / 2
        crossed = gap + (normal * (z(t) - x)).sum(1) <= 0
        low, high = torch.where(crossed, low, t), torch.where(crossed, t, high)
    reachable = gap + (normal * (z(high) - x)).sum(1) <= 1e-12
    return torch.where(reachable, distance(z(high), x, norm), torch.inf).float()


def test_the_checkpoints_of_the_paper() -> None:
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert checkpoints(50)[:3] == [11, 21, 29]


def test_apgd_makes_one_pass_a_step() -> None:
    model, (x, labels) = network(), images()
    passes: list[int] = []

    def watched(v: Tensor) -> Tensor:
        passes.append(len(v))
        logits: Tensor = model(v)
        return logits

    apgd_ce(watched, x, labels, Threat(), steps=20)
    assert passes == [len(x)] * 21


@pytest.mark.parametrize("paper", [False, True])
def test_square_makes_only_forward_passes_and_one_a_query(paper: bool) -> None:
    model, (x, labels) = network(), images()
    labels = model(x).argmax(1)
    tracked: list[bool] = []

    def watched(v: Tensor) -> Tensor:
        tracked.append(v.requires_grad or torch.is_grad_enabled())
        logits: Tensor = model(v)
        return logits

    square(watched, x, labels, Threat("linf", 1e-4), queries=200, paper=paper)
    rounds = len(square_rounds(4, queries=200, paper=paper))
    passes = 200 if paper else 201  # the start is a query in the paper only
    assert not any(tracked)
    assert len(tracked) == passes + 1 + (rounds - 1) + rounds  # classes, each round's start and its check


@both
@pytest.mark.parametrize("paper", [False, True])
def test_square_never_gets_worse(norm: str, paper: bool) -> None:
    model, (x, _) = network(), images(8)
    labels = model(x).argmax(1)
    threat, best, generator = Threat(norm, 0.05), x, torch.Generator().manual_seed(0)
    before = None
    for attack in square_rounds(4, queries=300, paper=paper):
        best = attack(Problem(model, x, labels, threat, generator), best)
        z = model(best).detach()
        now = z.gather(1, labels[:, None]).squeeze(1) - z.scatter(1, labels[:, None], -9e9).amax(1)
        assert before is None or bool((now <= before + 1e-6).all())
        before = now


def test_pgd_with_restarts_breaks_more() -> None:
    model, (x, _) = network(3), images(60, seed=3)
    labels = model(x).argmax(1)
    threat = Threat("linf", 0.05, 0.005)

    def broken(restarts: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return is_broken(model, pgd(model, x, labels, threat, 1, restarts=restarts, generator=generator), labels)

    once, often = broken(1), broken(6)
    assert int(often.sum()) > int(once.sum())
    assert bool((often | ~once).all())


def test_a_model_of_one_class_is_refused() -> None:
    x, labels = images(classes=1)
    with pytest.raises(InputError, match="two or more classes"):
        apgd_t(network(classes=1), x, labels, Threat())
