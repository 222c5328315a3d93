"""Rows: what the runs of the plans found, flat, and what earlier results hold that fits a cell."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pwoa.errors import InputError
from pwoa.evaluation.folder import ASKED, OF_MODEL, FinishedEvaluation
from pwoa.paper.cells import Cell, Key
from pwoa.paper.plan import ATTACKS, published_row
from pwoa.recipe import recorded_recipe, records_recipe
from pwoa.runs.folder import TEACHER as OF_TEACHER
from pwoa.runs.folder import Run
from pwoa.storage.folder import RESULT
from pwoa.storage.reading import read_json
from pwoa.sweep.rows import accuracies, epochs_of

ROWS, PLANE = "paper.json", "paper-hsic.json"
"""What the files of rows, and of the points of the HSIC plane, are called."""

NEAREST, POINTS = "fmn", 16
"""The attack whose distances a row has, and into how many steps its curve is divided."""

EARLIER = "an earlier preset"
"""What stands for the settings of a row whose run the plans do not ask for any more."""

SHORT = 12
"""So many letters of a fingerprint stand in a row."""

Row = dict[str, Any]


def is_finished(folder: Path, cell: Cell) -> bool:
    """Tell whether the run of a cell has ended in the folder of the runs; the folder of another run is an error."""
    place = folder / cell.run
    if not records_recipe(place) or not Run(place).finished:
        return False
    if changed := recorded_recipe(place).differences(cell.recipe):
        raise InputError(f"{place} holds another run ({', '.join(changed)}); choose another --out")
    return True


def settings_of(row: Row) -> str:
    """Return the settings of a row that were changed by hand; those that were written before rows had any have none."""
    return row.get("settings") or ""


def row_of(plan: str, cell: Cell, scale: str, folder: Path) -> Row:
    """Return the row of a run that has ended."""
    recipe, result = recorded_recipe(folder / cell.run), Run(folder / cell.run).read_json(RESULT)
    try:
        found = accuracies(result)
        fewer = result.get("fewer", {})
        return {
            **_head(plan, cell, recipe.training.seed, epochs_of(recipe)),
            **_measured(found, result["images"], fewer),
            **_nearest(folder / cell.run / OF_MODEL),
            "paper_autoattack": published_row(plan, cell.paper).get("autoattack") if cell.comparable else None,
            "training_seconds": round(result["training_seconds"], 1),
            "steady_seconds": round(steady_seconds(Run(folder / cell.run).metrics()), 1),
            "evaluation_seconds": round(result.get("evaluation_seconds", 0.0), 1),
            "parameters": result.get("parameters"),
            "overall_rate": result.get("overall_rate"),
            "macs_rate": result.get("macs_rate"),
            "device": result["device"],
            "scale": scale,
            "run": cell.run,
            "settings": cell.settings,
            "fingerprint": teacher_of(folder / cell.run) if cell.key.teacher else None,
        }
    except (LookupError, TypeError, AttributeError):
        raise InputError(
            f"{folder / cell.run / RESULT} is damaged; remove {folder / cell.run} to run it again"
        ) from None


def steady_seconds(metrics: Iterable[Mapping[str, Any]]) -> float:
    """Return what training takes without compiling: the first epoch of a stage counts as long as its later ones."""
    stages: dict[str, list[float]] = {}
    for line in metrics:
        stages.setdefault(line["stage"], []).append(line["seconds"])
    return sum(len(seconds) * statistics.mean(seconds[1:] or seconds) for seconds in stages.values())


def teacher_row(plan: str, cell: Cell, scale: str, evaluation: Path) -> Row:
    """Return the row of the dense teacher of a cell, from the folder of its evaluation."""
    dense = cell.dense
    paper = published_row("pretrained", dense.paper) if dense.comparable else {}
    result = FinishedEvaluation(evaluation).read_json(RESULT)
    try:
        found = {row["attack"]: row["accuracy"] for row in result["attacks"]}
        fewer = {row["attack"]: row["images"] for row in result["attacks"]}
        return {
            **_head(plan, dense, cell.recipe.seeded_evaluation().seed, "0"),
            **_measured(found, result["images"], fewer),
            **_nearest(evaluation),
            "paper_autoattack": paper.get("autoattack"),
            "training_seconds": 0.0,
            "evaluation_seconds": round(sum(row["seconds"] or 0.0 for row in result["attacks"]), 1),
            "overall_rate": 1.0,
            "macs_rate": 1.0,
            "device": result["device"],
            "scale": scale,
            "run": dense.run,
            "settings": dense.settings,
            "fingerprint": result["model"][:SHORT],
        }
    except (LookupError, TypeError, AttributeError):
        raise InputError(f"{evaluation / RESULT} is damaged; remove {evaluation} to measure it again") from None


def measured_teacher(evaluation: Path) -> str | None:
    """Return the fingerprint of the teacher that an evaluation measured, as rows have it."""
    model = FinishedEvaluation(evaluation).read_json(RESULT).get("model")
    return model[:SHORT] if isinstance(model, str) else None


def teacher_of(run: Path) -> str:
    """Return the fingerprint of the teacher that a run pruned, as rows have it."""
    return str(Run(run).read_json(OF_TEACHER)["teacher"])[:SHORT]


def _head(plan: str, cell: Cell, seed: int, epochs: str) -> Row:
    return {"table": plan, **asdict(cell.key), "seed": seed, "epochs": epochs}


def _measured(found: Mapping[str, float], images: int, fewer: Mapping[str, int]) -> Row:
    """Return the accuracies of a row; those of the attack `strong` only where there is no AutoAttack."""
    row: Row = {attack: _rounded(found.get(attack)) for attack in ATTACKS}
    row |= {"n": images, "n_autoattack": fewer.get("autoattack", images) if "autoattack" in found else None}
    if "autoattack" not in found and "strong" in found:
        row |= {"strong": _rounded(found["strong"]), "n_strong": fewer.get("strong", images)}
    return row


def _nearest(evaluation: Path) -> Row:
    """Return the accuracy over the radius, up to twice that of the threat, from how far the nearest broken images are.

    Only where an attack looked for these.
    """
    found = FinishedEvaluation(evaluation)
    far = found.distances().get(NEAREST)
    if far is None:
        return {}
    own = found.read_json(ASKED)["threat"]["radius"]
    radii = [2 * own * step / POINTS for step in range(POINTS + 1)]
    curve = [[round(radius, 5), round(100 * float((far > radius).float().mean()), 2)] for radius in radii]
    median = found.read_json(RESULT)["distances"][NEAREST]["median"]
    return {NEAREST: round(100 * float((far > own).float().mean()), 2), "median_distance": median, "curve": curve}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def plane_rows(plan: str, cell: Cell, folder: Path) -> list[Row]:
    """Return the points of a run in the HSIC plane, the teacher's own first, epoch by epoch."""
    key, rows = cell.key, list[Row]()
    fingerprint = teacher_of(folder / cell.run)
    for line in Run(folder / cell.run).metrics():
        for point in (line.get("start", {}), line):
            if {"hsic_x_last", "hsic_y_last"} <= point.keys():
                head: Row = {"table": plan, "dataset": key.dataset, "architecture": key.architecture}
                head |= {"teacher": key.teacher, "objective": key.objective, "rate": key.rate, "run": cell.run}
                head["fingerprint"] = fingerprint
                where = {"stage": line["stage"] if point is line else "start", "epoch": line["epoch"]}
                rows.append({**head, **where, "hsic_x": point["hsic_x_last"], "hsic_y": point["hsic_y_last"]})
    return rows


