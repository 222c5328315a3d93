"""The tables and figures of the paper, reproduced: `reproduce` runs what is missing, and shows it beside the paper's.

The runs are those of a sweep, in OUT/runs. OUT/paper.json has a flat row for each cell that is measured,
OUT/paper-hsic.json the points of the HSIC plane; OUT/tables and OUT/figures have what is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pwoa.devices import choose_device, device_name
from pwoa.errors import InputError, counted
from pwoa.paper.cells import Cell
from pwoa.paper.cost import Rates, time_text
from pwoa.paper.earlier import of_presets_now, of_these_teachers, other_rows
from pwoa.paper.figures import draw
from pwoa.paper.plan import SCALES, Plan, choose, load_plan
from pwoa.paper.rows import (
    PLANE,
    ROWS,
    Row,
    is_finished,
    load_rows,
    measured_teacher,
    merged,
    plane_rows,
    row_of,
    teacher_of,
    teacher_row,
)
from pwoa.paper.tables import Table, table_of
from pwoa.paper.teachers import Teachers, training_points
from pwoa.progress import Progress, choose_progress
from pwoa.storage.folder import RESULT, naming, replacing, save_rows
from pwoa.sweep import Places, measure_teachers, sweep_points, teacher_folder, time_after

_RUNS, _TRAINED, _TABLES, _FIGURES = "runs", "teachers", "tables", "figures"


@dataclass(frozen=True)
class State:
    """How far a table or figure has come: its cells, how many are measured, and what the rest will take.

    missing: the teachers that are not there. seconds: of this table alone; runs that others share count in each.
    """

    plan: Plan
    done: int
    seconds: float
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Reproduced:
    """What `reproduce` found: its rows, the tables by name, the files it wrote, and why runs failed or were left."""

    rows: list[Row]
    tables: dict[str, Table]
    files: list[Path]
    failed: dict[str, str]
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """What `reproduce` and the list of it share: the plans at a scale, the folders, and the rows of earlier results."""

    plans: list[Plan]
    scale: str
    out: Path
    teachers: Teachers
    earlier: list[Row]
    plane: list[Row]

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        scale: str,
        out: str | Path,
        results: str | Path,
        teachers: str | Path | None,
        settings: Sequence[str],
    ) -> "Work":
        if scale not in SCALES:
            raise InputError(f"--scale {scale}: one of {', '.join(SCALES)}")
        there, known = Path(out), Path(results)
        of_teachers = load_rows(known / "teachers.json")
        places = Teachers(Path(teachers) if teachers else None, there / _TRAINED, of_teachers, settings)
        plans = [load_plan(name, scale, places.where, settings) for name in choose(names)]
        return cls(plans, scale, there, places, load_rows(known / ROWS), load_rows(known / PLANE))

    @property
    def runs(self) -> Path:
        """Where the runs are, absolute, as processes elsewhere must find it."""
        return (self.out / _RUNS).absolute()

    def done(self, plan: Plan, cell: Cell) -> bool:
        """Tell whether a cell is measured, in the folder of the runs or in earlier results."""
        wanted = (self.earlier, self.plane) if plan.show == "plane" else (self.earlier,)
        if all(any(row["run"] == cell.run for row in self.of_these_teachers(rows)) for rows in wanted):
            return True
        return self.measured(cell) if cell.measures else self.finished(cell)

    def of_these_teachers(self, rows: list[Row]) -> list[Row]:
        """Leave out rows of other teachers of the same name."""
        return of_these_teachers(rows, self.teachers.fingerprint)

    def measured(self, cell: Cell) -> bool:
        """Tell whether the teacher of a cell is measured in the folder of the runs; another of its name is an error."""
        evaluation = teacher_folder(cell.recipe, self.runs)
        if not (evaluation / RESULT).is_file():
            return False
        own = self.teachers.fingerprint(str(cell.key.teacher))
        if own not in (None, measured_teacher(evaluation)):
            raise InputError(f"{evaluation} has measured another {cell.key.teacher}; choose another --out")
        return True

    def finished(self, cell: Cell) -> bool:
        """Tell whether the run of a cell has ended in the folder of the runs; that of another teacher is an error."""
        if not is_finished(self.runs, cell):
            return False
        own = self.teachers.fingerprint(cell.key.teacher) if cell.key.teacher else None
        if own is not None and own != teacher_of(self.runs / cell.run):
            raise InputError(f"{self.runs / cell.run} pruned another {cell.key.teacher}; choose another --out")
        return True

    def left(self) -> list[tuple[Plan, Cell]]:
        """Return the cells that are not measured, those of one run once."""
        cells = {cell.run: (plan, cell) for plan in self.plans for cell in plan.cells if not self.done(plan, cell)}
        return list(cells.values())

    def rows(self) -> list[Row]:
        """Return the rows of what is measured, in the folder of the runs."""
        rows: list[Row] = []
        for plan in self.plans:
            for cell in plan.cells:
                if cell.key.teacher and self.measured(cell):
                    rows.append(teacher_row(plan.name, cell, self.scale, teacher_folder(cell.recipe, self.runs)))
                if not cell.measures and self.finished(cell):
                    rows.append(row_of(plan.name, cell, self.scale, self.runs))
        return merged([], rows)

    def points(self) -> list[Row]:
        """Return the points of the HSIC plane of the runs that have ended."""
        planes = [(plan, cell) for plan in self.plans if plan.show == "plane" for cell in plan.cells]
        ended = [(plan, cell) for plan, cell in planes if self.finished(cell)]
        return [row for plan, cell in ended for row in plane_rows(plan.name, cell, self.runs)]


def reproduce(
    names: str | Sequence[str] = (),
    out: str | Path = "runs/paper",
    *,
    scale: str = "paper",
    results: str | Path = "results",
    teachers: str | Path | None = None,
    train_teachers: bool = False,
    settings: Sequence[str] = (),
    collect: bool = False,
    draw_only: bool = False,
    on: str = "local",
    jobs: int = 0,
    address: str | None = None,
    retries: int = 2,
    minutes: float | None = None,
    progress: Progress | bool | None = None,
) -> Reproduced:
    """Run what is missing of the paper's tables and figures, and show it beside the paper's own numbers.

    Example: `reproduce("ablation-mnist", "runs/paper", scale="quick").tables["ablation-mnist"].markdown()`.

    names: of tables and figures (`pwoa reproduce` lists them); none for all.
    out: the folder of the runs, rows, tables and figures; the same folder again goes on.
    scale: paper, the paper's epochs; short; or quick, a rehearsal on the embedded data.
    results: a folder with the rows of earlier runs (paper.json), which count as done and are shown.
    teachers: a folder with the teachers' checkpoints, by name.
    train_teachers: train the teachers that are not there.
    settings: as `section.key=value`, for all runs.
    collect: add the new rows to those of `results`.
    draw_only: run nothing, and show what the rows of `results` and of `out` have.
    on, jobs, address, retries, minutes: as those of a sweep.
    progress: by default bars on a terminal and nothing elsewhere; False shows nothing, True lines everywhere.
    """
    progress = choose_progress(progress)
    chosen = [names] if isinstance(names, str) else list(names)
    work = Work.of(chosen, scale, out, results, teachers, settings)
    failed: dict[str, str] = {}
    left: tuple[str, ...] = ()
    if not draw_only:
        places = Places(on, jobs, address, retries, time_after(minutes))
        failed, left = _run(work, places, train_teachers, settings, progress)
    rows, plane = (_kept(work.out / name, new) for name, new in ((ROWS, work.rows()), (PLANE, work.points())))
    everything, points = merged(work.earlier, rows), merged(work.plane, plane)
    if collect:
        save_rows(Path(results) / ROWS, everything)
        save_rows(Path(results) / PLANE, points)
    others = other_rows(Path(results), work.plans) if scale != "quick" else []
    shown = work.of_these_teachers([*of_presets_now(everything), *others])
    if out_of_place := len(everything) + len(others) - len(shown):
        progress.say(f"note: {counted(out_of_place, 'row')} of other teachers of the same name left out")
    scales = {row["scale"] for row in everything}
    if draw_only and scales and scale not in scales:
        progress.say(f"note: no row is of the scale {scale}; there are rows of --scale {' and '.join(sorted(scales))}")
    tables = {plan.name: table_of(plan, shown) for plan in work.plans}
    files = _show(work, tables, shown, work.of_these_teachers(points), progress)
    return Reproduced([*everything, *others], tables, files, failed, left)


def _kept(file: Path, new: list[Row]) -> list[Row]:
    """Add rows to those of a file; return all that it then has."""
    rows = merged(load_rows(file), new)
    if new:
        save_rows(file, rows)
    return rows


def list_plans(
    names: Sequence[str] = (),
    out: str | Path = "runs/paper",
    *,
    scale: str = "paper",
    results: str | Path = "results",
    teachers: str | Path | None = None,
    settings: Sequence[str] = (),
) -> tuple[list[State], Rates]:
    """Return how far each table and figure has come, and the rates by which the cost of the rest is told."""
    work = Work.of(names, scale, out, results, teachers, settings)
    cells = [cell for plan in work.plans for cell in plan.cells]
    rates = Rates(device_name(choose_device("auto")), [*work.earlier, *work.rows()], cells)
    states = []
    for plan in work.plans:
        left = [cell for cell in plan.cells if not work.done(plan, cell)]
        missing = work.teachers.missing(name for cell in left for name in cell.needs)
        seconds = sum(rates.seconds(cell) for cell in left)
        states.append(State(plan, len(plan.cells) - len(left), seconds, tuple(missing)))
    return states, rates


def training_seconds(names: Sequence[str], rates: Rates, settings: Sequence[str] = ()) -> float:
    """Return what the training of these teachers will take."""
    return sum(rates.training(point.recipe) for point in training_points(names, settings))


def _run(
    work: Work, places: Places, train: bool, settings: Sequence[str], progress: Progress
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Run what is missing; return why runs failed, and which there was no time for."""
    left = work.left()
    wanted = [name for _, cell in left for name in cell.needs]
    for note in work.teachers.notes(wanted):
        progress.say(f"note: {note}")
    missing = work.teachers.missing(wanted)
    failed: dict[str, str] = {}
    if missing and train:
        progress.say(f"training {counted(len(missing), 'teacher')}: {', '.join(missing)}")
        trained = sweep_points(training_points(missing, settings), work.teachers.trained, places, progress)
        failed |= trained.failed
        if trained.left:
            return failed, trained.left
        missing = work.teachers.missing(wanted)
    lost = [cell.run for _, cell in left if set(cell.needs) & set(missing)]
    if missing:
        progress.say(
            f"{counted(len(lost), 'run')} must wait for {', '.join(missing)}: give --teachers FOLDER with these, by "
            "name, or --train-teachers"
        )
    ready = [cell for _, cell in left if cell.run not in lost]
    late: tuple[str, ...] = ()
    if dense := [cell.recipe for cell in ready if cell.measures]:
        unmeasured, late = measure_teachers(dense, work.runs, places, progress)
        failed |= unmeasured
    if points := [cell.point for cell in ready if not cell.measures]:
        swept = sweep_points(points, work.runs, places, progress)
        failed, late = failed | swept.failed, (*late, *swept.left)
    return failed, late


def _show(work: Work, tables: dict[str, Table], rows: list[Row], plane: list[Row], progress: Progress) -> list[Path]:
    """Write the tables and figures."""
    files: list[Path] = []
    for folder in (work.out / _TABLES, work.out / _FIGURES):
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("html", table.html())):
            files.append(work.out / _TABLES / f"{name}.{ending}")
            with replacing(files[-1]) as file:
                file.write(text.encode())
    try:
        for plan in work.plans:
            if plan.show in ("figure", "plane", "curve"):
                files += draw(plan, rows, plane, work.out / _FIGURES)
    except InputError as error:  # without matplotlib
        progress.say(f"note: {error}")
    return files


__all__ = ["Reproduced", "State", "list_plans", "reproduce", "time_text", "training_seconds"]
