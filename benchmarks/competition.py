"""The competing methods from one teacher: every method at every rate, mix ratio and seed, by the same clock.

    python benchmarks/competition.py --checkpoint trades.pt --out results/competition.json --minutes 50 \
        --methods pwoa advprune hydra --rates 4 16 --mix 0 1 --seeds 0 1 2 --epochs 4 10 --autoattack 1000
    python benchmarks/competition.py --recipe mnist --out results/competition-mnist.json

A method has the settings of the preset RECIPE-METHOD if there is one (cifar10-hydra), else those of RECIPE; its mix
ratio is as given here. `--epochs A B` gives all methods the same number: A for the search and B for the weights, A + B
to a method that searches nothing; ADMM's ρ then takes the same way to its limit in the epochs there are. Fewer epochs
than published want higher learning rates: `--faster 3` has three times those of weights, not of scores. Rows are saved
after every run; those there already are skipped, and no run begins that would, by the longest so far, not end within
`--minutes`. The same command goes on; a run that fails is told and left out. Another teacher, or another recipe, makes
other rows: in them are the teacher's fingerprint, a hash of all settings, and which Square AutoAttack has.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pwoa.methods.hints import SCORING, SHARING
from torch import nn

import pwoa
from pwoa.data.images import Data
from pwoa.errors import InputError, counted, one_line
from pwoa.evaluation.robustness import parse_attacks
from pwoa.methods import METHODS, ONE_STAGE
from pwoa.models.architectures.registry import architecture_name
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.progress import ConsoleProgress, Progress
from pwoa.recipe import presets
from pwoa.recipe.sections import INCIDENTAL, Recipe, flat
from pwoa.recipe.settings import numbers, parse_setting
from pwoa.storage import load_rows, save_rows
from pwoa.sweep.rows import epochs_of, row_of, teacher_row

SAME_TEACHER = ("dataset", "architecture", "fingerprint", "evaluation", "square")
"""What two rows must have in common for the teacher to be measured once for both."""
OPTIONS = {
    "method": "--methods",
    "sparsity.rate": "--rates",
    "training.mix": "--mix",
    "training.seed": "--seeds",
}
"""The settings that have options of their own."""
SQUARE = "reference"
"""Which Square AutoAttack has; in rows from before version 0.2 it is that of the paper."""


@one_line()
def main(words: Sequence[str] | None = None, progress: Progress | None = None) -> None:
    compete(_options(words), progress or ConsoleProgress())


def compete(options: argparse.Namespace, progress: Progress) -> None:
    """Run what is left of the comparison, as far as the time goes."""
    began, longest, failed = time.monotonic(), 0.0, 0
    base = pwoa.load_recipe(options.recipe).with_settings(_named(options))
    _check(options, base)
    recipes, rows = list(dict.fromkeys(plan(options, base))), _rows(options.out)
    data = pwoa.load_data(base.data.name, folder=base.data.folder or None)
    given = numbers(base.teacher.mean, "teacher.mean"), numbers(base.teacher.std, "teacher.std")
    teacher = pwoa.load_model(base.teacher.architecture, base.teacher.checkpoint, data, *given)
    weights, images = short(fingerprint(teacher)), min(options.autoattack, len(data.test))
    if base.teacher.architecture == "auto":
        recipes = [recipe.with_settings({"teacher.architecture": architecture_name(teacher)}) for recipe in recipes]
    runs = [(recipe, identity(recipe, weights)) for recipe in recipes]
    waiting = [(recipe, run) for recipe, run in runs if not _known(rows, run, images)]
    if not waiting:
        progress.say(f"nothing is left to do; {options.out} has the rows of {counted(len(runs), 'run')}")
    for recipe, run in waiting:
        left = 60 * options.minutes - (time.monotonic() - began)
        if left < longest:
            progress.say(f"{left / 60:.1f} minutes are left, and the longest run took {longest / 60:.1f}; stopped")
            break
        start = time.monotonic()
        known = [row for row in rows if row["method"] == "teacher" and alike(row, run, SAME_TEACHER)]
        try:
            result = pwoa.prune(
                teacher,
                data,
                recipe=recipe,
                folder=options.runs / folder_name(run),
                teacher_scores=_scores(known[0], recipe) if known else None,
                progress=progress,
            )
        except InputError as error:
            progress.say(
                f"{recipe.method} at rate {recipe.sparsity.rate:g}, mix {recipe.training.mix:g} failed: {error}"
            )
            failed += 1
            continue
        finally:
            longest = max(longest, time.monotonic() - start)
        if not known:
            dense = teacher_row(recipe, result.summary)
            about = {"teacher": Path(recipe.teacher.checkpoint).name, "allocation": None}
            rows.append({**run, **dense, **about, **_autoattack(teacher, data, recipe, images)})
        elif known[0].get("n_autoattack", 0) < images:
            known[0].update(_autoattack(teacher, data, recipe, images))
        strongest = _autoattack(result.model, data, recipe, images)
        rows = [row for row in rows if not alike(row, run, run)]
        rows.append({**_row(recipe, result.summary), **strongest, **run})
        save_rows(options.out, rows)
        longest = max(longest, time.monotonic() - start)
        progress.say(json.dumps(rows[-1]))
    if failed:
        raise SystemExit(f"{counted(failed, 'run')} failed")


def _check(options: argparse.Namespace, base: Recipe) -> None:
    """What would be found out only after the first run, or never."""
    own = dict(OPTIONS)
    if options.epochs:
        own |= dict.fromkeys(("search.epochs", "finetune.epochs", "search.interval", "search.rho_growth"), "--epochs")
    for key, _ in map(parse_setting, options.settings):
        if key in own:
            raise InputError(f"--set {key} would not be heeded; {own[key]} says it")
    if options.autoattack and "autoattack" in base.evaluation.attacks:
        raise InputError("AutoAttack is asked for twice: by --autoattack and in evaluation.attacks")
    if not base.teacher.checkpoint:
        raise InputError("this recipe names no teacher; give one with --checkpoint FILE")
    if options.autoattack < 0:
        raise InputError(f"--autoattack {options.autoattack} is not a number of images")
    if not options.minutes >= 0:
        raise InputError(f"--minutes {options.minutes:g} is not a time")


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows so far, of a file that can be written."""
    rows = load_rows(path)
    if any("method" not in row for row in rows):
        raise InputError(f"{path} holds rows of something else; choose another --out")
    save_rows(path, rows)
    return rows