_OF_ROWS = {
    ROWS: ("table", "teacher", "method", "run", "epochs", "n", "device"),
    PLANE: ("table", "teacher", "run", "stage", "hsic_x", "hsic_y"),
    "mnist-rate4.json": ("model", "rate", "seed", "device"),
    "ablations.json": ("label", "rate", "epochs", "n", "seed", "device"),
    "competition.json": ("dataset", "method", "mix", "rate", "epochs", "n", "seed", "device"),
    "teachers.json": ("name", "device"),
}
"""What the rows of each file must have."""
_TEXTS = ("table", "run", "epochs", "settings", "device")
"""What is text in every row that has it."""


def load_rows(path: Path) -> list[Row]:
    """Read the flat rows of a file; none if it is not there."""
    if not path.is_file():
        return []
    rows = read_json(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} holds no rows; repair it or choose another folder")
    for number, row in enumerate(rows, 1):
        lacking = [f"no {key!r}" for key in _OF_ROWS.get(path.name, ()) if key not in row]
        if path.name in (ROWS, PLANE):
            lacking += [f"{key} = {row[key]!r}, not a text" for key in _TEXTS if not isinstance(row.get(key, ""), str)]
        if lacking:
            raise InputError(f"{path}: row {number} has {lacking[0]}; repair it or choose another folder")
    return rows


def merged(before: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Return rows with new ones added; of a table, run and teacher there is one row, the new one."""
    own = ("table", "run", "fingerprint", "stage", "epoch")
    rows: dict[tuple[Any, ...], Row] = {}
    for row in (*before, *new):
        rows[tuple(row.get(key) for key in own)] = row
    return list(rows.values())


def fits(row: Mapping[str, Any], key: Key) -> bool:
    """Tell whether a row is of a line."""
    return all(row.get(name) == value for name, value in asdict(key).items())
