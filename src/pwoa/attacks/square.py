"""The Square attack (Andriushchenko et al. 2020): random search, for l∞ (algorithm 2) and for l2 (algorithm 3).

Each image has its own random window. Windows are masks over whole images, so that a query is a few batched
operations whatever the number of images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pwoa.attacks.ball import Ball, take_
from pwoa.attacks.problem import Problem, Random, Round, lead, run_rounds
from pwoa.guard import refuse_attack
from pwoa.threat import Threat

if TYPE_CHECKING:
    from pwoa.models.border import LogitModel

_TINY = 1e-12
_FAR = 1e9


def stripes(ball: Ball, generator: Random) -> Tensor:
    """Return the start for l∞: each column of each channel at its upper or its lower end."""
    n, channels, _, width = ball.x.shape
    return torch.lerp(ball.low, ball.high, _coins((n, channels, 1, width), ball.x, generator))


def recolour(ball: Ball, best: Tensor, side: float, paper: bool, generator: Random) -> Tensor:
    """Return the try for l∞: each channel of one window to its upper or its lower end."""
    n, channels, height, width = best.shape
    inside, _, _ = _window(best, min(max(round(side), 1), height, width), paper, generator)
    ends = torch.lerp(ball.low, ball.high, _coins((n, channels, 1, 1), best, generator))
    return torch.lerp(best, ends, inside)


def bumps(ball: Ball, generator: Random) -> Tensor:
    """Return the start for l2: five by five bumps, each of random sign and turn, that together have the radius."""
    x = ball.x
    n, channels, height, width = x.shape
    size = max(min(height, width) // 5, 1)
    rows, columns = min(5, height // size), min(5, width // size)
    top, left = (height - rows * size) // 2, (width - columns * size) // 2
    coins = _coins((n, channels + 1, rows, columns), x, generator)
    shapes = _bump(size, x.device, x.dtype)[coins[:, -1].long()]
    grid = torch.einsum("ncij,nijhw->ncihjw", 2 * coins[:, :-1] - 1, shapes)
    offset = torch.zeros_like(x)
    offset[:, :, top : top + rows * size, left : left + columns * size] = grid.flatten(4).flatten(2, 3)
    return _stretched(ball, offset)


def move_mass(ball: Ball, best: Tensor, side: float, paper: bool, generator: Random) -> Tensor:
    """Return the try for l2: what a second window holds, and the rest of the radius, goes to a bump in the first.

    With `paper` what the box cuts off is made up for at once, our addition; the paper leaves it to the next try.
    """
    n, channels, height, width = best.shape
    size = min(max(round(side) // 2 * 2 + 1, 3), height, width)
    offset = best - ball.x
    inside, rows, columns = _window(best, size, paper, generator)
    emptied = torch.maximum(inside, _window(best, size, paper, generator)[0])
    spare = (ball.threat.radius**2 - offset.square().sum((1, 2, 3), keepdim=True)).clamp_min(0)
    available = ((offset.square() * emptied).sum((2, 3), keepdim=True) + spare / channels).sqrt()

    coins = _coins((n, channels + 1, 1, 1), best, generator)
    turned = coins[:, -1].long()
    shape = _bump(size, best.device, best.dtype)[turned, rows.clamp(0, size - 1), columns.clamp(0, size - 1)]
    held = offset * inside
    new = (2 * coins[:, :-1] - 1) * (shape[:, None] * inside) + held / _length(held, (2, 3))
    new *= available / _length(new, (2, 3))
    moved = torch.lerp(offset, new, emptied)
    return ball.along(moved, _FAR) if paper else _stretched(ball, moved)


def _stretched(ball: Ball, offset: Tensor) -> Tensor:
    """Return x + offset, made as long as the radius, then cut to the box."""
    return torch.addcmul(ball.x, offset, ball.threat.radius / _length(offset, (1, 2, 3))).clamp_(0, 1)


def _window(like: Tensor, size: int, paper: bool, generator: Random) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a window for each image: its mask [N, 1, H, W] of 0 and 1, and rows and columns counted from its corner.

    The reference draws corners from one place fewer a side than there is, so its windows miss the last row and column.
    """
    n, _, height, width = like.shape
    corner = torch.rand((2, n, 1, 1), generator=generator, device=like.device)
    last = int(paper)
    top = (corner[0] * (height - size + last)).long()
    left = (corner[1] * (width - size + last)).long()
    rows = torch.arange(height, device=like.device)[:, None] - top
    columns = torch.arange(width, device=like.device) - left
    inside = ((rows >= 0) & (rows < size)).to(like.dtype) * ((columns >= 0) & (columns < size)).to(like.dtype)
    return inside[:, None], rows, columns


