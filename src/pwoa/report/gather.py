"""Read the folders of runs, evaluations and sweeps, whole or broken, and say what is missing.

Nothing in a folder can stop a page: what is damaged is named in it, and nothing out of a damaged file is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pwoa.errors import InputError, counted, explain, first_line, one_line
from pwoa.evaluation.comparison import Difference, compare, worst_case
from pwoa.evaluation.examples import EXAMPLES, load_examples
from pwoa.evaluation.folder import ASKED, OF_MODEL, OF_TEACHER
from pwoa.evaluation.scores import FILE as VERDICTS
from pwoa.evaluation.scores import wilson
from pwoa.methods import METHODS
from pwoa.models.checkpoints.folder import DESCRIPTION, WEIGHTS
from pwoa.recipe import RECIPE, flat, recorded_recipe
from pwoa.report.story import (
    WORST,
    Accuracy,
    Epoch,
    Layer,
    Measured,
    Story,
    entries,
    number,
    numbers,
    whole,
    words,
)
from pwoa.report.sweeps import of_older_grids
from pwoa.runs.folder import METRICS, TEACHER, Run
from pwoa.storage.folder import RESULT, unsealed
from pwoa.storage.reading import TEXT_LIMIT, parse_json, read_bytes, read_json
from pwoa.sweep import ROWS
from pwoa.threat import Threat

MOST = 200
"""How many folders a page tells of."""
_OF_RUN = (RECIPE, TEACHER, METRICS, DESCRIPTION, WEIGHTS, "evaluation")
_OF_EVALUATION = (ASKED, VERDICTS)
_EPOCHS = 20_000
_NAMED = 5
"""How many runs that are left out are named."""
T = TypeVar("T")


def kind_of(folder: Path) -> str:
    """Return whether a folder is that of a run or an evaluation; nothing if it is neither."""
    if any((folder / name).exists() for name in _OF_RUN):
        return "run"
    return "evaluation" if any((folder / name).exists() for name in _OF_EVALUATION) else ""


def gather(folders: Iterable[str | Path], within: Path | None = None) -> list[Story]:
    """Return what is known of runs, evaluations and sweeps, in their order, each folder once.

    A folder that is neither a run nor an evaluation, such as a sweep's or the demo's, stands for those in it.
    within: nothing is read through a symbolic link that leads out of this folder.
    """
    chosen: dict[Path, Path] = {}
    for given in map(Path, folders):
        if not _is_folder(given):
            raise InputError(f"{given} is not a folder; give the folder of a run, an evaluation or a sweep")
        inside = [given] if kind_of(given) else children(given) or [given]
        chosen |= {place.resolve(): place for place in inside if place.resolve() not in chosen}
    if len(chosen) > MOST:
        raise InputError(f"there are {len(chosen):,} runs, and a page holds {MOST}; give fewer folders")
    return [tell(place, within) for place in chosen.values()]


def children(folder: Path) -> list[Path]:
    """Return the runs and evaluations right inside a folder, by name; of a sweep's without those of older grids."""
    inside = _inside(folder)
    older = set(of_older_grids(folder, inside))
    return [place for place in inside if place not in older]


def left_out(folder: Path, stories: Iterable[Story]) -> str:
    """Say which runs in the folder of a sweep these stories leave out; nothing if they have all of them."""
    told = {story.path.resolve() for story in stories}
    older = of_older_grids(folder, _inside(folder)) if not kind_of(folder) else []
    names = [place.name for place in older if place.resolve() not in told]
    if not names:
        return ""
    runs = counted(len(names), "finished run is", "finished runs are")
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"{runs} left out, which {folder / ROWS} does not name, as of an older grid: {', '.join(names[:_NAMED])}{more}"
    )


def _inside(folder: Path) -> list[Path]:
    return [place for place in sorted(folder.iterdir()) if place.is_dir() and kind_of(place)]


