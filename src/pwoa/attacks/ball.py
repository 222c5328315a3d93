"""The set an attacker may choose from: the l∞ or l2 ball around each image, cut with [0, 1].

The projections of AutoAttack all come down to one equation, Σ weight·min(t·speed, room) = amount: every
coordinate moves at its own speed until it has no room left. The left side is concave and piecewise linear in t,
so Newton's method from the left never passes the solution and ends on it (Croce & Hein 2020b, section 2.2,
sort the coordinates instead).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pwoa.threat import Threat

ROUNDS = 10
"""Newton steps. The error times the slope falls at least by 4 a step, and in practice it is 0 after 4 to 8."""

_LARGE = 1e30


def fill(speed: Tensor, room: Tensor, weight: Tensor | None, amount: Tensor, limit: float = _LARGE) -> Tensor:
    """Return for each row the t at which Σ weight·min(t·speed, room) reaches `amount`, cut at `limit`.

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
    """Return the nearest points z in [0, 1] with gap + normal·(z − at) = 0; where there is none, the closest to it.

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


_TINY = 1e-30


@dataclass(frozen=True)
class Ball:
    """The allowed images around each of `x`; `low` and `high` are the box that holds them."""

    x: Tensor
    low: Tensor
    high: Tensor
    threat: Threat

    @classmethod
    def around(cls, x: Tensor, threat: Threat) -> Ball:
        x = x.detach()
        if threat.norm == "linf":
            return cls(x, (x - threat.radius).clamp_min(0), (x + threat.radius).clamp_max(1), threat)
        return cls(x, torch.zeros_like(x), torch.ones_like(x), threat)

    def project(self, adversarial: Tensor) -> Tensor:
        """Return the nearest allowed image."""
        if self.threat.norm == "linf":
            return torch.clamp(adversarial, self.low, self.high)
        return self.along(adversarial - self.x, 1)

    def along(self, offset: Tensor, limit: float) -> Tensor:
        """Return, for l2, x + t·offset, cut to the box, with the largest t² up to `limit` that the radius allows.

        With `limit` 1 it is the nearest point to x + offset; with a large one all of the radius is used, also
        when the box cuts some of the offset off.
        """
        room = torch.where(offset > 0, 1 - self.x, self.x)
        amount = offset.new_full((len(offset),), self.threat.radius**2)
        t = fill(offset.square().flatten(1), room.square().flatten(1), None, amount, limit)
        return torch.addcmul(self.x, offset, per_image(t.sqrt(), offset)).clamp_(0, 1)

    def random(self, generator: torch.Generator | None = None) -> Tensor:
        """Return a uniformly random point of the ball, cut with [0, 1]."""
        start = self.x + random_offset(self.x, self.threat.norm, self.threat.radius, generator)
        return self.project(start) if self.threat.norm == "linf" else start.clamp_(0, 1)

    def contains(self, adversarial: Tensor) -> Tensor:
        """Tell for each image whether it is allowed, up to the rounding of float32."""
        inside = (adversarial >= 0) & (adversarial <= 1)
        near = distance(adversarial, self.x, self.threat.norm) <= self.threat.radius * (1 + 1e-5) + 1e-6
        return near & inside.flatten(1).all(1)


def project(adversarial: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """Return the nearest allowed image."""
    return Ball.around(x, threat).project(adversarial)


def random_start(x: Tensor, threat: Threat, generator: torch.Generator | None = None) -> Tensor:
    """Return a uniformly random point of the ball, cut with [0, 1]."""
    return Ball.around(x, threat).random(generator)


def random_offset(x: Tensor, norm: str, radius: float, generator: torch.Generator | None = None) -> Tensor:
    """Return for each image a uniformly random way to go, at most `radius` long in `norm`."""
    if norm == "linf":
        return (2 * torch.rand(x.shape, generator=generator, device=x.device, dtype=x.dtype) - 1) * radius
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    share = torch.rand(len(x), generator=generator, device=x.device, dtype=x.dtype)
    length = radius * share.pow(1 / max(1, math.prod(x.shape[1:])))
    return steepest(noise, "l2") * per_image(length, x)


def steepest(gradient: Tensor, norm: str) -> Tensor:
    """Return the step of length 1 in `norm` along which a loss with this gradient grows fastest; 0 for 0 and NaN."""
    if norm == "linf":
        return gradient.sign().nan_to_num_(0)
    gradient = gradient.nan_to_num(0)
    # Scaled first: the squares of a small gradient are 0 in float32.
    scaled = gradient / per_image(gradient.flatten(1).abs().amax(1).clamp_min(_TINY), gradient)
    return scaled / per_image(scaled.flatten(1).square().sum(1).sqrt().clamp_min(_TINY), gradient)


def distance(a: Tensor, b: Tensor, norm: str) -> Tensor:
    """Return the distance of each image of `a` from that of `b`."""
    offset = (a - b).flatten(1)
    return offset.abs().amax(1) if norm == "linf" else offset.square().sum(1).sqrt()


def per_image(values: Tensor, like: Tensor) -> Tensor:
    """Shape [N] values to be broadcast over the images of `like`."""
    return values.view(-1, *(1,) * (like.dim() - 1))


def take_(images: Tensor, new: Tensor, where: Tensor) -> Tensor:
    """Put the images of `new` for which `where` holds into `images`; `torch.where` is eight times slower on a CPU."""
    return images.lerp_(new, per_image(where.to(images.dtype), images))
