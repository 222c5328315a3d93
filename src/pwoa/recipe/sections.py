"""The sections of a recipe, with their defaults and what each value may be, and the recipe that holds them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pwoa.errors import InputError
from pwoa.recipe.methods import METHOD_SECTIONS
from pwoa.recipe.settings import GIVEN, choice, number, numbers, parse_setting, replace, setting
from pwoa.threat import Threat

T = TypeVar("T")
AUTO = "auto"
"""How a recipe leaves a choice to the run."""


@dataclass(frozen=True)
class DataRecipe:
    """Which images: a known data set or a folder of images, and how they are split and augmented.

    Of `images` training images (0: all), chosen by the seed and balanced by class, `validation` are held out, to select
    the model by; 0 is a tenth of them, at most 5,000.
    """

    name: str = setting("mnist-mini", "a data set's name, or a folder of images")
    folder: str = setting("", "where the official files of a named data set lie; empty: the cache, or a download")
    augment: str = choice(
        "none",
        "none",
        "crop-flip",
        "reflect-flip",
        about="how training images are changed at random: mirrored, and shifted over black or over their reflection",
    )
    images: int = number(
        0, "how many training images are used, chosen by the seed and balanced by class; 0: all", low=0
    )
    validation: int = number(
        0, "how many of them are held out to select the model by; 0: a tenth, at most 5,000", low=0
    )


@dataclass(frozen=True)
class TeacherRecipe:
    """Where the robust model comes from, and how robust it must be (percent, short PGD) to be worth pruning.

    `mean` and `std` say how its images are normalised, a number for each channel as in "0.49,0.48,0.45", if that is
    done neither in the network nor in its file.
    """

    architecture: str = setting(AUTO, "a registered name, or auto: what the checkpoint is of")
    checkpoint: str = setting("embedded", "the robust model: a file, a run, a model folder, hf:owner/name, or embedded")
    minimum: float = number(
        20.0, "the accuracy in percent under a short PGD below which a teacher is not worth pruning", low=0, high=100
    )
    mean: str = setting("", "how its images are normalised, if outside the network and its file: as 0.49,0.48,0.45")
    std: str = setting("", "what goes with mean")

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            numbers(getattr(self, name), f"teacher.{name}")


@dataclass(frozen=True)
class SparsityRecipe:
    """How small: `rate` is unpruned size over pruned size of the prunable weights.

    `allocation` shares the weights that stay among the layers: all at the same rate (`uniform`, the paper's), in
    proportion to their dimensions (`erk`), or by the magnitudes of the teacher's weights: relative to their layer
    (`lamp`), and to the multiply-adds that they cost (`lamp-macs`), or as they are (`magnitude`). With `learned`, of
    pwoa and advprune, a stage before the search learns the shares on the objective.
    Every parameter of two or more dimensions is prunable but those known to be no weights; `exclude` leaves others out,
    and `include` takes some in after all, by names or globs such as "blocks.*.mlp.*".
    """

    rate: float = number(4.0, "unpruned size over pruned size: 4 keeps a quarter of the prunable weights", low=1)
    pattern: str = setting("unstructured", "which weights may go together: unstructured, single weights")
    allocation: str = choice(
        "uniform",
        "uniform",
        "erk",
        "lamp",
        "lamp-macs",
        "magnitude",
        "learned",
        about="how the layers share the weights that stay: uniform is the paper's",
    )
    budget: str = choice("weights", "weights", "macs", about="what the rate counts: weights, or multiply-adds (macs)")
    include: tuple[str, ...] = setting((), "names or globs of parameters to prune that are left out otherwise")
    exclude: tuple[str, ...] = setting((), "names or globs of parameters to leave as they are")

    @property
    def rate_text(self) -> str:
        """What is asked for, as "rate 4", or "rate 4 of multiply-adds"."""
        return f"rate {self.rate:.4g}" + (" of multiply-adds" if self.budget == "macs" else "")


@dataclass(frozen=True)
class ObjectiveRecipe:
    """The weights of the loss: λ (distillation), λx and λy (HSIC), λ_ce (classification), and of hidden layers.

    `distillation` multiplies τ²·KL averaged over images and summed over classes. The published λ belongs to
    a mean over classes too; dividing it by their number gives the value here. `balance = "auto"` sets λ, λx
    and λy after the first epoch by the paper's rule (Appendix B), keeping the ratio of λx to λy.
    `hidden` is no term of the paper: it multiplies how far the hidden layers are from the teacher's, squared and
    relative to what the teacher has there, channel by channel or over the whole layer, and summed over the layers.
    """

    distillation: float = number(1.0, "λ, of the distillation from the teacher", low=0)
    temperature: float = number(30.0, "τ of the distillation", low=1e-3, high=1e6)
    hsic: str = choice("normalised", "normalised", "plain", about="HSIC normalised (nHSIC), or plain")
    hsic_x: float = number(2e-5, "λx, of what hidden layers know of the image", low=0)
    hsic_y: float = number(1e-4, "λy, of what hidden layers know of the label", low=0)
    classification: float = number(0.0, "λ_ce, of the cross-entropy; the paper has none", low=0)
    hidden: float = number(0.0, "of matching the teacher's hidden layers; the paper has none", low=0)
    hidden_scale: str = choice(
        "channel", "channel", "layer", about="what a difference in a hidden layer is relative to: its channel or layer"
    )
    balance: str = choice(
        "given", "given", "auto", about="auto: the paper's rule sets λ, λx and λy after the first epoch"
    )
    points: tuple[str, ...] = setting(
        (), "the modules whose outputs are the hidden layers; empty: those of the architecture, or all but the last"
    )


@dataclass(frozen=True)
class SearchRecipe:
    """The ADMM stage: ρ starts at `rho` and grows by `rho_growth` at each update, up to `rho_limit`.

    In the paper the constraint is the same throughout. With a `start_rate` it begins with that rate in every layer, and
    tightens at each update, quickly at first, until it is all there after four fifths of the stage. With a `full_rate`,
    epochs and learning rates are those for that rate and above: below it, there are fewer epochs, also of fine-tuning,
    and lower learning rates. `refit` is for batch normalisation: the teacher's statistics are of adversarial examples.
    """

    epochs: int = number(50, "of the search stage", low=1)
    learning_rate: float = number(0.01, "at its start; it falls by a cosine", low=0)
    rho: float = number(0.01, "ρ of the ADMM term at first", low=0)
    rho_growth: float = number(1.35, "what ρ is multiplied by at each update", low=1)
    rho_limit: float = number(1.0, "the largest ρ", low=0)
    interval: float = number(3.0, "epochs between two updates; 0.25 makes four an epoch", low=0.001)
    start_rate: float = number(0.0, "the rate from which the constraint tightens; 0: it is whole from the start", low=0)
    allocation_epochs: int = number(
        2, "of the stage before it that learns the layers' shares, where sparsity.allocation is learned", low=1
    )
    full_rate: float = number(0.0, "the rate below which there are fewer epochs; 0: as many at every rate", low=0)
    refit: bool = setting(
        False, "begin with normalisation statistics of natural images, scale and shift such that the answers stay"
    )

    def __post_init__(self) -> None:
        if 0 < self.start_rate < 1:
            raise InputError(f"search.start_rate = {self.start_rate:g}; allowed: 0, or at least 1")
        if 0 < self.full_rate <= max(self.start_rate, 1):
            least = f"{self.start_rate:g} (search.start_rate)" if self.start_rate > 1 else "1"
            raise InputError(f"search.full_rate = {self.full_rate:g}; allowed: above {least}, or 0, which is none")


@dataclass(frozen=True)
class FinetuneRecipe:
    """The masked stage."""

    epochs: int = number(100, "of the stage with fixed masks", low=1)
    learning_rate: float = number(0.005, "at its start; it falls by a cosine", low=0)


@dataclass(frozen=True)
class PretrainRecipe:
    """Robust training, from scratch or `start`. `steps` of `step` (0: a quarter of the radius) attack each batch.

    `beta` weighs the divergence of TRADES, MART and LBGAT. Over the first `warmup` epochs the learning rate rises from
    0; over the first `growing` epochs the radius grows to that of the threat. `lite` trains a Lite network: the same
    depth, and filters for that many times fewer parameters.
    """

    epochs: int = number(36, "of robust training", low=1)
    learning_rate: float = number(0.1, "at its start; it falls by a cosine", low=0)
    steps: int = number(10, "of the attack on each batch", low=1)
    step: float = number(0.0, "length of such a step; 0: a quarter of the radius", low=0)
    beta: float = number(6.0, "weight of the divergence in TRADES, MART and LBGAT", low=0)
    warmup: int = number(0, "epochs over which the learning rate rises from 0", low=0)
    growing: int = number(0, "epochs over which the radius grows to that of the threat", low=0)
    lite: float = number(1.0, "train a Lite network: as deep, with this many times fewer parameters", low=1)
    start: str = setting("", "a checkpoint or a run whose weights training starts from; empty: drawn anew")

    def __post_init__(self) -> None:
        if self.warmup and self.warmup >= self.epochs:
            raise InputError(f"pretrain.warmup = {self.warmup}; allowed: fewer than pretrain.epochs, {self.epochs}")


@dataclass(frozen=True)
class TrainingRecipe:
    """The engine: a cosine schedule a stage. `average` is the decay of averaged weights (0: off), less at first.

    `mix` is the mix ratio: the fraction of the examples of each batch that are replaced by adversarial ones; 0 is
    the paper's point. `group` is the number of images over which HSIC and batch normalisation take their
    statistics: a larger batch has several such groups, whether it is computed at once, in parts, or by several
    processes. The mode `exact` is float32 and the same bits each time; `fast` is bfloat16, compiled if training is long
    enough for that, and on a GPU replayed as CUDA graphs; `auto` is `fast` on a GPU that can, else `exact`. `threads`
    are those of a CPU (0: as many as there are free cores); their number changes the last bits. The state is saved
    every `checkpoint_seconds`.
    """

    optimizer: str = choice("sgd", "sgd", "adam", about="sgd (with momentum), or adam")
    batch: int = number(128, "images in a batch", low=2)
    group: int = number(128, "images over which HSIC and batch normalisation take their statistics", low=2)
    mix: float = number(0.0, "mix ratio: the part of each batch that is adversarial; 0 is example-free", low=0, high=1)
    momentum: float = number(0.9, "of SGD", low=0, high=0.9999)
    weight_decay: float = number(1e-4, "of the optimizer, in the gradient; with Adam 0 keeps more robustness", low=0)
    average: float = number(0.0, "decay of the averaged weights that are kept; 0: off", low=0, high=0.999999)
    seed: int = number(0, "of the splits, the batches, new networks and the attacks", low=0)
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, …")
    mode: str = choice(
        "auto",
        "auto",
        "exact",
        "fast",
        about="exact: float32, the same bits each time; fast: bfloat16, compiled if long; auto: fast on a GPU that can",
    )
    threads: int = number(0, "of a CPU; 0: as many as there are free cores", low=0)
    checkpoint_seconds: float = number(15.0, "how often what a run resumes from is saved, at most", low=0)
    tensorboard: bool = setting(False, "write learning curves for TensorBoard into the run folder")


@dataclass(frozen=True)
class Evaluation:
    """How robustness is measured, by `pwoa evaluate`, at the end of every run, before pruning, and in sweeps.

    attacks: names such as natural, fgsm, pgd20, cw, autoattack, or `paper` for the paper's six measures.
    images: how many, from the first (0: all). seed: of random starts (-1: that of training).
    precision: `auto` searches on a faster copy of the model and lets the model in float32 decide; `float32` searches in
    float32 too. radii: measure at these radii as well. checks: look for signs that the accuracy is too high.
    strong: on how many of the images, from the first, the attack `strong` is run after the others (0: on none); not if
    it, or AutoAttack, is among them. long: on how many AutoAttack and the others that take long are run (0: on all).
    """

    attacks: tuple[str, ...] = setting(
        ("natural", "fgsm", "pgd10", "pgd20", "cw"),
        "names such as natural, fgsm, pgd20, cw, autoattack; paper is the paper's six measures",
    )
    images: int = number(0, "how many test images, from the first; 0: all", low=0)
    batch: int = number(500, "images at a time", low=1)
    seed: int = number(-1, "of random starts; -1: that of training", low=-1)
    precision: str = choice(
        "auto", "auto", "float32", about="auto: attacks search on a faster copy; float32: on the model itself"
    )
    radii: tuple[float, ...] = setting((), "measure at these radii as well: a security curve")
    checks: bool = setting(True, "look for signs that the accuracy is too high")
    strong: int = number(256, "on how many images the attack strong ends a table; 0: on none", low=0)
    long: int = number(0, "on how many images the long attacks, as autoattack, are run; 0: on all", low=0)


@dataclass(frozen=True)
class Recipe:
    """Every setting of a run.

    own: the settings of the method's own section, if it has one, as (key, value). The method itself says which there
    are; its section is named like the method.
    """

    method: str = setting(
        "pwoa",
        "pwoa, advprune, hydra, harp, apd or magnitude; to train pgd-at, trades, mart, hbar, lbgat, fast-at or natural",
    )
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
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """The names of the settings that `with_settings` gave on top of a preset or a file; recipes do not differ by it."""

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
        names = {f"{section}.{key}" for section, part in tree.items() if isinstance(part, Mapping) for key in part}
        return dataclasses.replace(self.with_tree(tree, where), given=self.given | names)

    def with_tree(self, tree: Mapping[str, Any], where: str) -> Recipe:
        """Return a copy with the values of a nested mapping, as a TOML file has it, each checked."""
        tree = dict(tree)
        teacher = tree.get("teacher")
        if isinstance(teacher, Mapping) and "checkpoint" in teacher and ":" not in self.teacher.architecture:
            tree["teacher"] = {"architecture": AUTO, **teacher}  # the architecture before it was of another checkpoint
        method = tree.get("method", self.method)
        own = dict(self.own) if method == self.method else {}
        if isinstance(method, str) and isinstance(tree.get(method), Mapping):
            own |= tree.pop(method)
        if others := sorted(METHOD_SECTIONS.keys() & tree.keys()):
            raise InputError(
                f"{where}: {others[0]!r} is a section of the method {others[0]}, and the method here is {method}; "
                f"leave it out, or set method to {others[0]}"
            )
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
        held_out = self.data.validation or max(1, min((self.data.images or images) // 10, 5000))
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


CHOSEN = {"teacher.architecture": AUTO, "training.mode": AUTO, "training.threads": 0, "data.validation": 0}
"""The choices that a recipe may leave to the run, which writes down what it chose."""
INCIDENTAL = (
    "training.device",
    "training.checkpoint_seconds",
    "training.tensorboard",
    "data.folder",
    "teacher.checkpoint",
)
"""Where and how visibly a run is computed, and where data and teacher lie, which are told by their fingerprints."""


def explain(recipe: Recipe) -> dict[str, str]:
    """Return what each setting means in a few words, as `{"section.key": words}`."""
    words: dict[str, str] = {}
    for section in _sections(recipe):
        value = getattr(recipe, section.name)
        if dataclasses.is_dataclass(value):
            words |= {f"{section.name}.{f.name}": f.metadata.get("about", "") for f in dataclasses.fields(value)}
        else:
            words[section.name] = section.metadata.get("about", "")
    kind = METHOD_SECTIONS.get(recipe.method)
    more = dataclasses.fields(kind) if kind else ()
    return words | {f"{recipe.method}.{f.name}": f.metadata.get("about", "") for f in more}


def flat(recipe: Recipe) -> dict[str, Any]:
    """Return all settings as `{"section.key": value}`."""
    settings: dict[str, Any] = {}
    for section in _sections(recipe):
        value = getattr(recipe, section.name)
        if dataclasses.is_dataclass(value):
            settings |= {f"{section.name}.{f.name}": getattr(value, f.name) for f in dataclasses.fields(value)}
        elif section.name == "own":
            settings |= {f"{recipe.method}.{key}": value for key, value in recipe.own}
        else:
            settings[section.name] = value
    return settings


def _sections(recipe: Recipe) -> list[dataclasses.Field[Any]]:
    """Return the fields of a recipe that hold settings."""
    return [field for field in dataclasses.fields(recipe) if field.name != GIVEN]