def tell(folder: Path, within: Path | None = None) -> Story:
    """Return what is known of one folder."""
    kind = kind_of(folder)
    if within is not None and (outside := _leads_out(folder, within)):
        return Story(folder, kind or "folder", missing=(f"{outside} leads out of the folder that is served",))
    if kind == "run":
        return _tell_run(folder)
    if kind == "evaluation":
        reader = _Reader(folder)
        measured = reader.measured(Path(), "model")
        state = "finished" if (folder / RESULT).is_file() else "evaluating"
        layers = _layers(measured.about.get("size")) if measured else ()
        return Story(folder, kind, state, model=measured, layers=layers, missing=tuple(reader.missing))
    return Story(folder, "folder", missing=("there is no run, evaluation or sweep in it",))


class _Reader:
    """Reads the files of a folder, and keeps what could not be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.missing: list[str] = []

    def read(self, name: str | Path, how: Callable[[Path], T], expected: bool = True) -> T | None:
        """Read a file; where it is not there, or damaged, return None and keep why."""
        path = self.folder / name
        try:
            if path.exists():
                return how(path)
            if expected:
                self.missing.append(f"{name} is not there")
        except Exception as error:  # a damaged file can hold anything
            why = explain(error) or f"{name} is damaged ({type(error).__name__}: {first_line(error)})"
            self.missing.append(one_line(why.replace(f"{self.folder}/", "")))
        return None

    def measured(self, place: Path, role: str, expected: bool = True, of: Any = None) -> Measured | None:
        """Read the evaluation in a folder inside this one. of: the fingerprint of its model, where it is known."""
        result = self.read(place / RESULT, _read_object, expected)
        if result is None:
            return None
        if of is not None and result.get("model") != of:
            self.missing.append(f"{place / RESULT} is of another model than that of the run")
            return None
        examples = self.read(place / EXAMPLES, lambda path: load_examples(path, result.get("model")), expected=False)
        rows = [*entries(result.get("attacks"))]
        if len(rows) > 1 and isinstance(result.get("worst_case"), dict):
            rows.append({**result["worst_case"], "attack": WORST})
        known = [row for entry in rows if (row := _accuracy(entry)) is not None]
        if len(known) < len(rows) or not known:
            self.missing.append(f"{place / RESULT} does not have all accuracies of the {role}")
        curve: dict[str, list[tuple[float, Accuracy]]] = {}
        for entry in entries(result.get("curve")):
            radius, row = number(entry.get("radius"), 0, 1000), _accuracy(entry)
            if radius is not None and row is not None:
                curve.setdefault(row.attack, []).append((radius, row))
        found = ((words(entry.get("check")), words(entry.get("message"))) for entry in entries(result.get("warnings")))
        return Measured(
            tuple(known),
            {attack: tuple(sorted(points, key=lambda point: point[0])) for attack, points in curve.items()},
            _threat(result.get("threat")),
            tuple(found),
            result,
            tuple(examples or ()),
        )


def _tell_run(folder: Path) -> Story:
    reader = _Reader(folder)
    finished = (folder / RESULT).is_file()
    settings = reader.read(RECIPE, lambda path: flat(recorded_recipe(path.parent))) or {}
    result = reader.read(RESULT, _read_object, expected=False) or {}
    method = METHODS.get(words(settings.get("method") or result.get("method")))
    pruned = "pruned" in result or bool(method and method.prunes)
    lines = reader.read(METRICS, lambda path: list(_lines(path, reader.missing)), expected=finished) or []
    epochs = whole(result.get("trained_epochs"))
    if epochs is not None and epochs != len(lines):
        reader.missing.append(f"{METRICS} has {len(lines)} of {epochs} epochs")
    else:
        reader.read(METRICS, lambda path: Run(folder).check_metrics(result), expected=False)
    evaluated = finished or (folder / OF_MODEL / RESULT).is_file()
    model = reader.measured(OF_MODEL, "model", evaluated, result.get("model"))
    teacher = reader.measured(OF_TEACHER, "teacher", finished and pruned) if pruned else None
    changes: tuple[Difference, ...] = ()
    if finished and pruned and reader.read(OF_MODEL / VERDICTS, lambda path: True):
        changes = reader.read(OF_TEACHER / VERDICTS, lambda path: _changes(folder)) or ()
    trained = (folder / WEIGHTS).is_file()
    if finished and not trained:
        reader.missing.append(f"{WEIGHTS} is not there")
    return Story(
        folder,
        "run",
        "finished" if finished else "evaluating" if trained else "training",
        pruned,
        settings,
        result,
        model or _from_summary(result, "pruned" if pruned else "accuracy"),
        teacher or (_from_summary(result, "teacher") if pruned else None),
        changes,
        _layers(result),
        tuple(_epoch(line) for line in lines),
        _plane(lines[0].get("start")) if lines else None,
        tuple(reader.missing),
    )


def _changes(folder: Path) -> tuple[Difference, ...]:
    """Compare a run's teacher with its model, image by image, the worst case last."""
    comparison = compare(folder)
    own = [row for row in comparison.rows if "@" not in row.attack]
    return (*own, *filter(None, [worst_case(comparison)]))


