"""Nearest points, many at once: filling with limits, and the projection onto a hyperplane within [0, 1].

The projections of AutoAttack all come down to one equation, Σ weight·min(t·speed, room) = amount: every
coordinate moves at its own speed until it has no room left. The left side is concave and piecewise linear in t,
so Newton's method from the left never passes the solution and ends on it (Croce & Hein 2020b, section 2.2,
sort the coordinates instead).
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
"""Newton steps. The error times the slope falls at least by 4 a step, and in practice it is 0 after 4 to 8."""

_LARGE = 1e30


def fill(speed: Tensor, room: Tensor, weight: Tensor | None, amount: Tensor, limit: float = _LARGE) -> Tensor:
    """For each row the t at which Σ weight·min(t·speed, room) reaches `amount`, cut at `limit`.

    If it is never reached, t is above 1e20, or `limit`.
    `speed`, `room` and `weight` (None: all 1) are [rows, coordinates] and not negative; `amount` is [rows].
    """
    flow, held = (speed, room) if weight is None else (weight * speed, weight * room)
    t = (amount / flow.sum(1).clamp_min(1 / _LARGE)).clamp_max(limit)
    for _ in range(ROUNDS):
        full = (t[:, None] * speed >= room).to(flow.dtype)
        missing = amount - (held * full).sum(1)
        reached = missing / torch.addcmul(flow, flow, full, value=-1).sum(1).clamp_min(1 / _LARGE)
        before, t = t, torch.maximum(t, reached).clamp_max(limit)
        if not t.is_cuda and torch.equal(before, t):  # on a GPU, looking would make the host wait
            break
    return t


def onto_hyperplane(at: Tensor, normal: Tensor, gap: Tensor, norm: str) -> Tensor:
    """The nearest points z in [0, 1] with gap + normal·(z − at) = 0; where there is none, the closest to it.

    `at` and `normal` are [rows, coordinates], `at` in [0, 1]; `gap` [rows] is the linear function's value at `at`.
    """
    scale = normal.abs().amax(1).clamp_min(1 / _LARGE)
    toward = normal * (-gap.sign() / scale)[:, None]
    weight = toward.abs()
    room = torch.where(toward > 0, 1 - at, at)
    if norm == "linf":
        t = fill(torch.ones_like(weight), room, weight, gap.abs() / scale)
        move = torch.minimum(t[:, None], room)
    else:
        t = fill(weight, room, weight, gap.abs() / scale)
        move = torch.minimum(t[:, None] * weight, room)
    return torch.addcmul(at, move, toward.sign()).clamp_(0, 1)
