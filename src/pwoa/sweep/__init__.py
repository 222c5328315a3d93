"""Many runs from one file: a grid of settings, a run folder for each point of it, and one table of them all.

    recipe = "cifar10"                        # a preset or a file; the settings below change it
    [set]
    "finetune.epochs" = 10
    [grid]
    method = ["pwoa", "advprune", "magnitude", "trades"]
    teacher = [{ checkpoint = "trades.pt" }, { checkpoint = "wide.pt", architecture = "wrn-34-10" }]
    "sparsity.rate" = [4, 16]
    "training.mix" = [0.0, 0.2, 1.0]
    "training.seed" = [0, 1, 2]

Several grids in one file are several tables [[grid]]; a single value in one of them is for all runs of that grid.
A table among the values, as those of `teacher` here, sets several keys at once; `label` in it is what names and the
table call it. `recipe` may stand in the grid too, as ["cifar10", "cifar10-hydra"]; without one, a run has the preset
for its data.name. A method of robust training (here trades) prunes nothing: it trains the Lite network of each rate
from scratch. Settings that make no difference to a method make no further run of it. Finished runs are skipped, broken
ones resumed, so that the same command goes on where it was stopped.
"""

import dataclasses
import itertools
import json
import math
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pwoa import __version__
from pwoa.errors import InputError, counted
from pwoa.methods import find_method
from pwoa.progress import Progress
from pwoa.recipe import MAY_BE_CODE, Recipe, flat, recorded_recipe, records_recipe, to_toml
from pwoa.recipe.settings import is_factory, toml_value
from pwoa.runs.folder import Run
from pwoa.storage.folder import RESULT, Folder, differences_text, naming, replacing, save_rows
from pwoa.sweep.child import failure_file
from pwoa.sweep.cluster import run_on_ray
from pwoa.sweep.grid import MEASURED_BY, Point, expand
from pwoa.sweep.local import Task, run_here
from pwoa.sweep.rows import COLUMNS, accuracies, epochs_of, fewer_images, overall, row_of, spread, teacher_row
from pwoa.sweep.watch import Watch

__all__ = [
    "ROWS",
    "Places",
    "Point",
    "Swept",
    "Task",
    "epochs_of",
    "expand",
    "measure_teachers",
    "row_of",
    "spread",
    "sweep",
    "sweep_points",
    "teacher_folder",
    "teacher_row",
    "time_after",
]

ROWS, TEACHERS = "rows.json", "teachers"
"""What the file of rows, and the folder of the teachers' evaluations, are called in the folder of a sweep."""

Launch = Callable[[Sequence[Task], Callable[[Task, str | None], None]], None]
"""Carries out all tasks, and calls back with each that has ended, and why it failed if it did."""


@dataclass(frozen=True)
class Swept:
    """A row for each teacher and run that ended, a table of them by name and attack, and why others failed.

    left: the runs that there was no time for.
    fewer: on how many images attacks were run that were not run on all, where all rows agree.
    """

    rows: list[dict[str, Any]]
    table: dict[str, dict[str, str]]
    failed: dict[str, str]
    left: tuple[str, ...] = ()
    fewer: dict[str, int] = field(default_factory=dict)


def sweep(
    path: str | Path,
    folder: str | Path,
    *,
    settings: Iterable[str] = (),
    on: str = "local",
    jobs: int = 0,
    address: str | None = None,
    retries: int = 2,
    minutes: float | None = None,
    progress: Progress | None = None,
) -> Swept:
    """Run all points of a grid, each in a process of its own; the rows are also in FOLDER/rows.json.

    A row has the run's name, its label in the table, which is the same for all seeds, and the values of the grid under
    their keys, None where they make no difference to it. Teachers come first, as the runs measured them, once a seed.
    settings: as `section.key=value`, for all runs, on top of the file's table set.
    on: "local", the devices of this machine, `jobs` runs at a time (0: one for each GPU, or one); or "ray", the cluster
    at `address` (None: the one of this machine, or a new one on it), a task for each run. A run whose process or node
    is lost is started again up to `retries` times; one that fails is left out. A folder has one sweep at a time.
    minutes: after so many what is running is stopped, to be resumed, and nothing more is begun.
    """
    points = expand(path, settings)
    places = Places(on, jobs, address, retries, time_after(minutes))
    return sweep_points(points, folder, places, progress)


@dataclass(frozen=True)
class Places:
    """Where the runs of a sweep are carried out, as the arguments of `sweep` have it, and until when."""

    on: str = "local"
    jobs: int = 0
    address: str | None = None
    retries: int = 2
    until: float = math.inf