def _read_object(path: Path) -> dict[str, Any]:
    return unsealed(read_json(path), str(path))


def _lines(path: Path, missing: list[str]) -> Iterator[dict[str, Any]]:
    """Return the lines of metrics.jsonl that are whole; the last may be half written, as long as a run is under way."""
    content = read_bytes(path, TEXT_LIMIT).splitlines()[:_EPOCHS]
    for place, line in enumerate(content, 1):
        try:
            value = parse_json(line, f"line {place} of {path.name}")
            if not isinstance(value, dict):
                raise InputError(f"line {place} of {path.name} is damaged (it is no object)")
        except InputError as error:
            missing.append(one_line(str(error)))
            return
        yield value


def _accuracy(entry: dict[str, Any]) -> Accuracy | None:
    right, images = whole(entry.get("right")), whole(entry.get("images"))
    if right is None or not images or right > images or not isinstance(entry.get("attack"), str):
        return None
    return Accuracy(words(entry["attack"]), 100 * right / images, *wilson(right, images), images)


def _from_summary(result: dict[str, Any], who: str) -> Measured | None:
    """Return the accuracies that the run's own result.json has, where the evaluation's folder is lost."""
    images, fewer = whole(result.get("images")), numbers(result.get("fewer"))
    rows = []
    for attack, value in numbers(result.get(who)).items():
        n = int(fewer.get(attack, images or 0))
        if n > 0 and 0 <= value <= 100:
            rows.append(Accuracy(attack, value, *wilson(min(n, round(value * n / 100)), n), n))
    return Measured(tuple(rows)) if rows else None


def _threat(value: Any) -> Threat | None:
    try:
        return Threat(**value)
    except (TypeError, ValueError):
        return None


def _layers(size: Any) -> tuple[Layer, ...]:
    found = entries(size.get("sparsity")) if isinstance(size, dict) else []
    return tuple(layer for entry in found if (layer := _layer(entry)) is not None)


def _layer(entry: dict[str, Any]) -> Layer | None:
    total, kept = whole(entry.get("total")), whole(entry.get("kept"))
    if not total or kept is None or kept > total:
        return None
    return Layer(words(entry.get("layer")), total, kept, whole(entry.get("macs")), whole(entry.get("macs_dense")))


def _epoch(line: dict[str, Any]) -> Epoch:
    return Epoch(words(line.get("stage")), numbers(line.get("train")), numbers(line.get("validation")), _plane(line))


def _plane(value: Any) -> tuple[float, float] | None:
    known = numbers(value)
    return (known["hsic_x_last"], known["hsic_y_last"]) if {"hsic_x_last", "hsic_y_last"} <= known.keys() else None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _leads_out(folder: Path, within: Path) -> str:
    """Return the first symbolic link in a folder that leads out of another one; nothing if none does."""
    root = within.resolve()
    known: Sequence[Path] = (folder, *folder.glob("*"), *folder.glob("*/*"), *folder.glob("*/*/*"))
    for path in known:
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            return str(path.relative_to(folder) if path != folder else path.name)
    return "" if folder.resolve().is_relative_to(root) else folder.name
