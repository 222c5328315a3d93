"""The set an attacker may choose from: the l∞ or l2 ball around each image, cut with [0, 1]."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pwoa.attacks.geometry import fill
from pwoa.recipe import Threat

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
        """The nearest allowed image."""
        if self.threat.norm == "linf":
            return torch.clamp(adversarial, self.low, self.high)
        return self.along(adversarial - self.x, 1)

    def along(self, offset: Tensor, limit: float) -> Tensor:
        """l2: x + t·offset, cut to the box, with the largest t² up to `limit` that the radius allows.

        With `limit` 1 it is the nearest point to x + offset; with a large one all of the radius is used, also
        when the box cuts some of the offset off.
        """
        room = torch.where(offset > 0, 1 - self.x, self.x)
        amount = offset.new_full((len(offset),), self.threat.radius**2)
        t = fill(offset.square().flatten(1), room.square().flatten(1), None, amount, limit)
        return torch.addcmul(self.x, offset, per_image(t.sqrt(), offset)).clamp_(0, 1)

    def random(self, generator: torch.Generator | None = None) -> Tensor:
        """A uniformly random point of the ball, cut with [0, 1]."""
        start = self.x + random_offset(self.x, self.threat.norm, self.threat.radius, generator)
        return self.project(start) if self.threat.norm == "linf" else start.clamp_(0, 1)

    def contains(self, adversarial: Tensor) -> Tensor:
        """For each image whether it is allowed, up to the rounding of float32."""
        inside = (adversarial >= 0) & (adversarial <= 1)
        near = distance(adversarial, self.x, self.threat.norm) <= self.threat.radius * (1 + 1e-5) + 1e-6
        return near & inside.flatten(1).all(1)


def project(adversarial: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """The nearest allowed image."""
    return Ball.around(x, threat).project(adversarial)


def random_start(x: Tensor, threat: Threat, generator: torch.Generator | None = None) -> Tensor:
    """A uniformly random point of the ball, cut with [0, 1]."""
    return Ball.around(x, threat).random(generator)


def random_offset(x: Tensor, norm: str, radius: float, generator: torch.Generator | None = None) -> Tensor:
    """For each image a uniformly random way to go, at most `radius` long in `norm`."""
    if norm == "linf":
        return (2 * torch.rand(x.shape, generator=generator, device=x.device, dtype=x.dtype) - 1) * radius
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    share = torch.rand(len(x), generator=generator, device=x.device, dtype=x.dtype)
    length = radius * share.pow(1 / max(1, math.prod(x.shape[1:])))
    return steepest(noise, "l2") * per_image(length, x)


def steepest(gradient: Tensor, norm: str) -> Tensor:
    """The step of length 1 in `norm` along which a loss with this gradient grows fastest; 0 for 0 and NaN."""
    if norm == "linf":
        return gradient.sign().nan_to_num_(0)
    gradient = gradient.nan_to_num(0)
    # Scaled first: the squares of a small gradient are 0 in float32.
    scaled = gradient / per_image(gradient.flatten(1).abs().amax(1).clamp_min(_TINY), gradient)
    return scaled / per_image(scaled.flatten(1).square().sum(1).sqrt().clamp_min(_TINY), gradient)


def distance(a: Tensor, b: Tensor, norm: str) -> Tensor:
    """The distance of each image of `a` from that of `b`."""
    offset = (a - b).flatten(1)
    return offset.abs().amax(1) if norm == "linf" else offset.square().sum(1).sqrt()


def per_image(values: Tensor, like: Tensor) -> Tensor:
    """[N] values shaped to be broadcast over the images of `like`."""
    return values.view(-1, *(1,) * (like.dim() - 1))


def take_(images: Tensor, new: Tensor, where: Tensor) -> Tensor:
    """Put the images of `new` for which `where` holds into `images`; `torch.where` is eight times slower on a CPU."""
    return images.lerp_(new, per_image(where.to(images.dtype), images))
