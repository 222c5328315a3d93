"""What pruning and robust training have in common: a run folder, processes, a mode, and attacks at the end."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from pwoa.data import Data, Images, load_data
from pwoa.devices import choose_device
from pwoa.errors import InputError
from pwoa.evaluation import Scores, parse_attacks, robustness, work
from pwoa.evaluation.robustness import TRANSFER
from pwoa.methods import METHODS
from pwoa.progress import Progress
from pwoa.recipe import AUTO, Recipe, recorded_recipe
from pwoa.run import Run
from pwoa.training import Material
from pwoa.training.fast import choose_mode
from pwoa.training.processes import Processes, own_device, started


@dataclass(frozen=True)
class Result:
    """A pruned or trained model, its run folder, what was measured (result.json) and its epochs (metrics.jsonl)."""

    model: nn.Module
    folder: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


@dataclass
class Work(ABC):
    """Everything a run starts from, checked and on the device, and what is to be done with it."""

    recipe: Recipe
    data: Data
    material: Material
    device: torch.device
    identity: dict[str, str]

    @abstractmethod
    def announcement(self, run: Run, processes: Processes) -> str:
        """What is going to be done, for a person."""

    @abstractmethod
    def done_before(self, run: Run) -> nn.Module:
        """The model of a run that is finished."""

    @abstractmethod
    def train(self, run: Run, progress: Progress, processes: Processes) -> tuple[nn.Module, dict[str, Any]]:
        """The trained model, saved in the run folder, and what is to be said of its training."""

    @abstractmethod
    def evaluate(self, model: nn.Module, run: Run, progress: Progress) -> dict[str, Any]:
        """What is to be said of the trained model."""

    def carry_out(self, folder: str | Path | None, progress: Progress) -> Result:
        """Do what is left of the work, in this folder or one under runs/, alone in it."""
        with ExitStack() as holding:
            with started(self.device) as processes:
                progress = progress if processes.first else Progress()
                run = processes.by_first(lambda: _held(folder, self.recipe, self.identity, holding))
                mode = processes.by_first(lambda: _mode(run, self.recipe, self.device))
                self.recipe = self.recipe.with_settings({"training.mode": mode})
                if processes.by_first(lambda: run.finished):
                    progress.say(f"{run.path} is finished, nothing is left to do")
                    return Result(self.done_before(run), run.path, run.result(), run.metrics())
                progress.say(self.announcement(run, processes))
                with _resumable(run, progress):
                    model, training = self.train(run, progress, processes)
            if not processes.first:
                return Result(model, run.path, {}, [])
            with _resumable(run, progress):
                summary = training | self.evaluate(model, run, progress)
                run.finish(summary)
        return Result(model, run.path, summary, run.metrics())

    def test_images(self) -> Images:
        """Those that the recipe's evaluation takes."""
        return self.data.test.first(self.recipe.evaluation.images or len(self.data.test))

    def measured(self, model: nn.Module, name: str, progress: Progress) -> Scores:
        """The model under the attacks of the recipe."""
        images, attacks = self.test_images(), parse_attacks(self.recipe.evaluation.attacks)
        progress.start(f"evaluating the {name}", work(len(images), attacks))
        return robustness(
            model,
            images,
            self.recipe.threat,
            attacks,
            classes=self.data.classes,
            batch=self.recipe.evaluation.batch,
            seed=self.recipe.training.seed,
            advance=progress.advance,
        )


def prepared(
    data: Any,
    choose: Callable[[Data | None], Recipe],
    settings: Mapping[str, Any],
    known: Callable[[str], object],
    progress: Progress,
) -> tuple[Recipe, Data, torch.device]:
    """The recipe with these changes, the data, and the device they are on.

    choose: the recipe, for the data if they are given. known: refuses a method that there is not.
    """
    loaded, changes = None, dict(settings)
    if isinstance(data, (str, Path)):
        folder = changes.get("data.folder") or None
        loaded = load_data(data, folder=folder, progress=progress.reach)
        changes |= {"data.name": str(data), "data.folder": str(folder or "")}
    elif data is not None:
        loaded = load_data(data)
        changes["data.name"] = loaded.name
    recipe = choose(loaded).with_settings(changes)
    known(recipe.method)
    if TRANSFER in parse_attacks(recipe.evaluation.attacks):
        raise InputError(
            f"a run has no surrogate for the attack {TRANSFER}: leave it out of evaluation.attacks, and give the "
            "surrogate to pwoa evaluate afterwards"
        )
    if loaded is None:
        loaded = load_data(recipe.data.name, folder=recipe.data.folder or None, progress=progress.reach)
    progress.close()
    device = choose_device(own_device(recipe.training.device))
    return recipe.for_images(len(loaded.train)), loaded.to(device), device


def merged(settings: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, and those that were given by a name of their own, if they were."""
    if not isinstance(settings, (Mapping, NoneType)):
        raise InputError(f"settings must be as {{'training.seed': 1}}, not {settings!r}")
    return dict(settings or {}) | {key: value for key, value in given.items() if value is not None}


def check_network(network: Any, role: str) -> None:
    """Refuse what is given in the place of a network and is none."""
    if not isinstance(network, (nn.Module, NoneType)):
        raise InputError(f"the {role} must be an nn.Module, not {network!r}")


def lay_out(model: nn.Module, form: torch.memory_format) -> None:
    """Put the weights of 2-D convolutions into a memory format; channels last is faster, most of all on a CPU."""
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=form)


@contextmanager
def _resumable(run: Run, progress: Progress) -> Iterator[None]:
    """Ctrl-C inside is answered with how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        progress.close()
        again = f"the same command, with the folder {run.path}, resumes" if run.started else "nothing was written"
        progress.say(f"stopped; {again}")
        raise
    finally:
        progress.close()


def _held(folder: str | Path | None, recipe: Recipe, identity: Mapping[str, str], holding: ExitStack) -> Run:
    """The run, which no other process can work on until `holding` ends; one that is finished needs no hold."""
    run = _choose(folder, recipe, identity)
    if not run.finished:
        holding.enter_context(run.held())
    return run


def _choose(folder: str | Path | None, recipe: Recipe, identity: Mapping[str, str]) -> Run:
    """The given folder; else the first under runs/ with a telling name that is free or holds this very run."""
    if folder is not None:
        run = Run(folder)
    else:
        name, at, width = recipe.teacher.architecture.rpartition(":")[2].lower().partition("@")
        architecture = name.rpartition(".")[2] + at + width
        rate = f"-x{recipe.sparsity.rate:g}" if recipe.method in METHODS else ""
        name = f"{Path(recipe.data.name).name}-{architecture}-{recipe.method}{rate}-seed{recipe.training.seed}"
        for number in itertools.count(1):
            run = Run(Path("runs") / (name if number == 1 else f"{name}-{number}"))
            if not run.path.exists() or (run.started and not run.differences(recipe, identity)):
                break
    run.check(recipe, identity)
    return run


def _mode(run: Run, recipe: Recipe, device: torch.device) -> str:
    """What `training.mode = "auto"` is: what the run was started with, else what fits the device."""
    mode = recipe.training.mode
    if mode == AUTO and run.started:
        mode = recorded_recipe(run.path).training.mode
    return choose_mode(mode, device)
