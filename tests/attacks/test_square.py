"""The two forms of the Square attack: that of the reference AutoAttack, and that of the paper."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
import torch
from torch import Tensor

from pwoa.attacks.ball import Ball, distance
from pwoa.attacks.problem import Problem
from pwoa.attacks.registry import ATTACKS
from pwoa.attacks.square import bumps, square
from pwoa.threat import Threat

REFERENCE, PAPER = "square", "square-paper"
RADII = {"linf": 0.1, "l2": 1.0}
both = pytest.mark.parametrize("norm", RADII)


def tries(x: Tensor, norm: str, queries: int, paper: bool) -> tuple[Tensor, list[Tensor]]:
    """The start of the attack, and what every window changes it to, for a model that no window does any harm to."""
    seen: list[Tensor] = []

    def stubborn(v: Tensor) -> Tensor:
        if len(v) == len(x):
            seen.append(v.clone())
        return torch.tensor([1.0, 0.0]).repeat(len(v), 1)

    labels, generator = torch.zeros(len(x), dtype=torch.int64), torch.Generator().manual_seed(0)
    square(stubborn, x, labels, Threat(norm, RADII[norm]), queries=queries, paper=paper, generator=generator)
    start = seen[0]
    return start, [tried for tried in seen[1:] if not torch.equal(tried, start)]  # rounds look at the start again


def sides(queries: int, paper: bool) -> list[tuple[int, int]]:
    """The sides of the windows, each with how many windows in a row have it."""
    start, tried = tries(torch.full((30, 1, 32, 32), 0.5), "linf", queries, paper)
    found = [int((image != start).any(3).sum(2).max()) for image in tried]
    return [(side, len(list(run))) for side, run in groupby(found)]


def test_the_reference_breaks_its_schedule_off() -> None:
    assert sides(1100, paper=False) == [(29, 11), (20, 40), (14, 150), (10, 300), (7, 500), (5, 99)]


def test_the_paper_stretches_its_schedule_to_the_budget() -> None:
    ends = [0, 1, 5, 20, 50, 100, 200, 400, 600, 800, 999]  # the start is query 0
    lengths = [last - first for first, last in pairwise(ends)]
    assert sides(1000, paper=True) == list(zip([29, 20, 14, 10, 7, 5, 4, 3, 2, 1], lengths, strict=True))


@both
@pytest.mark.parametrize("paper", [False, True])
def test_only_the_papers_windows_reach_the_last_row_and_column(norm: str, paper: bool) -> None:
    start, tried = tries(torch.full((20, 3, 28, 28), 0.5), norm, 120, paper)
    changed = torch.stack([image != start for image in tried]).any(0).any(0).any(0)
    assert bool(changed[-1].any()) is paper
    assert bool(changed[:, -1].any()) is paper
    assert bool(changed[:-1, :-1].all())


@pytest.mark.parametrize("side", [1, 2, 3])
@both
def test_a_window_as_large_as_the_image_is_all_of_it(norm: str, side: int) -> None:
    start, tried = tries(torch.full((20, 1, side, side), 0.5), norm, 9, False)
    changed = torch.stack([image != start for image in tried]).any(0).any(0)
    assert bool(changed.all())


@pytest.mark.parametrize("paper", [False, True])
def test_in_l2_the_reference_loses_what_the_box_cuts_off(paper: bool) -> None:
    x = (torch.rand(10, 3, 28, 28, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    lengths = torch.stack([distance(image, x, "l2") for image in tries(x, "l2", 100, paper)[1]])
    assert float(lengths.max()) <= RADII["l2"] + 1e-5
    assert bool((lengths > RADII["l2"] - 1e-4).all()) is paper
    assert bool((lengths < RADII["l2"] - 1e-2).all()) is not paper


def test_each_bump_of_the_start_is_a_hill_beside_a_valley_as_long_in_either_direction() -> None:
    x = torch.full((4, 2, 28, 28), 0.5)
    offset = (bumps(Ball.around(x, Threat("l2", 1.0)), torch.Generator().manual_seed(0)) - x)[:, :, 1:26, 1:26]
    tiles = offset.unfold(2, 5, 5).unfold(3, 5, 5)
    hills, valleys = tiles.clamp_min(0).square().sum((4, 5)), tiles.clamp_max(0).square().sum((4, 5))
    assert torch.allclose(hills, torch.full_like(hills, 1 / 100), atol=1e-6)  # 2 channels of 25 tiles, in halves
    assert torch.allclose(valleys, hills, atol=1e-6)
    upright = (tiles[..., 0, 0] * tiles[..., -1, 0]) > 0
    assert bool((upright[:, 0] == upright[:, 1]).all())
    assert 0.3 < float(upright.float().mean()) < 0.7


@pytest.mark.parametrize(("name", "paper"), [(REFERENCE, False), (PAPER, True)])
def test_the_names_stand_for_the_two(name: str, paper: bool) -> None:
    labels, threat = torch.zeros(3, dtype=torch.int64), Threat("linf", 0.1)

    def model(v: Tensor) -> Tensor:
        return torch.stack([v.flatten(1).mean(1) + 1, v.flatten(1).square().mean(1)], 1)

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(0)

    x = torch.rand(3, 1, 6, 6, generator=seeded())
    expected = square(model, x, labels, threat, paper=paper, generator=seeded())
    run = ATTACKS[name].run
    assert run is not None
    assert torch.equal(run(model, x, labels, threat, generator=seeded()), expected)
    best, problem = x, Problem(model, x, labels, threat, seeded())
    for attack in ATTACKS[name].rounds_for(2):
        best = attack(problem, best)
    assert torch.equal(best, expected)
