"""What an evaluation found, image by image: accuracies, their intervals, and the file of verdicts."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import Tensor

from pwoa.attacks.registry import attack_label, lookup
from pwoa.errors import InputError, counted, first_line
from pwoa.evaluation.agreement import Agreement
from pwoa.evaluation.checks import Finding
from pwoa.storage.folder import replacing
from pwoa.storage.reading import parse_json, read_safetensors
from pwoa.threat import Threat, length_text

WORST = "worst"
"""What the accuracy under all attacks together is called among accuracies."""
Z = NormalDist().inv_cdf(0.975)
"""An interval of 95 % leaves 2.5 % out on either side."""


def wilson(right: int, n: int) -> tuple[float, float]:
    """Return the 95 % score interval of Wilson (1927), in percent, of an accuracy of `right` out of `n` images.

    With p = right/n it is (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n); also of use at 0 and 100 %.
    """
    _check(right, n)
    share, weight = right / n, Z * Z / n
    centre = share + weight / 2
    half = math.sqrt(weight * (share * (1 - share) + weight / 4))
    low = 0.0 if right == 0 else 100 * (centre - half) / (1 + weight)
    high = 100.0 if right == n else 100 * (centre + half) / (1 + weight)
    return low, high


def paired(only_a: int, only_b: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval, in points, of accuracy B − accuracy A, both on the same `n` images.

    only_a, only_b: how many images only A, and only B, gets right. It is the adjusted Wald interval of Bonett &
    Price (2012): one image is added to either count and two to n, then, with p = only/n, the interval is
    p_B − p_A ± z √((p_A + p_B − (p_B − p_A)²)/n). So it has a width also where the two never differ.
    """
    _check(only_a + only_b, n)
    total = n + 2
    share_a, share_b = (only_a + 1) / total, (only_b + 1) / total
    centre = share_b - share_a
    half = Z * math.sqrt((share_a + share_b - centre * centre) / total)
    return max(-100.0, 100 * (centre - half)), min(100.0, 100 * (centre + half))


def _check(counted: int, n: int) -> None:
    if n < 1 or not 0 <= counted <= n:
        raise InputError(f"no interval for {counted} of {n} images; give a count from 0 to n, and n of 1 or more")


@dataclass(frozen=True, repr=False, eq=False)
class Scores(Mapping[str, float]):
    """The accuracy in percent by attack, as a mapping: `dict(scores)`, `scores["pgd20"]`; and which images
    a model gets right, naturally and under each attack, against one attacker.

    right: by attack, for each image whether the model gets both the natural and the attacked one right; an attack may
        have been run on fewer images than others, the first of them.
    after: by component of AutoAttack, in its order, which images were still right when it had run.
    seconds: how long each attack took; PGD-20 goes on from PGD-10, so its seconds are those of its last ten steps.
    findings: signs that these numbers may be too high.
    curve: the scores at other radii.
    agreement: how the answers are to those of the model's twin, if it has one.
    folder: where they are kept, if they are.
    distances: by an attack that looks for the nearest broken image, as fmn, how far that is for each image: 0 for one
        that is wrong already, infinity where none was found.
    """

    threat: Threat
    right: dict[str, Tensor]
    seconds: dict[str, float]
    after: dict[str, Tensor] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    curve: tuple[Scores, ...] = ()
    agreement: tuple[Agreement, ...] = ()
    folder: Path | None = None
    distances: dict[str, Tensor] = field(default_factory=dict)

    def at_radius(self, attack: str, radius: float) -> Tensor:
        """Tell which images are right under an attack at any radius, by its distances: nothing is attacked for it.

        Example: `scores.at_radius("fmn", 4 / 255).float().mean()`.
        """
        if attack not in self.distances:
            raise InputError(f"{attack} keeps no distances; evaluate with the attack fmn, which does")
        return self.distances[attack] > radius

    def __getitem__(self, attack: str) -> float:
        return percent(self.right[attack])

    def __iter__(self) -> Iterator[str]:
        return iter(self.right)

    def __len__(self) -> int:
        return len(self.right)

    def __repr__(self) -> str:
        fewer = self.fewer
        of = {name: f" (first {fewer[name]:,})" if name in fewer else "" for name in self.accuracies}
        text = ", ".join(f"{attack_label(name)} {value:.2f} %{of[name]}" for name, value in self.accuracies.items())
        return f"<Scores on {counted(self.images, 'image')}, {self.threat}: {text}>"

    @property
    def images(self) -> int:
        """How many images were measured, by most of the attacks."""
        return max(map(len, self.right.values()))

    @property
    def worst(self) -> Tensor:
        """Which images are right under all of the attacks, of those that all of them have seen."""
        seen = min(map(len, self.right.values()))
        return torch.stack([right[:seen] for right in self.right.values()]).all(0)

    @property
    def accuracies(self) -> dict[str, float]:
        """The accuracy in percent by attack and, where there are several, under `worst` that under all of them."""
        return {name: percent(right) for name, right in self._rows.items()}

    @property
    def fewer(self) -> dict[str, int]:
        """How many images those of the `accuracies` are of that are of fewer than all."""
        return {name: len(right) for name, right in self._rows.items() if len(right) < self.images}

    @property
    def _rows(self) -> dict[str, Tensor]:
        return {**self.right, WORST: self.worst} if len(self.right) > 1 else self.right

    def interval(self, attack: str) -> tuple[float, float]:
        """Return the 95 % confidence interval of the accuracy, in percent."""
        return wilson(int(self.right[attack].sum()), len(self.right[attack]))


