"""Square attack (Andriushchenko et al. 2020, "Square Attack: a query-efficient black-box adversarial attack").

Random search that needs no gradients: each query changes a square window of the image, at a random place, and
keeps the change if the lead of the true class falls. Windows shrink as the queries are spent.
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
    generator: torch.Generator | None = None,
) -> Tensor:
    """The image with the smallest lead of the true class that `queries` forward passes an image have found."""
    refuse_attack("square")
    rounds = partial(square_rounds, queries=queries, p_init=p_init)
    return run_rounds(rounds, model, x, labels, threat, generator)


def square_rounds(classes: int, *, queries: int = QUERIES, p_init: float = P_INIT) -> Sequence[Round]:
    """The queries in rounds of at most 250, shorter at first, when most images break."""
    ends = sorted({*(n for n in _FIRST_ROUNDS if n < queries), *range(_ROUND, queries, _ROUND), queries})

    def stretch(first: int, last: int) -> Round:
        shares = [_share(query, queries, p_init) for query in range(first, last)]

        def attack(
            model: LogitModel,
            x: Tensor,
            labels: Tensor,
            threat: Threat,
            best: Tensor,
            generator: torch.Generator | None,
        ) -> Tensor:
            return _search(model, x, labels, threat, best if first else None, shares, generator)

        return attack

    return [stretch(first, last) for first, last in zip([0, *ends], ends, strict=False)]


def _share(query: int, queries: int, p_init: float) -> float:
    """The share of the pixels that a query changes; the published schedule stretched to the budget."""
    return float(p_init / 2 ** sum(query * 10_000 > end * queries for end in HALVINGS))


@torch.no_grad()
def _search(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    best: Tensor | None,
    shares: Sequence[float],
    generator: torch.Generator | None,
) -> Tensor:
    """A query for each of `shares`, from `best` or else, as the first query, from the start of the attack."""
    ball = Ball.around(x, threat)
    start, propose = _NORMS[threat.norm]
    if best is None:
        best, shares = start(ball, generator), shares[1:]
    else:
        best = best.clone()
    smallest = lead(model(best).float(), labels)
    for share in shares:
        side = math.sqrt(share * x.shape[-2] * x.shape[-1])
        tried = propose(ball, best, side, generator)
        value = lead(model(tried).float(), labels)
        better = value < smallest
        smallest = torch.where(better, value, smallest)
        take_(best, tried, better)
    return best