def plan(options: argparse.Namespace, base: Recipe) -> Iterator[Recipe]:
    """The recipe of each run, one seed after the other, so that early rows cover all methods."""
    for seed, rate, mix, method in itertools.product(options.seeds, options.rates, options.mix, options.methods):
        own = f"{options.recipe}-{method}"
        recipe = pwoa.load_recipe(own).with_settings(_named(options)) if own in presets() else base
        chosen = {"method": method, "sparsity.rate": rate, "training.mix": mix, "training.seed": seed}
        if options.epochs:
            search, finetune = options.epochs
            alone = method in ONE_STAGE
            chosen |= {"search.epochs": search, "finetune.epochs": search + finetune if alone else finetune}
            chosen |= same_way(recipe, search)
        chosen["finetune.learning_rate"] = options.faster * recipe.finetune.learning_rate
        if method not in SCORING:
            chosen["search.learning_rate"] = options.faster * recipe.search.learning_rate
        yield recipe.with_settings(chosen)


def same_way(recipe: Recipe, epochs: int) -> dict[str, Any]:
    """Settings with which ADMM's ρ goes from its start to its limit in so many epochs, updated as often as can be."""
    search = recipe.search
    if epochs == search.epochs or not search.rho:
        return {}
    interval = max(1, round(search.interval * epochs / search.epochs))
    updates = max(1, (epochs - 1) // interval)
    return {
        "search.interval": interval,
        "search.rho_growth": max(1.0, (search.rho_limit / search.rho) ** (1 / updates)),
    }


def identity(recipe: Recipe, weights: str) -> dict[str, Any]:
    """What tells a run of the comparison from the others: by the teacher's fingerprint and the digest of the recipe."""
    return {
        "dataset": recipe.data.name,
        "architecture": recipe.teacher.architecture,
        "fingerprint": weights,
        "settings": digest(recipe),
        "evaluation": digest(recipe, ("threat", "evaluation")),
        "square": SQUARE,
        "method": recipe.method,
        "rate": recipe.sparsity.rate,
        "mix": recipe.training.mix,
        "seed": recipe.training.seed,
        "epochs": epochs_of(recipe),
    }


def alike(row: Mapping[str, Any], run: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether a row has these of a run's values; one from before a column was there has not."""
    return all(name in row and row[name] == run[name] for name in names)


def digest(recipe: Recipe, sections: Sequence[str] = ()) -> str:
    """A short name for the settings of a recipe, or of some sections, but for the seed and where it is run."""
    settings = {key: value for key, value in flat(recipe).items() if key not in (*INCIDENTAL, "training.seed")}
    chosen = {key: value for key, value in settings.items() if not sections or key.partition(".")[0] in sections}
    return short(hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest())


def folder_name(run: Mapping[str, Any]) -> str:
    """The folder of a run, another for each identity."""
    whole = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    return "-".join([*(str(run[name]) for name in ("method", "rate", "mix", "seed", "epochs")), short(whole)])


def short(sha256: str) -> str:
    return sha256[:12]


def _known(rows: Iterable[Mapping[str, Any]], run: Mapping[str, Any], images: int) -> bool:
    """Whether a run has its row, with AutoAttack on so many images or more."""
    return any(alike(row, run, run) and row.get("n_autoattack", 0) >= images for row in rows)


def _row(recipe: Recipe, result: Mapping[str, Any]) -> dict[str, Any]:
    allocation = None if recipe.method in SHARING else recipe.sparsity.allocation
    return {**row_of(recipe, result), "teacher": Path(recipe.teacher.checkpoint).name, "allocation": allocation}


def _scores(row: Mapping[str, Any], recipe: Recipe) -> dict[str, float]:
    """What a row says of the attacks that a run would measure its teacher with."""
    return {name: row[name] for name in parse_attacks(recipe.evaluation.attacks) if row.get(name) is not None}


def _autoattack(model: nn.Module, data: Data, recipe: Recipe, images: int) -> dict[str, Any]:
    """The accuracy under AutoAttack on the first test images, where it is asked for."""
    if not images:
        return {}
    chosen = {"threat": recipe.threat, "device": recipe.training.device, "images": images, "checks": False}
    scores = pwoa.evaluate(model, data, attacks=("natural", "autoattack"), **chosen)
    return {"autoattack": scores["autoattack"], "n_autoattack": scores.images}


def _named(options: argparse.Namespace) -> list[str]:
    """The settings that the command line gives to all runs."""
    given = {
        "teacher.checkpoint": options.checkpoint,
        "teacher.architecture": options.arch,
        "data.folder": options.folder,
    }
    return [*options.settings, *(f"{name}={json.dumps(value)}" for name, value in given.items() if value)]


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="cifar10", help="the preset that all start from: cifar10 or mnist")
    parser.add_argument("--checkpoint", help="the robust teacher (default: the recipe's)")
    parser.add_argument("--arch", help="its architecture (default: the recipe's)")
    parser.add_argument("--folder", help="the data set's official files")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rates", nargs="+", type=float, default=[4.0, 16.0])
    parser.add_argument("--mix", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", nargs=2, type=int, metavar=("A", "B"), help="the same for all methods")
    parser.add_argument("--faster", type=float, default=1.0, metavar="F", help="times the learning rates of weights")
    parser.add_argument("--autoattack", type=int, default=0, metavar="N", help="AutoAttack too, on N test images")
    parser.add_argument("--minutes", type=float, default=60.0, help="the time for all")
    parser.add_argument("--out", type=Path, required=True, help="the rows, as JSON")
    parser.add_argument("--runs", type=Path, default=Path("runs/competition"))
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="SECTION.KEY=VALUE")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
