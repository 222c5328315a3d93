"""The sections of a recipe, with their defaults and what each value may be, and the recipe that holds them all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pwoa.errors import InputError
from pwoa.recipe.settings import numbers, parse_setting, replace
from pwoa.threat import Threat

T = TypeVar("T")


def number(default: float, *, low: float = -math.inf, high: float = math.inf) -> Any:
    """Declare a setting that is a number within limits."""
    return field(default=default, metadata={"low": low, "high": high})


def choice(default: str, *options: str) -> Any:
    """Declare a setting that is one of a few words."""
    return field(default=default, metadata={"options": options})


@dataclass(frozen=True)
class DataRecipe:
    """Which images: a known data set or a folder of images, and how they are split and augmented.

    `validation` of the training images are held out, to select the model by; 0 is a tenth of them, at most 5,000.
    """

    name: str = "mnist-mini"
    folder: str = ""
    augment: str = choice("none", "none", "crop-flip")
    validation: int = number(0, low=0)


@dataclass(frozen=True)
class TeacherRecipe:
    """Where the robust model comes from, and how robust it must be (percent, short PGD) to be worth pruning.

    `mean` and `std` say how its images are normalised, a number for each channel as in "0.49,0.48,0.45", if that is
    done neither in the network nor in its file.
    """

    architecture: str = "lenet"
    checkpoint: str = "embedded"
    minimum: float = number(20.0, low=0, high=100)
    mean: str = ""
    std: str = ""

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            numbers(getattr(self, name), f"teacher.{name}")


@dataclass(frozen=True)
class SparsityRecipe:
    """How small: `rate` is unpruned size over pruned size of the prunable weights.

    `allocation` shares the weights that stay among the layers: all at the same rate (`uniform`, the paper's), in
    proportion to their dimensions (`erk`), or by the magnitudes of the teacher's weights (`lamp`).
    """

    rate: float = number(4.0, low=1)
    pattern: str = "unstructured"
    allocation: str = choice("uniform", "uniform", "erk", "lamp")


@dataclass(frozen=True)
class ObjectiveRecipe:
    """The weights of the loss: λ (distillation), λx and λy (HSIC), and λ_ce (classification).

    `distillation` multiplies τ²·KL averaged over images and summed over classes. The published λ belongs to
    a mean over classes too; dividing it by their number gives the value here. `balance = "auto"` sets λ, λx
    and λy after the first epoch by the paper's rule (Appendix B), keeping the ratio of λx to λy.
    """

    distillation: float = number(1.0, low=0)
    temperature: float = number(30.0, low=1e-3, high=1e6)
    hsic: str = choice("normalised", "normalised", "plain")
    hsic_x: float = number(2e-5, low=0)
    hsic_y: float = number(1e-4, low=0)
    classification: float = number(0.0, low=0)
    balance: str = choice("given", "given", "auto")
    points: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchRecipe:
    """The ADMM stage: ρ starts at `rho` and grows by `rho_growth` at each update, up to `rho_limit`."""

    epochs: int = number(50, low=1)
    learning_rate: float = number(0.01, low=0)
    rho: float = number(0.01, low=0)
    rho_growth: float = number(1.35, low=1)
    rho_limit: float = number(1.0, low=0)
    interval: int = number(3, low=1)


@dataclass(frozen=True)
class FinetuneRecipe:
    """The masked stage."""

    epochs: int = number(100, low=1)
    learning_rate: float = number(0.005, low=0)


@dataclass(frozen=True)
class PretrainRecipe:
    """Robust training from scratch. `steps` of `step` (0: a quarter of the radius) attack each batch.

    `beta` weighs the divergence of TRADES, MART and LBGAT. Over the first `warmup` epochs the learning rate rises from
    0; over the first `growing` epochs the radius grows to that of the threat. `lite` trains a Lite network: the same
    depth, and filters for that many times fewer parameters.
    """

    epochs: int = number(36, low=1)
    learning_rate: float = number(0.1, low=0)
    steps: int = number(10, low=1)
    step: float = number(0.0, low=0)
    beta: float = number(6.0, low=0)
    warmup: int = number(0, low=0)
    growing: int = number(0, low=0)
    lite: float = number(1.0, low=1)

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

    optimizer: str = choice("sgd", "sgd", "adam")
    batch: int = number(128, low=2)
    group: int = number(128, low=2)
    mix: float = number(0.0, low=0, high=1)
    momentum: float = number(0.9, low=0, high=0.9999)
    weight_decay: float = number(1e-4, low=0)
    average: float = number(0.0, low=0, high=0.999999)
    seed: int = number(0, low=0)
    device: str = "auto"
    mode: str = choice("auto", "auto", "exact", "fast")
    checkpoint_seconds: float = number(15.0, low=0)


@dataclass(frozen=True)
class Evaluation:
    """How robustness is measured, by `pwoa evaluate`, at the end of every run, before pruning, and in sweeps.

    attacks: names such as natural, fgsm, pgd20, cw, autoattack, or `paper` for the paper's six measures.
    images: how many, from the first (0: all). seed: of random starts (-1: that of training).
    precision: `auto` searches on a faster copy of the model and lets the model in float32 decide; `float32` searches in
    float32 too. radii: measure at these radii as well. checks: look for signs that the accuracy is too high.
    """

    attacks: tuple[str, ...] = ("natural", "fgsm", "pgd10", "pgd20", "cw")
    images: int = number(0, low=0)
    batch: int = number(500, low=1)
    seed: int = number(-1, low=-1)
    precision: str = choice("auto", "auto", "float32")
    radii: tuple[float, ...] = ()
    checks: bool = True


@dataclass(frozen=True)
class Recipe:
    """Every setting of a run.

    own: the settings of the method's own section, if it has one, as (key, value). The method itself says which there
    are; its section is named like the method.
    """

    method: str = "pwoa"
    data: DataRecipe = DataRecipe()
    teacher: TeacherRecipe = TeacherRecipe()
    threat: Threat = field(default_factory=Threat)
    sparsity: SparsityRecipe = SparsityRecipe()
    objective: ObjectiveRecipe = ObjectiveRecipe()
    search: SearchRecipe = SearchRecipe()
    finetune: FinetuneRecipe = FinetuneRecipe()
    pretrain: PretrainRecipe = PretrainRecipe()
    training: TrainingRecipe = TrainingRecipe()
    evaluation: Evaluation = Evaluation()
    own: tuple[tuple[str, Any], ...] = ()

    def with_settings(self, settings: Mapping[str, Any] | Iterable[str], where: str = "settings") -> Recipe:
        """Return a copy with `{"section.key": value}` or `["section.key=value"]` applied and checked.

        Example: `load_recipe("cifar10").with_settings({"sparsity.rate": 8})`.
        """
        pairs = settings.items() if isinstance(settings, Mapping) else map(parse_setting, settings)
        tree: dict[str, Any] = {}
        for path, value in pairs:
            section, dot, key = path.partition(".")
            given = {key: value} if dot else value
            if not isinstance(given, Mapping):
                tree[section] = given
            elif isinstance(before := tree.get(section, {}), Mapping):
                tree[section] = {**before, **given}
        return self.with_tree(tree, where)

    def with_tree(self, tree: Mapping[str, Any], where: str) -> Recipe:
        """Return a copy with the values of a nested mapping, as a TOML file has it, each checked."""
        tree = dict(tree)
        method = tree.get("method", self.method)
        own = dict(self.own) if method == self.method else {}
        if isinstance(method, str) and isinstance(tree.get(method), Mapping):
            own |= tree.pop(method)
        changed: Recipe = replace(self, tree, where, "")
        return dataclasses.replace(changed, own=tuple(sorted(own.items())))

    def own_settings(self, kind: type[T]) -> T:
        """Return the settings of the method's own section as an instance of `kind`, each checked."""
        settings: T = replace(kind(), dict(self.own), where="settings", prefix=f"{self.method}.")
        return settings

    def with_own(self, settings: Any) -> Recipe:
        """Return a copy whose own section has every value of an instance of the method's settings."""
        pairs = ((field.name, getattr(settings, field.name)) for field in dataclasses.fields(settings))
        return dataclasses.replace(self, own=tuple(sorted(pairs)))

    def for_images(self, images: int) -> Recipe:
        """Return the recipe for so many training images, which says how many are held out where it has 0."""
        held_out = self.data.validation or max(1, min(images // 10, 5000))
        return self.with_settings({"data.validation": held_out})

    def seeded_evaluation(self) -> Evaluation:
        """Return how robustness is measured, with the seed of training where it has none of its own."""
        seed = self.training.seed if self.evaluation.seed < 0 else self.evaluation.seed
        return dataclasses.replace(self.evaluation, seed=seed)

    def differences(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """Return the settings in which another recipe differs, as `{"section.key": (mine, the other's)}`.

        Where it is run, and where its files lie, is no difference, nor is what this one has for a choice that the other
        leaves to the run.
        """
        mine, theirs = flat(self), flat(other)
        unknown = {key for key, auto in CHOSEN.items() if theirs[key] == auto}
        known = [key for key in mine | theirs if key not in unknown.union(INCIDENTAL)]
        return {key: (mine.get(key), theirs.get(key)) for key in known if mine.get(key) != theirs.get(key)}


AUTO = "auto"
CHOSEN = {"teacher.architecture": AUTO, "training.mode": AUTO, "data.validation": 0}
"""How a recipe leaves a choice to the run, which writes down what it chose."""
INCIDENTAL = ("training.device", "training.checkpoint_seconds", "data.folder", "teacher.checkpoint")
"""Where a run is computed, and where its data and teacher lie; what they are is told by their fingerprints."""


def flat(recipe: Recipe) -> dict[str, Any]:
    """Return all settings as `{"section.key": value}`."""
    settings: dict[str, Any] = {}
    for section in dataclasses.fields(recipe):
        value = getattr(recipe, section.name)
        if dataclasses.is_dataclass(value):
            settings |= {f"{section.name}.{f.name}": getattr(value, f.name) for f in dataclasses.fields(value)}
        elif section.name == "own":
            settings |= {f"{recipe.method}.{key}": value for key, value in recipe.own}
        else:
            settings[section.name] = value
    return settings
