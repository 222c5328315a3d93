"""What an evaluation found, image by image."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pwoa.evaluation.checks import Finding
from pwoa.evaluation.interval import wilson
from pwoa.recipe import Threat
from pwoa.words import counted


@dataclass(frozen=True, repr=False)
class Scores:
    """Which images a model gets right, naturally and under each attack, against one attacker.

    right: by attack, for each image whether the model gets both the natural and the attacked one right.
    after: by component of AutoAttack, in its order, which images were still right when it had run.
    seconds: how long each attack took; PGD-20 goes on from PGD-10, so its seconds are those of its last ten steps.
    findings: signs that these numbers may be too high.
    curve: the scores at other radii.
    """

    threat: Threat
    right: dict[str, Tensor]
    seconds: dict[str, float]
    after: dict[str, Tensor] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    curve: tuple[Scores, ...] = ()

    def __getitem__(self, attack: str) -> float:
        """Accuracy in percent."""
        return percent(self.right[attack])

    def __repr__(self) -> str:
        found = ", ".join(f"{attack} {accuracy:.2f} %" for attack, accuracy in self.accuracy.items())
        return f"<Scores of {counted(self.images, 'image')}: {found}>"

    @property
    def accuracy(self) -> dict[str, float]:
        """In percent, by attack."""
        return {attack: percent(right) for attack, right in self.right.items()}

    @property
    def images(self) -> int:
        return len(next(iter(self.right.values())))

    @property
    def worst(self) -> Tensor:
        """Which images are right under all of the attacks."""
        return torch.stack(list(self.right.values())).all(0)

    def interval(self, attack: str) -> tuple[float, float]:
        """The 95 % confidence interval of the accuracy, in percent."""
        return wilson(int(self.right[attack].sum()), self.images)


def percent(right: Tensor) -> float:
    return 100 * int(right.sum()) / len(right)
