"""Square attack (Andriushchenko et al. 2020, "Square Attack: a query-efficient black-box adversarial attack").

Random search that needs no gradients: each query changes a square window of the image, at a random place, and
keeps the change if the lead of the true class falls. Windows shrink as the queries are spent.

There are two of it. `square` is that of the reference AutoAttack, so that figures can be compared with published ones:
the schedule for 10,000 queries is broken off at the budget of 5,000, windows do not reach the last row and column, and
the start comes before the queries. `square-paper` (`paper=True`) keeps to the paper: the schedule is stretched to the
budget, windows go anywhere, and the start is the first query. In l2 its windows also use all of the radius where the
box cuts some of it off, which neither the paper nor the reference does, and which breaks more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from pwoa.attacks.ball import Ball, take_
from pwoa.attacks.losses import lead
from pwoa.attacks.rounds import Round, run_rounds
from pwoa.attacks.windows import bumps, move_mass, recolour, stripes
from pwoa.guard import refuse_attack
from pwoa.models.border import LogitModel
from pwoa.recipe import Threat

QUERIES = 5000
P_INIT = 0.8
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The queries, of 10,000, after which the changed share of the pixels is halved (section 3.2)."""

_ROUND = 250
_FIRST_ROUNDS = (10, 50, 125)
_NORMS = {"linf": (stripes, recolour), "l2": (bumps, move_mass)}


def square(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    *,
    queries: int = QUERIES,
    p_init: float = P_INIT,
    paper: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """For each image what `queries` queries have found with the smallest lead of the true class.

    paper: the paper's schedule and windows, not those of the reference AutoAttack. With few queries it is the one to
        take, for the other's windows would all be large.
    """
    refuse_attack("square")
    rounds = partial(square_rounds, queries=queries, p_init=p_init, paper=paper)
    return run_rounds(rounds, model, x, labels, threat, generator)


def square_rounds(
    classes: int, *, queries: int = QUERIES, p_init: float = P_INIT, paper: bool = False
) -> Sequence[Round]:
    """The queries in rounds of at most 250, shorter at first, when most images break."""
    shares = _shares(queries, p_init, paper)
    count = len(shares)
    ends = sorted({*(n for n in _FIRST_ROUNDS if n < count), *range(_ROUND, count, _ROUND), count})

    def stretch(first: int, last: int) -> Round:
        def attack(
            model: LogitModel,
            x: Tensor,
            labels: Tensor,
            threat: Threat,
            best: Tensor,
            generator: torch.Generator | None,
        ) -> Tensor:
            return _search(model, x, labels, threat, best if first else None, shares[first:last], paper, generator)

        return attack

    return [stretch(first, last) for first, last in zip([0, *ends], ends, strict=False)]


def _shares(queries: int, p_init: float, paper: bool) -> list[float]:
    """The share of the pixels that each window changes; the start has none, but the paper counts it as a query."""
    ends = [end * queries / 10_000 for end in HALVINGS] if paper else HALVINGS
    return [p_init / 2 ** sum(query > end for end in ends) for query in range(int(paper), queries)]


@torch.no_grad()
def _search(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    best: Tensor | None,
    shares: Sequence[float],
    paper: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """A window for each of `shares`, from `best` or else from the start of the attack."""
    ball = Ball.around(x, threat)
    start, propose = _NORMS[threat.norm]
    best = start(ball, generator) if best is None else best.clone()
    smallest = lead(model(best).float(), labels)
    for share in shares:
        side = math.sqrt(share * x.shape[-2] * x.shape[-1])
        tried = propose(ball, best, side, paper, generator)
        value = lead(model(tried).float(), labels)
        better = value < smallest
        smallest = torch.where(better, value, smallest)
        take_(best, tried, better)
    return best
