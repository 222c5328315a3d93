"""What pruning and robust training share: settings, data and device before a run; the folder and modes during it."""

import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from pwoa.attacks.registry import TRANSFER, parse_attacks
from pwoa.data.images import Data
from pwoa.data.load import load_data
from pwoa.devices import choose_device, choose_threads, device_name, using_threads
from pwoa.errors import Diverged, InputError, ThreatWarning, brief, counted
from pwoa.evaluation.measure import measure, parts
from pwoa.evaluation.scores import Scores, weak_steps
from pwoa.evaluation.subject import Subject, curve_threats
from pwoa.methods.method import Method
from pwoa.models.border import check_complete
from pwoa.models.checkpoints.folder import WEIGHTS
from pwoa.models.load import load_model
from pwoa.progress import Part, Progress
from pwoa.recipe import AUTO, Recipe, flat, recorded_recipe
from pwoa.runs.folder import Result, Run
from pwoa.runs.tensorboard import Curves, check_installed
from pwoa.storage.identity import identity as hash_file
from pwoa.threat import Threat
from pwoa.training import Engine
from pwoa.training.engine import Journal
from pwoa.training.fast import choose_mode
from pwoa.training.processes import Processes, own_device

LOADING = "loading data and model"


@dataclass(frozen=True)
class Loading:
    """A recipe and its data, read while the device starts: a GPU takes a second or two for it."""

    recipe: Recipe
    data: Data
    device: torch.device
    started: Future[Any]

    def on_device(self) -> "Loaded":
        """Put the data on the device, hashed while it may still be starting."""
        data = replace(self.data)  # a hash is kept by what it was asked of, and images that were given may change
        data.fingerprint()
        self.started.result()
        return Loaded(self.recipe, data.to(self.device), self.device)


@dataclass(frozen=True)
class Loaded:
    """A recipe with every choice made, its data on the device, and the device."""

    recipe: Recipe
    data: Data
    device: torch.device

    @property
    def sample(self) -> torch.Tensor:
        """Two training images, to try a model on."""
        return self.data.train.batch(torch.arange(2, device=self.device))[0]

    @property
    def channels(self) -> int:
        """The channels of an image."""
        return int(self.data.train.pixels.shape[1])


def load_given(data: Any, changes: dict[str, Any], progress: Progress) -> Data | None:
    """Load the data that was given in place of the recipe's, if any, and note it in the changes to the recipe."""
    if data is None:
        return None
    if isinstance(data, (str, Path)):
        folder = changes.get("data.folder") or None
        changes |= {"data.name": str(data), "data.folder": str(folder or "")}
        return load_data(data, data_folder=folder, progress=progress.reach)
    loaded = load_data(data)
    changes["data.name"] = loaded.name
    return loaded


def note_defaults(
    recipe: Recipe, changes: Mapping[str, Any], trained: Threat | None, epochs: Sequence[int], progress: Progress
) -> list[str]:
    """Return a line that names the epochs and the threat of data without a preset, unless somebody chose them.

    Where it would not be seen and the threat is in it, it is a Python warning at the line that called the caller.
    trained: the threat that the teacher's run says, if it says one.
    """
    sections = {key.partition(".")[0] for key in changes}
    threat = [] if trained or "threat.radius" in changes else [f"the threat {recipe.threat}"]
    chosen = sections & {"search", "finetune", "pretrain"}
    unchosen = [*([] if chosen else [f"{' + '.join(map(str, epochs))} epochs"]), *threat]
    name, how = recipe.data.name, "--recipe or --set (in Python: recipe=, settings=)"
    line = f"{name} has no preset, so defaults hold: {', '.join(unchosen)}; choose by {how}"
    if threat and progress.silent:
        warnings.warn(line, ThreatWarning, stacklevel=3)
    return [line] if unchosen else []


def hints_of(method: type[Method], recipe: Recipe, besides: Container[str] = ()) -> list[str]:
    """Return the method's hints, and a line that names the settings that somebody gave and the method does not use.

    besides: settings that the run uses whatever the method. Those of data and teacher are given by the code as well.
    """
    hints = method.hints(recipe)
    unused = [
        key
        for key in flat(recipe)
        if key in recipe.given
        and not method.uses_setting(key)
        and not key.startswith(("data.", "teacher."))
        and key not in besides
        and not any(key in hint for hint in hints)
    ]
    return [*hints, f"{method.name} does not use {', '.join(unused)}"] if unused else hints


