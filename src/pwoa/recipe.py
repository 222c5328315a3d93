"""Recipes: every setting of a run as typed, checked, frozen values; TOML on disk.

A recipe is built in layers: the defaults below, then a preset or a file, then `section.key=value` settings.
This module imports nothing heavy, so that the command line can check a recipe before it loads torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from pwoa.errors import InputError, did_you_mean


def _number(default: float, *, low: float = -math.inf, high: float = math.inf) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


def _choice(default: str, *options: str) -> Any:
    return field(default=default, metadata={"options": options})


def numbers(text: str, name: str) -> tuple[float, ...]:
    """The numbers in a text such as `0.49,0.48,0.45` or `125/255`; none in an empty one."""
    try:
        return tuple(_number_in(part) for part in text.split(",")) if text.strip() else ()
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{name} = {text!r} is not a list of numbers; write for example 0.49,0.48,0.45") from None


def _number_in(text: str) -> float:
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


@dataclass(frozen=True)
class DataRecipe:
    """Which images: a known data set or a folder of images, and how they are split and augmented.

    `validation` of the training images are held out, to select the model by; 0 is a tenth of them, at most 5,000.
    """

    name: str = "mnist-mini"
    folder: str = ""
    augment: str = _choice("none", "none", "crop-flip")
    validation: int = _number(1000, low=0)


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
        high = {"linf": 1.0, "l2": 1000.0}.get(self.norm, math.inf)
        for name, value in (("radius", self.radius), ("step", self.step)):
            if not 0 <= value <= high:
                raise InputError(f"threat.{name} = {value}; allowed: from 0 to {high:g} in {self.norm}")


@dataclass(frozen=True)
class SparsityRecipe:
    """How small: `rate` is unpruned size over pruned size of the prunable weights."""

    rate: float = _number(4.0, low=1)
    pattern: str = _choice("unstructured", "unstructured")
    allocation: str = _choice("uniform", "uniform")


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
        pairs = settings.items() if isinstance(settings, Mapping) else map(_parse_setting, settings)
        tree: dict[str, Any] = {}
        for path, value in pairs:
            section, dot, key = path.partition(".")
            if dot:
                if not isinstance(tree.setdefault(section, {}), dict):
                    raise InputError(f"settings: {section!r} is a section; give {section}.KEY a value")
                tree[section][key] = value
            else:
                tree[section] = value
        changed: Recipe = _replace(self, tree, where="settings", prefix="")
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


def told(differences: Mapping[str, tuple[Any, Any]], most: int = 5) -> str:
    """What differs, in words, for a handful of settings at most."""
    words = [f"{key}: there {_toml_value(there)}, now {_toml_value(now)}" for key, (there, now) in differences.items()]
    return "; ".join([*words[:most], *([f"and {len(words) - most} more"] if len(words) > most else [])])


def presets() -> list[str]:
    """The names of the presets that come with the package."""
    folder = resources.files("pwoa") / "presets"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_recipe(source: str | Path | Recipe | None = None) -> Recipe:
    """A recipe from a preset's name or a TOML file; the defaults for None."""
    if source is None:
        return Recipe()
    if isinstance(source, Recipe):
        return source
    if str(source) in presets():
        text = (resources.files("pwoa") / "presets" / f"{source}.toml").read_text(encoding="utf-8")
    elif Path(source).is_file():
        text = _read(Path(source))
    else:
        raise InputError(
            f"no recipe {str(source)!r}: neither a file nor a preset ({_suggestion(str(source), presets())})"
        )
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: not valid TOML: {error}") from None
    recipe: Recipe = _replace(Recipe(), tree, where=str(source), prefix="")
    return recipe


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None


def recipe_for(data: str) -> Recipe:
    """The preset for a data set, if there is one, else the defaults."""
    named = {"mnist-mini": "demo", "fashion-mnist": "mnist"}.get(data, data)
    return load_recipe(named) if named in presets() else Recipe()


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


def to_toml(recipe: Recipe) -> str:
    """The complete recipe as TOML; `load_recipe` reads it back to an equal one."""
    lines: list[str] = []
    section = ""
    for path, value in flat(recipe).items():
        head, _, key = path.rpartition(".")
        if head != section:
            lines += ["", f"[{head}]"]
            section = head
        lines.append(f"{key} = {_toml_value(value)}")
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # DEL, which JSON lets pass
    return repr(value)


def _parse_setting(text: str) -> tuple[str, Any]:
    path, equals, raw = text.partition("=")
    if not equals or not path.strip():
        raise InputError(f"setting {text!r} is not of the form section.key=value")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()  # a bare word, as people type it in a shell
    return path.strip(), value


def _replace(target: Any, tree: Mapping[str, Any], where: str, prefix: str) -> Any:
    """A copy of a (section of a) recipe with the values of `tree`, each checked."""
    fields = {f.name: f for f in dataclasses.fields(target)}
    types = typing.get_type_hints(type(target))
    changes = {}
    for key, value in tree.items():
        path = prefix + key
        if key not in fields:
            raise InputError(f"{where}: unknown key {path!r} ({_suggestion(key, list(fields), prefix)})")
        current = getattr(target, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise InputError(f"{where}: {path!r} is a section; give {path}.KEY a value")
            changes[key] = _replace(current, value, where, prefix=f"{path}.")
        else:
            changes[key] = _check(_convert(value, types[key], path, where), fields[key].metadata, path, where)
    try:
        return dataclasses.replace(target, **changes)
    except InputError as error:  # from a section that checks its values against each other
        raise InputError(f"{where}: {error}") from None


def _convert(value: Any, kind: Any, path: str, where: str) -> Any:
    """The value as the field's type, or an error that says what was given and what is wanted."""
    if kind is float and isinstance(value, str):
        try:
            return _number_in(value)
        except (ValueError, ZeroDivisionError):
            pass
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if typing.get_origin(kind) is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items):
            return tuple(item.strip() for item in items if item.strip())
        raise InputError(f"{where}: {path} = {value!r} is not a list of words")
    if type(value) is kind:
        return value
    names = {float: "a number", int: "a whole number", str: "a word", bool: "true or false"}
    raise InputError(f"{where}: {path} = {value!r} is not {names[kind]}")


def _check(value: Any, allowed: Mapping[str, Any], path: str, where: str) -> Any:
    if "options" in allowed and value not in allowed["options"]:
        raise InputError(f"{where}: {path} = {value!r}; allowed: {', '.join(allowed['options'])}")
    if "low" in allowed and not (math.isfinite(value) and allowed["low"] <= value <= allowed["high"]):
        low, high = allowed["low"], allowed["high"]
        span = f"at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
        raise InputError(f"{where}: {path} = {value}; allowed: {span}")
    return value


def _suggestion(given: str, known: list[str], prefix: str = "") -> str:
    return did_you_mean(given, known, prefix)