@lru_cache(maxsize=256)
def _bump(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the bump of length 1 of l2 windows, and its transpose: a hill beside a valley as long (equation 2)."""
    half = size // 2
    hill, valley = _hill(size, half), _hill(size, size - half)
    shape = torch.cat([hill / hill.norm(), -valley / valley.norm()], 1)
    shape /= shape.norm()
    return torch.stack([shape, shape.T]).to(device, dtype)


def _hill(height: int, width: int) -> Tensor:
    """Return rings around the middle, each higher than the one around it by 1/k², k its distance from the outside."""
    middle = height // 2
    rows = (torch.arange(height) - middle).abs()[:, None]
    columns = (torch.arange(width) - width // 2).abs()
    ring = middle - torch.maximum(rows, columns)
    steps = 1 / (middle + 1 - torch.arange(middle + 1, dtype=torch.float64)).square()
    return steps.cumsum(0)[ring]


def _length(values: Tensor, over: tuple[int, ...]) -> Tensor:
    return values.square().sum(over, keepdim=True).sqrt().clamp_min(_TINY)


def _coins(shape: tuple[int, ...], like: Tensor, generator: Random) -> Tensor:
    """Draw 0 or 1, as likely."""
    return torch.randint(2, shape, generator=generator, device=like.device, dtype=like.dtype)


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
    generator: Random = None,
) -> Tensor:
    """Return for each image what `queries` queries have found with the smallest lead of the true class.

    Example: `square(model, x, labels, Threat("linf", 8 / 255), queries=1000)`.

    paper: the paper's schedule and windows, not those of the reference AutoAttack. With few queries it is the one to
        take, for the other's windows would all be large.
    """
    refuse_attack("square")
    rounds = partial(square_rounds, queries=queries, p_init=p_init, paper=paper)
    return run_rounds(rounds, Problem(model, x, labels, threat, generator))


def square_rounds(
    classes: int, *, queries: int = QUERIES, p_init: float = P_INIT, paper: bool = False
) -> Sequence[Round]:
    """Return the queries in rounds of at most 250, shorter at first, when most images break."""
    shares = _shares(queries, p_init, paper)
    count = len(shares)
    ends = sorted({*(n for n in _FIRST_ROUNDS if n < count), *range(_ROUND, count, _ROUND), count})
    bounds = zip([0, *ends], ends, strict=False)
    return [partial(_search, shares=shares[first:last], begin=not first, paper=paper) for first, last in bounds]


def _shares(queries: int, p_init: float, paper: bool) -> list[float]:
    """Return the share of the pixels that each window changes; the start has none, but is a query in the paper."""
    ends = [end * queries / 10_000 for end in HALVINGS] if paper else HALVINGS
    return [p_init / 2 ** sum(query > end for end in ends) for query in range(int(paper), queries)]


@torch.no_grad()
def _search(problem: Problem, best: Tensor, *, shares: Sequence[float], begin: bool, paper: bool) -> Tensor:
    """Try a window for each of `shares`, from `best`, or to `begin` from the start of the attack."""
    model, labels, generator = problem.model, problem.labels, problem.generator
    ball = Ball.around(problem.x, problem.threat)
    start, propose = _NORMS[problem.threat.norm]
    best = start(ball, generator) if begin else best.clone()
    smallest = lead(model(best).float(), labels)
    for share in shares:
        side = math.sqrt(share * best.shape[-2] * best.shape[-1])
        tried = propose(ball, best, side, paper, generator)
        value = lead(model(tried).float(), labels)
        better = value < smallest
        smallest = torch.where(better, value, smallest)
        take_(best, tried, better)
    return best
