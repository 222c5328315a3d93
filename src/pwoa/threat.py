"""The threat: which images an attacker may choose, and how a radius is written and read."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from numbers import Real

from pwoa.errors import InputError, brief

HIGHEST = {"linf": 1.0, "l2": 1000.0}
"""By norm the radius past which the ball holds every image (for l2 that of 1000×1000 grey pixels, 0 to 1)."""
_LABELS = {"linf": "l∞"}


@dataclass(frozen=True)
class Threat:
    """The attacker: every image within `radius` of the natural one in `norm`, and inside [0, 1].

    Example: `str(Threat("linf", 8 / 255, 2 / 255))` is "l∞ 8/255".
    """

    norm: str = field(default="linf", metadata={"about": "linf or l2"})
    radius: float = field(default=8 / 255, metadata={"about": "how far an image may be moved, as 0.3 or 8/255"})
    step: float = field(default=2 / 255, metadata={"about": "length of a step of PGD and CW"})

    def __post_init__(self) -> None:
        if self.norm not in HIGHEST:
            raise InputError(f"threat.norm = {self.norm!r}; allowed: {', '.join(HIGHEST)}")
        high = HIGHEST[self.norm]
        for name, value in (("radius", self.radius), ("step", self.step)):
            if not (isinstance(value, Real) and 0 <= value <= high):
                levels = self.norm == "linf" and isinstance(value, Real) and 1 < value <= 255
                meant = f"; for {value:g} of 255 give {value:g}/255" if levels else ""
                meant = "; give a number, as 8 / 255" if isinstance(value, str) else meant
                raise InputError(f"threat.{name} = {brief(value)}; allowed: from 0 to {high:g} in {self.norm}{meant}")

    def __str__(self) -> str:
        return f"{norm_label(self.norm)} {self.radius_text}"

    @property
    def radius_text(self) -> str:
        """The radius as papers write it: 8/255, or else a decimal."""
        return length_text(self.radius, self.norm)

    @property
    def step_text(self) -> str:
        """The step, written as the radius is."""
        return length_text(self.step, self.norm)

    def in_quarters(self) -> Threat:
        """Return the attacker whose steps are a quarter of the radius: ten of them cross the ball.

        On MNIST ten of the steps of 0.01 that evaluations take come a third of the way.
        """
        return dataclasses.replace(self, step=self.radius / 4)

    def at_radius(self, radius: float) -> Threat:
        """Return the same attacker with another radius; its step is the same share of it, or all of a larger one."""
        step = self.step * radius / self.radius if self.radius else self.step
        return dataclasses.replace(self, radius=radius, step=min(step, max(radius, self.step)))


def norm_label(norm: str) -> str:
    """Write a norm as people do: `linf` is "l∞"."""
    return _LABELS.get(norm, norm)


def length_text(length: float, norm: str) -> str:
    """Write a radius or a step as papers do: in whole 255ths for l∞ where it is that, else as a decimal."""
    decimal, level = f"{length:.4g}", round(length * 255)
    if norm == "linf" and float(decimal) != length and level and abs(length * 255 - level) < 1e-6:
        return f"{level}/255"
    return decimal


def _number(text: str) -> float:
    """Read `0.1` or `2/255`."""
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def parse_radii(text: str) -> list[float]:
    """Read radii from text as `0, 2/255, 0.1`, in rising order."""
    try:
        radii = sorted({_number(part.strip()) for part in text.split(",")})
        if not all(map(math.isfinite, radii)):
            raise ArithmeticError
        return radii
    except (ValueError, ArithmeticError):
        raise InputError(f"{text!r} is no list of radii; give it as 0,2/255,8/255 or 0.1,0.2") from None
