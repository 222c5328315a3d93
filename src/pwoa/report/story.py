"""What a page tells of one run or one evaluation, as plain values; and how values from files become plain ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pwoa.evaluation.comparison import Difference
from pwoa.evaluation.examples import Example
from pwoa.sparsity.selection import smaller
from pwoa.threat import Threat

NATURAL, WORST = "natural", "worst"
_MOST = 2000
"""How many rows of a table from a file are read."""


@dataclass(frozen=True)
class Accuracy:
    """An accuracy in percent under an attack, its 95 % interval, and on how many images it was measured."""

    attack: str
    value: float
    low: float
    high: float
    images: int


@dataclass(frozen=True)
class Measured:
    """An evaluation: accuracies in their order, the worst case last; curve: by attack, the accuracy at each radius."""

    rows: tuple[Accuracy, ...]
    curve: Mapping[str, tuple[tuple[float, Accuracy], ...]] = field(default_factory=dict)
    threat: Threat | None = None
    warnings: tuple[tuple[str, str], ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()

    @property
    def images(self) -> int:
        """On how many images most of the attacks were run."""
        return max((row.images for row in self.rows), default=0)

    def under(self, attack: str) -> Accuracy | None:
        """Return the accuracy under an attack, if it was measured."""
        return next((row for row in self.rows if row.attack == attack), None)

    @property
    def hardest(self) -> Accuracy | None:
        """The worst case; where only one attack was run, that."""
        return self.under(WORST) or (self.rows[-1] if self.rows else None)


@dataclass(frozen=True)
class Layer:
    """Weights of a layer, how many are kept, and the multiply-adds that they stand for, where that is known."""

    name: str
    total: int
    kept: int
    macs: int | None = None
    macs_dense: int | None = None


@dataclass(frozen=True)
class Epoch:
    """A line of metrics.jsonl: what was measured in training and on the validation split, by its name."""

    stage: str
    train: Mapping[str, float]
    validation: Mapping[str, float]
    hsic: tuple[float, float] | None = None


@dataclass(frozen=True)
class Story:
    """All that is known of a folder. kind: "run", "evaluation" or "folder", which holds neither.

    state: "finished", "training", "evaluating" or "unknown". pruned: whether the run prunes, or trains from scratch.
    result: what result.json says. start: the teacher's point in the HSIC plane. missing: what is not there or damaged.
    """

    path: Path
    kind: str
    state: str = "unknown"
    pruned: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    model: Measured | None = None
    teacher: Measured | None = None
    changes: tuple[Difference, ...] = ()
    layers: tuple[Layer, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    start: tuple[float, float] | None = None
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name or str(self.path)

    @property
    def method(self) -> str:
        """The method of a run; nothing for an evaluation."""
        return words(self.settings.get("method") or self.result.get("method") or "")

    @property
    def way(self) -> str:
        """The method, and where it is PwoA with another loss than the paper's, the terms of that loss."""
        names = {"distillation": "distillation", "hsic_x": "HSIC", "hsic_y": "HSIC"}
        names |= {"classification": "cross-entropy", "hidden": "hidden layers"}
        weights = {key: number(self.settings.get(f"objective.{key}")) for key in names}
        terms = list(dict.fromkeys(names[key] for key, weight in weights.items() if weight))
        usual = self.method != "pwoa" or not terms or terms == ["distillation", "HSIC"]
        return self.method if usual else f"{self.method} (loss: {' and '.join(terms)})"

    @property
    def architecture(self) -> str:
        """What the network is."""
        about = self.model.about if self.model else {}
        return words(
            self.result.get("architecture")
            or about.get("architecture")
            or self.settings.get("teacher.architecture", "")
        )

    @property
    def data(self) -> str:
        """What it was measured on."""
        about = self.model.about if self.model else {}
        return words(self.settings.get("data.name") or about.get("dataset") or "")

    @property
    def threat(self) -> Threat | None:
        """The attacker."""
        for measured in (self.model, self.teacher):
            if measured and measured.threat:
                return measured.threat
        try:
            return Threat(*(self.settings[f"threat.{key}"] for key in ("norm", "radius", "step")))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def smaller(self) -> str:
        """How much smaller it is, or is going to be, in words; nothing of what is not pruned."""
        if not self.pruned or not self.rate:
            return ""
        by_compute = self.settings.get("sparsity.budget") == "macs"
        if by_compute and not self.result:
            return f"{self.rate:.4g}× fewer multiply-adds"
        macs = number(self.result.get("macs_rate"), 0) if by_compute else None
        return smaller(self.rate, number(self.result.get("overall_rate"), 0), macs)

    @property
    def rate(self) -> float | None:
        """The rate that was reached, else the one that is asked for; of what is not pruned none."""
        asked = self.settings.get("sparsity.rate") if self.pruned else None
        return number(self.result.get("rate"), 0) or number(asked, 0)

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """What the defence checks found, as (check, message); the teacher's are marked."""
        found = [
            (
                ", ".join(filter(None, (words(entry.get("check")), words(entry.get("model"))))),
                words(entry.get("message")),
            )
            for entry in entries(self.result.get("warnings"))
        ]
        return found or list(self.model.warnings if self.model else ())


def number(value: Any, low: float = -math.inf, high: float = math.inf) -> float | None:
    """Return a finite number within limits; None for anything else."""
    if type(value) not in (int, float) or not -1e300 < value < 1e300:
        return None
    return float(value) if low <= value <= high else None


def whole(value: Any) -> int | None:
    """Return a count; None for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def words(value: Any, most: int = 500) -> str:
    """Return a short text; a number or a list is written as Python does, anything that is missing is nothing."""
    text = "" if value is None else value if isinstance(value, str) else repr(value) if _writable(value) else "…"
    return text if len(text) <= most else text[:most] + "…"


def numbers(value: Any) -> dict[str, float]:
    """Return what is a number in a JSON object, by its key."""
    pairs = value.items() if isinstance(value, dict) else ()
    return {words(key): known for key, item in list(pairs)[:_MOST] if (known := number(item)) is not None}


def entries(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a JSON list."""
    return [entry for entry in value[:_MOST] if isinstance(entry, dict)] if isinstance(value, list) else []


def _writable(value: Any) -> bool:
    """Tell whether Python can write it: not a number of thousands of digits."""
    try:
        repr(value)
    except ValueError:
        return False
    return True
