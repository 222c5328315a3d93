"""What all checks share: the finding that each reports, and how they look at a model, on a few images."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pwoa.attacks.apgd import STEPS as APGD_STEPS
from pwoa.attacks.apgd import STRONG_CE_STEPS, apgd_ce
from pwoa.attacks.gradient import cross_entropy, pgd
from pwoa.attacks.problem import is_broken
from pwoa.attacks.registry import AUTOATTACK, NATURAL, STRONG, find_attack
from pwoa.attacks.square import square
from pwoa.errors import DefenceWarning, InputError, counted, first_line
from pwoa.guard import refuse_attack
from pwoa.models.border import LogitModel
from pwoa.threat import Threat

IMAGES = 100
"""How many images a check looks at, at most, where that costs forward passes."""
ATTACKED, FEWEST = 50, 10
"""How many images the checks attack, at most, and however little the attacks themselves have cost."""


@dataclass(frozen=True)
class Finding:
    """A warning: the short, stable name of a check, and what it saw and what that means, in a sentence or two."""

    check: str
    message: str


def warn_of(findings: Iterable[tuple[str, str]]) -> None:
    """Give findings, as (check, message), as Python warnings at the line that called the function that calls this."""
    for check, message in findings:
        warnings.warn(f"{check}: {message}", DefenceWarning, stacklevel=3)


def some(images: Tensor, seed: int, limit: int = IMAGES) -> Tensor:
    """Choose at most `limit` of these numbers of images, whatever their order: data may be sorted by class."""
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:limit]]


@torch.no_grad()
def look(model: LogitModel, x: Tensor) -> Tensor:
    return model(x).float()


LONGER = 5
BROKEN_AGAIN = 0.02
BROKEN_BLIND = 0.005
QUERIES = 200
WIDE_STEPS = 50
FORWARD = 3  # a call with its gradient takes about three times as long as one without
UNBROKEN = 0.1

Run = Callable[..., Tensor]
"""(model, x, labels, threat, *, generator) → adversarial images."""
Tell = Callable[[str], None]
"""Is called before each attack that a check runs, with the check's name, the attack, and on how many images."""


def check_attacks(
    model: LogitModel,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    right: Mapping[str, Tensor],
    *,
    after: Mapping[str, Tensor] = {},
    seed: int = 0,
    differentiable: bool = True,
    limit: int = IMAGES,
    tell: Tell = lambda check: None,
) -> list[Finding]:
    """Judge the attacks that were run, and run some short ones more on images that survived them all.

    right: for each attack (or `natural`) whether each of `x` is right under it.
    after: for each component of AutoAttack, in order, whether each is still right after it.
    limit: how many images are attacked, at most.
    """
    refuse_attack("defence checks")
    white, black = _by_kind(right, after)
    findings = _check_results(*({name: v for name, v in kind.items() if len(v) == len(x)} for kind in (white, black)))
    if not white and not black:
        return findings
    unbroken = _surviving([*right.values(), *after.values()])
    if not bool(unbroken.any()):
        return findings
    chosen = some(unbroken.nonzero().flatten(), seed, limit).to(x.device)
    trial = _Trial(model, x[chosen], labels[chosen], threat, 100 * float(unbroken.float().mean()), seed, tell)
    if differentiable:
        findings += _check_longer(trial, white)
    if not _searched_blindly([*right, *after]):
        findings += _check_square(trial)
    if differentiable and white:
        findings += _check_wide(trial)
    return findings


