"""The sections of a recipe, with their defaults and what each value may be, and the recipe that holds them all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from pwoa.errors import InputError
from pwoa.recipe.settings import numbers, parse_setting, replace


def _number(default: float, *, low: float = -math.inf, high: float = math.inf) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


def _choice(default: str, *options: str) -> Any:
    return field(default=default, metadata={"options": options})


@dataclass(frozen=True)
class DataRecipe:
    """Which images: a known data set or a folder of images, and how they are split and augmented.

    `validation` of the training images are held out, to select the model by; 0 is a tenth of them, at most 5,000.
    """

    name: str = "mnist-mini"
    folder: str = ""
    augment: str = _choice("none", "none", "crop-flip")
    validation: int = _number(0, low=0)


@dataclass(frozen=True)
class TeacherRecipe:
    """Where the robust model comes from, and how robust it must be (percent, short PGD) to be worth pruning.

    `mean` and `std` say how its images are normalised, a number a channel as in "0.49,0.48,0.45", if that is done
    neither in the network nor in its file.
    """

    architecture: str = "lenet"
    checkpoint: str = "embedded"
    minimum: float = _number(20.0, low=0, high=100)
    mean: str = ""
    std: str = ""

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            numbers(getattr(self, name), f"teacher.{name}")


@dataclass(frozen=True)
class Threat:
    """The attacker: every image within `radius` of the natural one in `norm`, and inside [0, 1]."""

    norm: str = _choice("linf", "linf", "l2")
    radius: float = 8 / 255
    step: float = 2 / 255

    def __post_init__(self) -> None:
        # Past these bounds the ball holds every image: 1 in linf; 1000 in l2 (as 1000×1000 grey pixels, 0 to 1).
        highest = {"linf": 1.0, "l2": 1000.0}
        if self.norm not in highest:
            raise InputError(f"threat.norm = {self.norm!r}; allowed: {', '.join(highest)}")
        high = highest[self.norm]
        for name, value in (("radius", self.radius), ("step", self.step)):
            if not (isinstance(value, Real) and 0 <= value <= high):
                raise InputError(f"threat.{name} = {value!r}; allowed: from 0 to {high:g} in {self.norm}")

    def in_quarters(self) -> Threat:
        """The attacker whose steps are a quarter of the radius: for training, where there are few steps.

        On MNIST ten of the steps of 0.01 that evaluations take come a third of the way.
        """
        return dataclasses.replace(self, step=self.radius / 4)


@dataclass(frozen=True)
class SparsityRecipe:
    """How small: `rate` is unpruned size over pruned size of the prunable weights.

    `allocation` shares the weights that stay among the layers: all at the same rate (`uniform`, the paper's), in
    proportion to their dimensions (`erk`), or by the magnitudes of the teacher's weights (`lamp`).
    """

    rate: float = _number(4.0, low=1)
    pattern: str = _choice("unstructured", "unstructured")
    allocation: str = _choice("uniform", "uniform", "erk", "lamp")


@dataclass(frozen=True)
class ObjectiveRecipe:
    """The weights of the loss: λ (distillation), λx and λy (HSIC), and λ_ce (classification).

    `distillation` multiplies τ²·KL averaged over images and summed over classes. The published λ belongs to
    a mean over classes too; dividing it by their number gives the value here. `balance = "auto"` sets λ, λx
    and λy after the first epoch by the paper's rule (Appendix B), keeping the ratio of λx to λy.
    """

    distillation: float = _number(1.0, low=0)
    temperature: float = _number(30.0, low=1e-3)
    hsic: str = _choice("normalised", "normalised", "plain")
    hsic_x: float = _number(2e-5, low=0)
    hsic_y: float = _number(1e-4, low=0)
    classification: float = _number(0.0, low=0)
    balance: str = _choice("given", "given", "auto")
    points: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchRecipe:
    """The ADMM stage: ρ starts at `rho` and grows by `rho_growth` at each update, up to `rho_limit`."""

    epochs: int = _number(50, low=1)
    learning_rate: float = _number(0.01, low=0)
    rho: float = _number(0.01, low=0)
    rho_growth: float = _number(1.35, low=1)
    rho_limit: float = _number(1.0, low=0)
    interval: int = _number(3, low=1)


@dataclass(frozen=True)
class FinetuneRecipe:
    """The masked stage."""

    epochs: int = _number(100, low=1)
    learning_rate: float = _number(0.005, low=0)


@dataclass(frozen=True)
class HarpRecipe:
    """HARP's penalty on weights kept beyond the budget: `gamma` is what its weight grows by each of 20 epochs.

    No layer may keep less than `minimum` times the budget's fraction while the layers' rates are learned.
    """

    gamma: float = _number(0.01, low=0)
    minimum: float = _number(0.1, low=0, high=1)


@dataclass(frozen=True)
class ApdRecipe:
    """APD's loss: λ (`weight`) of distillation, 1 − λ of classification, and the temperature τ.

    `teacher` is a checkpoint of the same network to distil from; empty, it is the run's own teacher.
    """

    weight: float = _number(0.9, low=0, high=1)
    temperature: float = _number(5.0, low=1e-3)
    teacher: str = ""


@dataclass(frozen=True)
class PretrainRecipe:
    """Robust training from scratch. `steps` of `step` (0: a quarter of the radius) attack each batch.

    `beta` weighs the divergence of TRADES, MART and LBGAT. Over the first `warmup` epochs the learning rate rises from
    0; over the first `growing` epochs the radius grows to that of the threat. `lite` trains a Lite network: the same
    depth, and filters for that many times fewer parameters.
    """

    epochs: int = _number(36, low=1)
    learning_rate: float = _number(0.1, low=0)
    steps: int = _number(10, low=1)
    step: float = _number(0.0, low=0)
    beta: float = _number(6.0, low=0)
    warmup: int = _number(0, low=0)
    growing: int = _number(0, low=0)
    lite: float = _number(1.0, low=1)

    def __post_init__(self) -> None:
        if self.warmup and self.warmup >= self.epochs:
            raise InputError(f"pretrain.warmup = {self.warmup}; allowed: fewer than pretrain.epochs, {self.epochs}")


@dataclass(frozen=True)
class TrainingRecipe:
    """The engine: a cosine schedule a stage. `average` is the decay of averaged weights (0: off).

    `mix` is the mix ratio: the fraction of the examples of each batch that are replaced by adversarial ones; 0 is
    the paper's point. `group` is the number of images over which HSIC and batch normalisation take their
    statistics: a larger batch has several such groups, whether it is computed at once, in parts, or by several
    processes. The mode `exact` is float32 and the same bits each time; `fast` is bfloat16, compiled, and on a GPU
    replayed as CUDA graphs; `auto` is `fast` on a GPU that can, else `exact`.
    """

    optimizer: str = _choice("sgd", "sgd", "adam")
    batch: int = _number(128, low=2)
    group: int = _number(128, low=2)
    mix: float = _number(0.0, low=0, high=1)
    momentum: float = _number(0.9, low=0, high=0.9999)
    weight_decay: float = _number(1e-4, low=0)
    average: float = _number(0.0, low=0, high=0.999999)
    seed: int = _number(0, low=0)
    device: str = "auto"
    mode: str = _choice("auto", "auto", "exact", "fast")
    checkpoint_seconds: float = _number(15.0, low=0)


@dataclass(frozen=True)
class EvaluationRecipe:
    """What the result is measured with; `images` = 0 means the whole test set."""

    attacks: tuple[str, ...] = ("natural", "fgsm", "pgd10", "pgd20", "cw")
    images: int = _number(0, low=0)
    batch: int = _number(500, low=1)


@dataclass(frozen=True)
class Recipe:
    """Every setting of a run."""

    method: str = "pwoa"
    data: DataRecipe = DataRecipe()
    teacher: TeacherRecipe = TeacherRecipe()
    threat: Threat = Threat()
    sparsity: SparsityRecipe = SparsityRecipe()
    objective: ObjectiveRecipe = ObjectiveRecipe()
    search: SearchRecipe = SearchRecipe()
    finetune: FinetuneRecipe = FinetuneRecipe()
    harp: HarpRecipe = HarpRecipe()
    apd: ApdRecipe = ApdRecipe()
    pretrain: PretrainRecipe = PretrainRecipe()
    training: TrainingRecipe = TrainingRecipe()
    evaluation: EvaluationRecipe = EvaluationRecipe()

    def with_settings(self, settings: Mapping[str, Any] | Iterable[str]) -> Recipe:
        """A copy with `{"section.key": value}` or `["section.key=value"]` applied and checked."""
        pairs = settings.items() if isinstance(settings, Mapping) else map(parse_setting, settings)
        tree: dict[str, Any] = {}
        for path, value in pairs:
            section, dot, key = path.partition(".")
            given = {key: value} if dot else value
            if not isinstance(given, Mapping):
                tree[section] = given
            elif isinstance(before := tree.get(section, {}), Mapping):
                tree[section] = {**before, **given}
        changed: Recipe = replace(self, tree, where="settings", prefix="")
        return changed

    def for_images(self, images: int) -> Recipe:
        """The recipe for so many training images, which says how many are held out where it has 0."""
        held_out = self.data.validation or max(1, min(images // 10, 5000))
        return self.with_settings({"data.validation": held_out})

    def differences(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """The settings in which another recipe differs, as `{"section.key": (mine, the other's)}`.

        Where it is run, and where its files lie, is no difference, nor is what this one has for a choice that the other
        leaves to the run.
        """
        mine, theirs = flat(self), flat(other)
        unknown = {key for key, auto in CHOSEN.items() if theirs[key] == auto}
        changed = [key for key in mine if mine[key] != theirs[key] and key not in unknown.union(INCIDENTAL)]
        return {key: (mine[key], theirs[key]) for key in changed}


AUTO = "auto"
CHOSEN = {"teacher.architecture": AUTO, "training.mode": AUTO, "data.validation": 0}
"""How a recipe leaves a choice to the run, which writes down what it chose."""
INCIDENTAL = ("training.device", "training.checkpoint_seconds", "data.folder", "teacher.checkpoint")
"""Where a run is computed, and where its data and teacher lie; what they are is told by their fingerprints."""


def flat(recipe: Recipe) -> dict[str, Any]:
    """All settings as `{"section.key": value}`."""
    settings: dict[str, Any] = {}
    for section in dataclasses.fields(recipe):
        value = getattr(recipe, section.name)
        if dataclasses.is_dataclass(value):
            settings |= {f"{section.name}.{f.name}": getattr(value, f.name) for f in dataclasses.fields(value)}
        else:
            settings[section.name] = value
    return settings
