"""FMN: the distance to the boundary, in closed form on linear models, and beside APGD on a robust network."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pwoa
from pwoa.attacks.apgd import apgd_ce
from pwoa.attacks.ball import distance
from pwoa.attacks.fmn import fmn, minimal
from pwoa.attacks.problem import is_broken
from pwoa.errors import InputError
from pwoa.threat import Threat

both = pytest.mark.parametrize("norm", ["linf", "l2"])


def linear(seed: int, classes: int = 2) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(50, classes))


def grey(seed: int, count: int = 20) -> Tensor:
    """Images so far from black and white that the box does not matter."""
    return 0.4 + 0.2 * torch.rand(count, 2, 5, 5, generator=torch.Generator().manual_seed(seed))


@both
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000))
def test_on_a_linear_model_the_distance_is_the_margin_over_the_dual_norm(norm: str, seed: int) -> None:
    model, x = linear(seed), grey(seed)
    logits = model(x).detach()
    labels, gap = logits.argmax(1), logits.diff(dim=1).abs().squeeze(1)
    normal = model.get_parameter("1.weight").detach().diff(dim=0)
    exact = gap / (normal.abs().sum() if norm == "linf" else normal.norm())
    found, far = minimal(model, x, labels, norm)
    assert bool(is_broken(model, found, labels).all())
    assert torch.allclose(distance(found, x, norm), far)
    rounding = 1e-5  # of float32 logits, where the image lies almost on the boundary
    assert bool((far >= exact - rounding).all())
    assert bool((far <= 1.01 * exact + rounding).all())


@both
def test_what_is_wrong_already_is_at_no_distance_and_what_cannot_be_broken_at_none(norm: str) -> None:
    model, x = linear(0), grey(0)
    labels = model(x).argmax(1)
    found, far = minimal(model, x, 1 - labels, norm)
    assert torch.equal(found, x)
    assert far.eq(0).all()

    def sure(v: Tensor) -> Tensor:
        return torch.tensor([[1.0, 0.0]]) + 0 * v.flatten(1).sum(1, keepdim=True)

    found, far = minimal(sure, x, torch.zeros(len(x), dtype=torch.long), norm)
    assert torch.equal(found, x)
    assert far.isinf().all()


def test_the_attack_is_the_nearest_image_cut_to_the_ball() -> None:
    model, x = linear(1), grey(1)
    labels = model(x).argmax(1)
    _, far = minimal(model, x, labels, "linf")
    radius = float(far.median())
    broken = is_broken(model, fmn(model, x, labels, Threat("linf", radius)), labels)
    assert torch.equal(broken, far <= radius)


def test_on_the_robust_lenet_it_is_no_weaker_than_apgd_at_the_radius() -> None:
    data = pwoa.load_data("mnist-mini")
    model, (x, labels) = pwoa.load_model("embedded", data).eval(), data.test.batch(torch.arange(200))
    threat = Threat("linf", 0.3)
    rival = apgd_ce(model, x, labels, threat, steps=50, generator=torch.Generator().manual_seed(0))
    _, far = minimal(model, x, labels, "linf", steps=50)
    assert int((far > 0.3).sum()) <= int((~is_broken(model, rival, labels)).sum()) + 4
    assert 0.3 < float(far.median()) < 0.4


def test_a_model_of_one_class_is_refused() -> None:
    with pytest.raises(InputError, match="two or more classes"):
        minimal(linear(0, 1), grey(0), torch.zeros(20, dtype=torch.long), "l2")