def load_rest(recipe: Recipe, data: Data | None, progress: Progress) -> Loading:
    """Check the attacks of a recipe, start the device, and load the data if they were not given."""
    if TRANSFER in parse_attacks(recipe.evaluation.attacks):
        raise InputError(
            f"a run has no surrogate for the attack {TRANSFER}: leave it out of evaluation.attacks, and give the "
            "surrogate to pwoa evaluate afterwards"
        )
    if recipe.training.tensorboard:
        check_installed()
    curve_threats(recipe.evaluation, recipe.threat)  # radii that cannot be are told before anything is trained
    device = choose_device(own_device(recipe.training.device))
    pool = ThreadPoolExecutor(1)
    started = pool.submit(lambda: torch.empty(1, device=device))
    pool.shutdown(wait=False)
    if data is None:
        data = load_data(recipe.data.name, data_folder=recipe.data.folder or None, progress=progress.reach)
    return Loading(recipe.for_images(len(data.train)), data, device, started)


def hash_files(method: type[Method], recipe: Recipe) -> dict[str, str]:
    """Hash the files that a method reads besides teacher and data: they are a part of what the run is."""
    named = {setting: Path(file) for setting, file in method.files(recipe).items()}
    files = {setting: file / WEIGHTS if file.is_dir() else file for setting, file in named.items()}
    return {setting: hash_file(file) for setting, file in files.items() if file.is_file()}


def open_run(
    folder: str | Path | None,
    loaded: Loaded,
    identity: Mapping[str, str],
    processes: Processes,
    holding: ExitStack,
    progress: Progress,
) -> tuple[Run, Loaded]:
    """Open the run, and decide what the recipe leaves open, the mode and the threads: as it was started, or what fits.

    No other process can work on it until `holding` ends; one that is finished needs no hold.
    """

    def by_first() -> tuple[Run, Recipe]:
        run = Run.choose(folder, loaded.recipe, identity)
        if not run.finished:
            holding.enter_context(run.held())
        training = loaded.recipe.training
        before = recorded_recipe(run.path).training if run.started else training
        mode = before.mode if training.mode == AUTO else training.mode
        threads = training.threads or before.threads
        if not threads and loaded.device.type == "cpu" and not run.finished:
            threads = choose_threads()
        chosen = {"training.mode": choose_mode(mode, loaded.device), "training.threads": threads}
        return run, loaded.recipe.with_settings(chosen)

    run, recipe = processes.by_first(by_first)
    usual, threads = torch.get_num_threads(), recipe.training.threads
    if threads and loaded.device.type == "cpu":
        holding.enter_context(using_threads(threads))
        if threads != usual and not loaded.recipe.training.threads:
            why = "as the run was started" if run.started else "because other work keeps the cores busy"
            progress.say(f"{counted(threads, 'thread')} instead of {usual}, {why} (training.threads)")
    return run, replace(loaded, recipe=recipe)


def journal_of(run: Run, recipe: Recipe, processes: Processes) -> Journal:
    """Return where the engine writes: the run, with curves for TensorBoard if the recipe wants them."""
    return Curves(run) if recipe.training.tensorboard and processes.first else run


def finished_result(run: Run, network: nn.Module, processes: Processes, progress: Progress) -> Result | None:
    """Return the result of a run that is finished, with its weights in the network; None if it is not."""
    if not processes.by_first(lambda: run.finished):
        return None
    if processes.first:
        run.tidy_finished()
    progress.say(f"{run.path} is finished, nothing is left to do")
    return Result(load_model(run.path, architecture=network), run.path, run.result(), run.metrics())


def _what_it_is(given: Any) -> str:
    """Name what stands in the place of a network, and what to give instead where that is clear."""
    if isinstance(given, Mapping):
        return "a dictionary of weights; give its file to pwoa.load_model(FILE, architecture=NETWORK)"
    if isinstance(given, type):
        return f"a class; give an instance, as {given.__name__}()"
    return brief(given)