def time_after(minutes: float | None) -> float:
    """Return the time so many minutes from now, by the clock of `time.monotonic`; without any, there is no end."""
    if minutes is not None and not minutes > 0:
        raise InputError(f"--minutes {minutes:g}: give a number above 0, or leave it out")
    return math.inf if minutes is None else time.monotonic() + 60 * minutes


def sweep_points(
    points: Sequence[Point], folder: str | Path, places: Places, progress: Progress | None = None
) -> Swept:
    """Run points that are expanded already, as `sweep` does."""
    place, launch = SweepFolder(Path(folder).absolute()), _launch(places)
    place.check({})
    with place.held():
        place.make()
        return _sweep(points, place.path, launch, progress or Progress())


def measure_teachers(
    recipes: Sequence[Recipe], folder: str | Path, places: Places, progress: Progress
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Measure the teachers of recipes in the folder of a sweep, whose runs then need not.

    Return why some failed, and those that there was no time for.
    """
    place, launch = SweepFolder(Path(folder).absolute()), _launch(places)
    place.check({})
    failed: dict[str, str] = {}
    with place.held():
        place.make()
        wanted = {teacher_folder(recipe, place.path): recipe for recipe in recipes}
        left = {where: recipe for where, recipe in wanted.items() if not (where / RESULT).is_file()}
        names = {where: recipe.teacher.checkpoint for where, recipe in left.items()}
        progress.start("measuring teachers", len(left))

        def ended(task: Task, failure: str | None) -> None:
            if failure is not None:
                failed[names[task.folder]] = failure
                progress.say(f"the teacher {names[task.folder]} failed: {failure}")
            progress.advance()

        try:
            launch([_teacher_task(recipe, where) for where, recipe in left.items()], ended)
        finally:
            progress.close()
    late = tuple(name for where, name in names.items() if name not in failed and not (where / RESULT).is_file())
    if late:
        progress.say(f"the time is over; {counted(len(late), 'teacher')} left, with which the same command goes on")
    return failed, late


def _teacher_task(recipe: Recipe, where: Path) -> Task:
    with naming(where.parent):
        where.parent.mkdir(parents=True, exist_ok=True)
    file = where.with_name(f"{where.name}.toml")
    with replacing(file) as text:
        text.write(to_toml(recipe).encode())
    return Task(file, where, where.with_name(f"{where.name}.log"), (), where)


class SweepFolder(Folder):
    """The folder of a sweep: a folder for each run, its recipe and log beside it, and rows.json.

    A grid may grow: the same folder takes more runs, and each run checks that it is the one asked for.
    """

    kind = "sweep"

    def check(self, differences: Mapping[str, tuple[Any, Any]]) -> None:
        """Refuse the folder of a run or a model, and one that cannot be written."""
        if records_recipe(self.path) or (self.path / "model.json").is_file():
            raise InputError(f"{self.path} is the folder of a run; choose another --out for the sweep")
        self.check_writable()


def _sweep(points: Sequence[Point], folder: Path, launch: Launch, progress: Progress) -> Swept:
    left = [point for point in points if not _finished(folder / point.name, point)]
    before = len(points) - len(left)
    progress.say(
        f"{counted(len(points), 'run')}, {before} finished before; sweep folder, with a log for each run: {folder}"
    )
    hints = [hint for point in left for hint in (*find_method(point.recipe.method).hints(point.recipe), *point.notes)]
    for hint in dict.fromkeys(hints):
        progress.say(f"note: {hint}")
    failed: dict[str, str] = {}
    over = itertools.count(before + 1)

    def fail(name: str, failure: str) -> None:
        failed[name] = failure
        progress.say(f"{name} failed: {failure}")

    def ended(task: Task, failure: str | None) -> None:
        if failure is None and not (folder / task.name / RESULT).is_file():
            failure = f"it left no result in {folder / task.name}; all machines must see that folder"
        if failure is not None:
            fail(task.name, failure)
        else:
            progress.say(
                f"{task.name}: {_accuracies_text(folder / task.name)}{next(over)} of {counted(len(points), 'run')}"
            )
        watch.end(task.folder)

    try:
        with Watch(left, folder, progress) as watch:
            launch([_task(point, folder) for point in left], ended)
    except KeyboardInterrupt:
        progress.say("stopped; the same command goes on")
        raise
    unfinished = [point.name for point in points if not (folder / point.name / RESULT).is_file()]
    without = tuple(name for name in unfinished if name not in failed)
    if without:
        progress.say(f"the time is over; {counted(len(without), 'run')} left, with which the same command goes on")
    axes = dict.fromkeys(key for point in points for key in point.axes)
    columns, runs = dict.fromkeys(COLUMNS), []
    teachers: dict[tuple[Any, ...], dict[str, Any]] = {}
    for point in points:
        if point.name in (*failed, *without):
            continue
        try:
            row, teacher, attacks = _outcome(folder / point.name)
        except InputError as error:
            fail(point.name, str(error))
            continue
        columns |= dict.fromkeys(attacks)
        recipe, known = point.recipe, flat(point.recipe)
        method = find_method(recipe.method)
        used = {key: known.get(key) if method.uses_setting(key) else None for key in axes}
        runs.append({"name": point.name, "label": point.label, **row, **used, **point.axes})
        if teacher:
            used = {key: known.get(key) if key.partition(".")[0] in MEASURED_BY else None for key in axes}
            which = recipe.data, recipe.teacher, recipe.threat, recipe.evaluation, recipe.training.seed
            teachers.setdefault(which, {"name": point.teacher, "label": point.teacher, **teacher, **used})
    rows = [*teachers.values(), *runs]
    save_rows(folder / ROWS, rows)
    table = {
        label: overall(row for row in rows if row["label"] == label) | cells
        for label, cells in spread([(row["label"], row) for row in rows], list(columns)).items()
    }
    return Swept(rows, table, failed, without, fewer_images(rows))


def _launch(places: Places) -> Launch:
    retries, until = places.retries, places.until
    if places.on == "local":
        if places.address is not None:
            raise InputError(f"--address {places.address} goes with --on ray")
        return lambda tasks, ended: run_here(tasks, ended, places.jobs, retries, until)
    if places.on != "ray":
        raise InputError(f"--on {places.on}: a sweep runs on local or ray")
    if places.jobs:
        raise InputError(
            "--jobs counts the runs at a time on this machine; a Ray cluster has as many as it has room for"
        )
    return lambda tasks, ended: run_on_ray(tasks, ended, places.address, retries, until)


def _finished(folder: Path, point: Point) -> bool:
    """Tell whether the point's run has ended; an error if the folder holds another."""
    if records_recipe(folder):
        recipe, meant = (find_method(one.method).complete(one) for one in (recorded_recipe(folder), point.recipe))
        changed = recipe.differences(meant)
        checkpoints = recipe.teacher.checkpoint, point.recipe.teacher.checkpoint
        if checkpoints[0] != checkpoints[1]:
            changed["teacher.checkpoint"] = checkpoints
        if changed:
            raise InputError(f"{folder} holds another run ({differences_text(changed)}); choose another --out")
    run = Run(folder)
    if run.finished:
        run.tidy_finished()
    return run.finished


def _task(point: Point, folder: Path) -> Task:
    recipe = folder / f"{point.name}.toml"
    failure_file(folder / point.name).unlink(missing_ok=True)  # of another day
    with replacing(recipe) as file:
        file.write(to_toml(point.recipe).encode())
    known = flat(point.recipe)
    code = tuple(f"{key}={toml_value(known[key])}" for key in MAY_BE_CODE if is_factory(known[key]))
    teacher = teacher_folder(point.recipe, folder) if find_method(point.recipe.method).prunes else None
    return Task(recipe, folder / point.name, folder / f"{point.name}.log", code, teacher)


def teacher_folder(recipe: Recipe, folder: Path) -> Path:
    """Return where in a sweep the teacher of a recipe is measured: one folder for all runs that measure it alike."""
    settings = flat(dataclasses.replace(recipe, evaluation=recipe.seeded_evaluation()))
    measured = {key: str(value) for key, value in settings.items() if key.partition(".")[0] in MEASURED_BY}
    which = json.dumps([__version__, measured], sort_keys=True)
    return folder / TEACHERS / f"{zlib.crc32(which.encode()):08x}"


def _accuracies_text(folder: Path) -> str:
    """Return the accuracies of a run that has ended, for a line of progress."""
    try:
        row, _, attacks = _outcome(folder)
    except InputError:
        return ""  # which the end of the sweep tells
    return "".join(f"{attack} {row[attack]:.1f} %, " for attack in attacks)


def _outcome(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the row of a run that has ended, that of its teacher if there is one, and the attacks it measured."""
    recipe = recorded_recipe(folder)
    try:
        result = Run(folder).read_json(RESULT)
        teacher = teacher_row(recipe, result) if "teacher" in result else {}
        return row_of(recipe, result), teacher, list(accuracies(result))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
        raise InputError(f"{folder / RESULT} is damaged; remove {folder} to run it again") from None