def affordable(right: Mapping[str, Sized]) -> tuple[int, int]:
    """Return how many images `check_attacks` may attack for no more than the attacks cost, and the calls for each."""
    attacks = {name: find_attack(name) for name in right if name != NATURAL}
    calls_of = {name: sum(find_attack(part).calls for part in attack.parts) for name, attack in attacks.items()}
    spent = sum(len(right[name]) * calls for name, calls in calls_of.items())
    steps = max((attack.steps for attack in attacks.values() if attack.loss is not None), default=0)
    calls = LONGER * (_long_steps(attacks) or steps) + QUERIES // FORWARD + WIDE_STEPS
    return max(FEWEST, min(ATTACKED, spent // calls)), calls


def check_curve(radii: Sequence[float], accuracy: Mapping[str, Sequence[float]], n: int) -> list[Finding]:
    """Check `radius`: whether the accuracy (percent, of `n` images) under an attack grows with it, beyond noise."""
    findings = []
    for attack, values in accuracy.items():
        points = sorted(zip(radii, values, strict=True))
        pairs = [(low, high) for i, low in enumerate(points) for high in points[i + 1 :] if low[0] < high[0]]
        grown = [(high[1] - low[1], low, high) for low, high in pairs if high[1] - low[1] > 2 * _noise(low, high, n)]
        if grown:
            _, low, high = max(grown)
            message = (
                f"{attack}: the accuracy grows from {low[1]:.1f} % at radius {low[0]:.4g} to {high[1]:.1f} % at "
                f"{high[0]:.4g}, though a larger ball holds the smaller one: the attack is too weak or gradients are "
                "masked, and the accuracy is too high."
            )
            findings.append(Finding("radius", message))
    return findings


def _by_kind(right: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split verdicts by whether the attack uses the model's gradients; AutoAttack is split into its parts if known."""
    white: dict[str, Tensor] = {}
    black: dict[str, Tensor] = {}
    for name, value in (*right.items(), *after.items()):
        if name != NATURAL and not (after and name == AUTOATTACK):
            kind = white if find_attack(name).needs_gradients else black
            kind[name] = _surviving([value, kind.get(name, value)])
    return white, black


def _searched_blindly(attacks: Iterable[str]) -> bool:
    """Tell whether one of the attacks, or a part of it, searches on the model without its gradients."""
    parts = {part for name in attacks for part in find_attack(name).parts} - {NATURAL}
    return not all(find_attack(part).needs_gradients for part in parts)


def _surviving(verdicts: Sequence[Tensor]) -> Tensor:
    """Tell of the images that all attacks have seen which are right under all of them."""
    seen = min(map(len, verdicts))
    return torch.stack([verdict[:seen].cpu() for verdict in verdicts]).all(0)


def _check_results(white: Mapping[str, Tensor], black: Mapping[str, Tensor]) -> list[Finding]:
    """Check `black-box`, from what has been measured on all images."""
    if not white:
        return []
    survived = _surviving(list(white.values()))
    n = len(survived)
    findings = []
    for name, verdict in black.items():
        broken, rivals = int((survived & ~verdict.cpu()).sum()), int(survived.sum())
        if not _many(broken, n, BROKEN_BLIND):
            continue
        message = (
            f"{name} breaks {broken} of {rivals} images that survived every attack that uses gradients: gradients "
            f"may be masked, and the accuracy is at most {100 * (rivals - broken) / n:.1f} %, not "
            f"{100 * rivals / n:.1f} %; a stronger black-box attack may find more."
        )
        findings.append(Finding("black-box", message))
    return findings


@dataclass(frozen=True)
class _Trial:
    """Images that survived all attacks so far, of a model with that accuracy (percent) under all of them together."""

    model: LogitModel
    x: Tensor
    labels: Tensor
    threat: Threat
    accuracy: float
    seed: int
    tell: Tell

    def broken(self, check: str, name: str, run: Run) -> int | str:
        """Return how many images it breaks, or why it cannot be run, though the model takes the images."""
        self.tell(f"{check}: {name}, on {counted(len(self.x), 'image')}")
        generator = torch.Generator(self.x.device).manual_seed(self.seed)
        try:
            adversarial = run(self.model, self.x, self.labels, self.threat, generator=generator)
            return int(is_broken(self.model, adversarial, self.labels).sum())
        except InputError:
            raise
        except Exception as error:  # such as a model without gradients
            look(self.model, self.x)
            return first_line(error)

    def nearer(self, broken: int) -> str:
        """Write the accuracy that breaking this many of the images means for all."""
        left = self.accuracy * (1 - broken / len(self.x))
        return f"the accuracy may be nearer {left:.1f} than {self.accuracy:.1f} %"


def _check_longer(trial: _Trial, white: Iterable[str]) -> list[Finding]:
    longer = _longer(white)
    if longer is None:
        return []
    name, run = longer
    broken = trial.broken("more-iterations", name, run)
    if isinstance(broken, str):
        return [_untried("more-iterations", name, broken)]
    if not _many(broken, len(trial.x), BROKEN_AGAIN):
        return []
    message = f"{name} breaks {broken} of {len(trial.x)} images that survived every attack; {trial.nearer(broken)}."
    return [Finding("more-iterations", message)]


def _longer(attacks: Iterable[str]) -> tuple[str, Run] | None:
    """Return the strongest iterated attack of a list with five times its steps, with its name; None without one."""
    chosen = [find_attack(name) for name in attacks]
    if steps := LONGER * _long_steps([attack.name for attack in chosen]):
        return f"apgd-ce with {steps} steps", partial(apgd_ce, steps=steps)
    iterated = [attack for attack in chosen if attack.loss is not None]
    if not iterated:
        return None
    longest = max(iterated, key=lambda attack: attack.steps)
    assert longest.loss is not None
    run = partial(pgd, steps=LONGER * longest.steps, loss=longest.loss)
    return f"{longest.name} with {LONGER} times the steps", run


def _long_steps(attacks: Iterable[str]) -> int:
    """Return how many steps of APGD-CE the longer ones of the attacks take; 0 if there are none."""
    long = [name for name in attacks if not find_attack(name).short]
    return 0 if not long else STRONG_CE_STEPS if long == [STRONG] else APGD_STEPS


def _check_square(trial: _Trial) -> list[Finding]:
    name = f"square-paper with {QUERIES} queries"
    broken = trial.broken("black-box", name, partial(square, queries=QUERIES, paper=True))
    if isinstance(broken, str):
        return [_untried("black-box", name, broken)]
    if not _many(broken, len(trial.x), BROKEN_AGAIN):
        return []
    message = (
        f"{name}, which uses no gradients, breaks {broken} of {len(trial.x)} images that survived every attack: "
        f"gradients may be masked, and {trial.nearer(broken)}."
    )
    return [Finding("black-box", message)]


def _check_wide(trial: _Trial) -> list[Finding]:
    """Check a wider ball, which holds the image that is grey all over, for all: hardly any image can stay right."""
    dimensions = math.prod(trial.x.shape[1:])
    grey = 0.5 if trial.threat.norm == "linf" else min(0.5 * math.sqrt(dimensions), 1000.0)
    radius = max(grey, trial.threat.radius)
    wide = dataclasses.replace(trial, threat=Threat(trial.threat.norm, radius, radius / 10))
    name = f"pgd{WIDE_STEPS} at {wide.threat}"
    broken = wide.broken("radius", name, partial(pgd, steps=WIDE_STEPS, loss=cross_entropy))
    if isinstance(broken, str):
        return [_untried("radius", name, broken)]
    left, classes = len(trial.x) - broken, look(trial.model, trial.x[:2]).shape[1]
    if not _many(left, len(trial.x), max(UNBROKEN, 1 / classes)):
        return []
    message = (
        f"{name}, which can turn any image grey, leaves {left} of {len(trial.x)} images right: the attack does not "
        "find what is there, gradients may be masked, and the accuracy at smaller radii is not to be trusted."
    )
    return [Finding("radius", message)]


def _untried(check: str, attack: str, reason: str) -> Finding:
    return Finding(check, f"{attack} cannot be run ({reason}), so the accuracy stands unconfirmed.")


def _many(count: int, total: int, share: float) -> bool:
    """Tell whether a count is more than a share, and not just one image."""
    return count > 1 and count > share * total


def _noise(one: tuple[float, float], other: tuple[float, float], n: int) -> float:
    """Return the standard deviation, in points, of the difference of two points (radius, percent) of n images each."""
    return math.sqrt(sum(percent * (100 - percent) for _, percent in (one, other)) / n)
