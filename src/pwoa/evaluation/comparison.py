"""Two evaluations side by side, image by image: is one model more robust than the other, and where?"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pwoa.errors import InputError, did_you_mean
from pwoa.evaluation.folder import ASKED, OF_MODEL, OF_TEACHER
from pwoa.evaluation.scores import FILE, WORST, load_verdicts, paired
from pwoa.models.checkpoints.folder import DESCRIPTION, read_description
from pwoa.recipe import records_recipe
from pwoa.storage.paths import as_path
from pwoa.threat import Threat


@dataclass(frozen=True)
class Difference:
    """A and B under one attack, on the same images.

    accuracy_a, accuracy_b: in percent.
    difference: accuracy B − accuracy A in points; `interval` is its 95 % interval (`interval.paired`).
    both, only_a, only_b, neither: how many of `images` these get right.
    p_value: of the exact two-sided McNemar test (`mcnemar`).
    """

    attack: str
    accuracy_a: float
    accuracy_b: float
    difference: float
    interval: tuple[float, float]
    both: int
    only_a: int
    only_b: int
    neither: int
    p_value: float
    images: int


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: a row for each attack, and what a reader of the rows should know.

    warnings: that the two were not attacked alike. notes: which images and attacks were left out.
    """

    a: Path
    b: Path
    images: int
    rows: tuple[Difference, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    right: Mapping[str, tuple[Tensor, Tensor]] = field(repr=False, compare=False)

    def only_a(self, attack: str) -> list[int]:
        """Return which images, by their place among the images, only A gets right under an attack."""
        a, b = self._right(attack)
        return _only(a, b)

    def only_b(self, attack: str) -> list[int]:
        """Return which images, by their place among the images, only B gets right under an attack."""
        a, b = self._right(attack)
        return _only(b, a)

    def _right(self, attack: str) -> tuple[Tensor, Tensor]:
        if attack not in self.right:
            raise InputError(f"{attack!r} is not among the attacks compared ({did_you_mean(attack, self.right)})")
        return self.right[attack]


def compare(a: str | os.PathLike[str], b: str | os.PathLike[str] | None = None) -> Comparison:
    """Compare the evaluations in two folders under every attack that both have, in the order of A.

    Example: `compare("runs/a", "runs/b")`; `compare("runs/mine")` compares the teacher of a run with its model.

    Both must have been measured on the same data; if one was on more images, the first ones are compared, which is
    noted; another threat is a warning. Points of a security curve (`attack@radius`) are attacks like others. Only the
    verdicts are read.
    a, b: folders of evaluations or of runs, or what `prune` returns; without b, a run.
    """
    a, b = as_path(a), as_path(b)
    if b is None:
        a, b = _teacher_of(a), a
    (right_a, about_a), (right_b, about_b) = _read(a), _read(b)
    _check_data((a, about_a), (b, about_b))
    n_a, n_b = (max(map(len, right.values())) for right in (right_a, right_b))
    images = min(n_a, n_b)
    common = [name for name in right_a if name in right_b]
    counts = {name: min(len(right_a[name]), len(right_b[name])) for name in common}
    right = {name: (right_a[name][:count], right_b[name][:count]) for name, count in counts.items()}
    if not right:
        raise InputError(f"no attack in common: {a} has {', '.join(right_a)}; {b} has {', '.join(right_b)}")
    rows = tuple(_difference(name, *pair) for name, pair in right.items())
    more = [f"A was measured on {n_a:,} images, B on {n_b:,}: the first are compared"] if n_a != n_b else []
    notes, warnings = (*more, *_left_out(right_a, right_b)), _other_threat(about_a.get("threat"), about_b.get("threat"))
    return Comparison(Path(a), Path(b), images, rows, warnings, notes, right)


def worst_case(comparison: Comparison) -> Difference | None:
    """Compare A and B under all attacks together, on the images that all have seen; None where there is only one."""
    pairs = [pair for name, pair in comparison.right.items() if not set("@:") & set(name)]
    if len(pairs) < 2:
        return None
    seen = min(len(a) for a, _ in pairs)
    a, b = (torch.stack([pair[side][:seen] for pair in pairs]).all(0) for side in (0, 1))
    return _difference(WORST, a, b)


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the exact two-sided p-value of McNemar's test: are A and B right equally often?

    If they are, of the images that only one gets right each is A's with probability 1/2. The p-value is twice
    the smaller tail of that binomial, at most 1. Counted in whole numbers, so it is right however small.
    """
    discordant, smaller = only_a + only_b, min(only_a, only_b)
    if 2 * smaller == discordant:
        return 1.0
    ways = tail = 1
    for drawn in range(smaller):
        ways = ways * (discordant - drawn) // (drawn + 1)
        tail += ways
    return min(1.0, tail / (1 << (discordant - 1)))


def _teacher_of(run: str | Path) -> Path:
    """Return the folder in which a run keeps the evaluation of its teacher."""
    folder = Path(run) / OF_TEACHER
    if not Path(run).is_dir():
        raise InputError(f"{run} is not a folder: give one of an evaluation, or of a run")
    if (folder / FILE).exists():
        return folder
    if (Path(run) / OF_MODEL / FILE).exists():
        raise InputError(f"{run}: a trained teacher has nothing to compare with; give a second folder")
    _check_kind(run)
    raise InputError(f"{run} keeps no verdicts of a teacher; give two folders to compare")


def _check_kind(folder: str | Path) -> None:
    """Refuse a folder that is neither of a run nor of an evaluation."""
    if not records_recipe(folder) and not any((Path(folder) / name).exists() for name in (ASKED, FILE)):
        raise InputError(f"{folder} is neither a run nor an evaluation")


def _read(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not Path(folder).is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of an evaluation")
    file = next((file for place in ("", OF_MODEL) if (file := Path(folder) / place / FILE).exists()), None)
    if file is None:
        _check_kind(folder)
        raise InputError(f"{folder} holds no verdicts ({FILE}); evaluate the model again to get them")
    right, about = load_verdicts(file)
    if not right or not len(next(iter(right.values()))):
        raise InputError(f"{file} has no attack or no image in it; evaluate the model again")
    if file.parent != Path(folder) and (Path(folder) / DESCRIPTION).is_file():
        known = read_description(Path(folder), str(folder)).get("fingerprint")
        if known not in (None, about.get("model")):
            raise InputError(f"{file} is of another model than that of {folder}; evaluate the model again")
    return right, about


def _check_data(*sides: tuple[str | Path, Mapping[str, Any]]) -> None:
    """Refuse two sides that were not measured on the same data."""
    for folder, about in sides:
        if not about.get("data"):
            raise InputError(f"{folder} does not say which data it was measured on; evaluate the model again")
    (a, about_a), (b, about_b) = sides
    if about_a["data"] != about_b["data"]:
        prints = " and ".join(str(about["data"])[:12] for about in (about_a, about_b))
        raise InputError(f"{a} and {b} were measured on different data (SHA-256 {prints}); evaluate both on the same")


def _difference(attack: str, a: Tensor, b: Tensor) -> Difference:
    n = len(a)
    both, only_a, only_b = int((a & b).sum()), int((a & ~b).sum()), int((b & ~a).sum())
    return Difference(
        attack,
        accuracy_a=100 * (both + only_a) / n,
        accuracy_b=100 * (both + only_b) / n,
        difference=100 * (only_b - only_a) / n,
        interval=paired(only_a, only_b, n),
        both=both,
        only_a=only_a,
        only_b=only_b,
        neither=n - both - only_a - only_b,
        p_value=mcnemar(only_a, only_b),
        images=n,
    )


def _only(right: Tensor, other: Tensor) -> list[int]:
    indices: list[int] = (right & ~other).nonzero().flatten().tolist()
    return indices


def _other_threat(a: Any, b: Any) -> tuple[str, ...]:
    if a == b:
        return ()
    ways = [[_threat_text(threat, step) for threat in (a, b)] for step in (False, True)]
    text_a, text_b = ways[0] if ways[0][0] != ways[0][1] else ways[1]
    return (f"A was attacked at {text_a}, B at {text_b}",)


def _threat_text(given: Any, step: bool) -> str:
    try:
        threat = Threat(**given)
    except (TypeError, InputError):
        return "an unknown threat"
    return f"{threat} in steps of {threat.step_text}" if step else str(threat)


def _left_out(right_a: Mapping[str, Tensor], right_b: Mapping[str, Tensor]) -> list[str]:
    pairs = (("A", right_a, right_b), ("B", right_b, right_a))
    left_out = {side: [name for name in own if name not in other] for side, own, other in pairs}
    return [f"not compared, only {side} has: {', '.join(names)}" for side, names in left_out.items() if names]