def check_network(network: Any, role: str) -> None:
    """Refuse what is given in the place of a network and is none, or none yet."""
    if not isinstance(network, (nn.Module, NoneType)):
        raise InputError(f"the {role} must be an nn.Module, not {_what_it_is(network)}")
    if network is not None:
        check_complete(network)


def lay_out(model: nn.Module, form: torch.memory_format) -> None:
    """Put the weights of 2-D convolutions into a memory format; channels last is faster, most of all on a CPU."""
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=form)


@contextmanager
def resumable(run: Run, progress: Progress) -> Iterator[None]:
    """Answer Ctrl-C inside with how to go on; a run that has diverged leaves its folder free."""
    try:
        yield
    except Diverged:
        run.discard()
        raise
    except KeyboardInterrupt:
        progress.close()
        again = f"the same command, with the folder {run.path}, resumes" if run.started else "nothing was written"
        progress.say(f"stopped; {again}")
        raise
    finally:
        progress.close()


def measure_model(
    model: nn.Module, fingerprint: str, loaded: Loaded, folder: Path, role: str, progress: Progress
) -> Scores:
    """Measure a model on the test images as the recipe says, and keep the evaluation in a folder of the run."""
    recipe = loaded.recipe
    subject, task = _subject(model, loaded, {"model": fingerprint, "data": loaded.data.fingerprint()}), _task(role)
    attacks = subject.possible(recipe.evaluation.attacks, given=True)
    evaluation = replace(recipe.seeded_evaluation(), attacks=attacks)
    return measure(subject, evaluation, recipe.threat, folder=folder, name=role, task=task, progress=progress)


def measuring_parts(model: nn.Module, loaded: Loaded, role: str) -> list[Part]:
    """Return what `measure_model` will do, as parts of a plan."""
    recipe, subject = loaded.recipe, _subject(model, loaded, {})
    attacks = subject.possible(recipe.evaluation.attacks, given=True)
    return parts(subject, replace(recipe.evaluation, attacks=attacks), recipe.threat, _task(role))


def _subject(model: nn.Module, loaded: Loaded, hashes: Mapping[str, str]) -> Subject:
    images = loaded.data.test.first(loaded.recipe.evaluation.images or len(loaded.data.test))
    return Subject(model, images, loaded.data, loaded.device, hashes=hashes)


def _task(role: str) -> str:
    return f"evaluating the {role}"


def where_text(loaded: Loaded, processes: Processes) -> str:
    """Name the device, and how many of them."""
    return (f"{processes.count} × " if processes.count > 1 else "") + device_name(loaded.device)


def training_summary(loaded: Loaded, engine: Engine, processes: Processes) -> dict[str, Any]:
    """Return what result.json says of any training."""
    return {
        "method": loaded.recipe.method,
        "seed": loaded.recipe.training.seed,
        "device": device_name(loaded.device),
        "processes": processes.count,
        "selected_epoch": engine.selected,
        "trained_epochs": len(engine.metrics),
        "training_seconds": engine.seconds,
        "validation_seconds": engine.validation_seconds,
    }


def evaluation_summary(scores: Scores, teacher: Scores | None = None) -> dict[str, Any]:
    """Return what result.json says of any evaluation; all of it is in the evaluation's own folder.

    fewer: how many images the attacks were run on that were not run on all. warnings: also those of the teacher.
    """
    warnings = [{**asdict(finding), "model": "teacher"} for finding in (teacher.findings if teacher else ())]
    warnings += [asdict(finding) for finding in scores.findings]
    return {"images": scores.images, "fewer": scores.fewer, "warnings": warnings}


def findings_in(summary: Mapping[str, Any], threat: Threat | None = None) -> list[tuple[str, str]]:
    """Return the findings of the defence checks that result.json lists, as (check, message).

    threat: with it also which attacks cannot reach the edge of its ball.
    """
    listed = summary.get("warnings", [])
    found = [(", ".join([entry["check"], *filter(None, [entry.get("model")])]), entry["message"]) for entry in listed]
    limit = weak_steps(summary.get("pruned") or summary.get("accuracy") or {}, threat) if threat else ""
    return [*found, *([("steps", limit)] if limit else [])]