def weak_steps(accuracies: Mapping[str, float], threat: Threat) -> str:
    """Say in a line which attacks cannot reach the edge of the ball, for all their steps; nothing if all can.

    One that breaks every image all the same is left out. Example: `weak_steps({"pgd10": 97.5}, Threat("linf", 0.3,
    0.01))`.
    """
    some_right = [name for name, accuracy in accuracies.items() if accuracy > 0]
    steps = {name: attack.steps for name in some_right if (attack := lookup(name)) and attack.loss is not None}
    moves = {name: number * threat.step for name, number in steps.items() if threat.radius > 0}
    short = {name: move for name, move in moves.items() if move < threat.radius * (1 - 1e-6)}
    if not short:
        return ""
    far = [f"{attack_label(name)} moves at most {length_text(move, threat.norm)}" for name, move in short.items()]
    return (
        f"{', '.join(far)} of {threat.radius_text}: too few steps of {threat.step_text} to reach "
        "the edge of the ball from a random start, so the true accuracy may be lower"
    )


def percent(right: Tensor) -> float:
    return 100 * int(right.sum()) / len(right)


FILE = "verdicts.safetensors"
"""What the file is called in the folder of an evaluation."""


def save_verdicts(path: str | Path, right: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write, atomically, which images are right under each attack, and what was measured.

    right: by the attack's name a bool tensor, on any device, of all n images or the first of them; the order of the
        attacks is kept.
    about: a JSON object (fingerprint of the data, threat, model, …).
    """
    n, fewer = _lengths(right)
    bits = {name: np.packbits(verdicts.cpu().numpy()) for name, verdicts in right.items()}
    text = json.dumps(dict(about), ensure_ascii=False)
    layout = {"n": n, "attacks": list(bits), "sha256": _digest(n, fewer, bits, text)}
    layout |= {"fewer": fewer} if fewer else {}
    with replacing(Path(path)) as file:
        file.write(save(bits, {"about": text, "verdicts": json.dumps(layout, ensure_ascii=False)}))


def load_verdicts(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `save_verdicts` was given; a file that is damaged or something else is an InputError."""
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist" if not Path(path).exists() else f"{path} is not a file")
    try:
        return _load(Path(path))
    except Exception as error:  # a damaged file can hold anything
        raise InputError(f"{path} is damaged or no file of verdicts ({first_line(error)}); evaluate again") from None


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    content, metadata = read_safetensors(path)
    if not {"about", "verdicts"} <= metadata.keys():
        raise ValueError("it names no attacks")
    tensors = load(content)
    layout = parse_json(metadata["verdicts"], "its table")
    bits = {name: tensors[name] for name in layout["attacks"]}
    n, fewer = layout["n"], dict(layout.get("fewer", {}))
    counts = {name: fewer.get(name, n) for name in bits}
    for name, packed in bits.items():
        if type(counts[name]) is not int or packed.shape != ((counts[name] + 7) // 8,):
            raise ValueError(f"its bits are not those of {counts[name]!r} images")
    if _digest(n, fewer, bits, metadata["about"]) != layout["sha256"]:
        raise ValueError("its checksum is wrong")
    unpacked = {name: np.unpackbits(packed, count=counts[name]).astype(bool) for name, packed in bits.items()}
    right = {name: torch.from_numpy(verdicts) for name, verdicts in unpacked.items()}
    return right, dict(parse_json(metadata["about"], "its heading"))


def _lengths(right: Mapping[str, Tensor]) -> tuple[int, dict[str, int]]:
    """Return how many images there are, and how many of them those attacks have that were run on fewer."""
    if not right or any(verdicts.dtype != torch.bool for verdicts in right.values()):
        found = ", ".join(f"{name}: {len(verdicts)} {verdicts.dtype}" for name, verdicts in right.items())
        raise InputError(f"verdicts must be bool tensors, one for each attack; found {found or 'none'}")
    n = max(map(len, right.values()))
    return n, {name: len(verdicts) for name, verdicts in right.items() if len(verdicts) < n}


def _digest(n: int, fewer: Mapping[str, int], bits: Mapping[str, Any], about: str) -> str:
    digest = hashlib.sha256(f"{n}{json.dumps(fewer) if fewer else ''}\0{about}".encode())
    for name, packed in bits.items():
        digest.update(name.encode() + b"\0" + packed.tobytes())
    return digest.hexdigest()
