"""A new attack is a function and one registration: it is then parsed, labelled and measured like all others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from pwoa.attacks.ball import project
from pwoa.attacks.registry import ATTACKS, Attack, attack_label, gradient_free, parse_attacks, register
from pwoa.data.images import Images
from pwoa.evaluation.robustness import robustness, work
from pwoa.threat import Threat


def darken(
    model: object, x: Tensor, labels: Tensor, threat: Threat, *, generator: torch.Generator | None = None
) -> Tensor:
    """Make every pixel darker by the radius."""
    return project(x - threat.radius, x, threat)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(Attack("darken", "darker pixels", run=darken, needs_gradients=False))
    yield
    del ATTACKS["darken"]


class Bright(nn.Module):
    """Class 1 where the mean of the pixels is above a half."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([0.5 - mean, mean - 0.5], 1)


def test_it_is_parsed_and_labelled() -> None:
    assert parse_attacks("natural,darken") == ("natural", "darken")
    assert attack_label("darken") == "darker pixels"
    assert attack_label("darken@0.1") == "darker pixels at 0.1"
    assert "darken" in gradient_free()


def test_it_is_measured() -> None:
    levels = torch.tensor([0.45, 0.52, 0.58, 0.65, 0.75])
    images = Images(levels.view(-1, 1, 1, 1).repeat(1, 1, 2, 2), torch.ones(5, dtype=torch.int64))
    names, advanced = parse_attacks("natural,darken"), list[int]()
    scores = robustness(Bright(), images, Threat("linf", 0.1), names, batch=2, advance=advanced.append)
    assert scores.right["natural"].tolist() == [False, True, True, True, True]
    assert scores.right["darken"].tolist() == [False, False, False, True, True]
    assert scores["darken"] == 40
    assert scores.seconds["darken"] > 0
    assert sum(advanced) == work(5, names) == 10
