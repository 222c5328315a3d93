"""Rows of earlier results: what other files hold that fits a cell, and which rows are of other teachers or presets."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from pwoa.paper.cells import Key, find_teacher, known_teachers, setup_of
from pwoa.paper.plan import ATTACKS, ORDER, SCALES, Plan, setups
from pwoa.paper.rows import EARLIER, Row, fits, load_rows, settings_of
from pwoa.sweep.rows import TEACHER


def of_presets_now(rows: Iterable[Row]) -> list[Row]:
    """Mark the rows of runs that no plan asks for any more, as presets were other ones when they were measured."""
    marked: list[Row] = []
    asked = cache(setups)  # for these rows alone: presets may be others the next time
    for row in rows:
        known = row["table"] in ORDER and row.get("scale") in SCALES
        usual = known and row["method"] != TEACHER and not settings_of(row)
        now = not usual or setup_of(row["run"]) in asked(row["table"], row["scale"])
        marked.append(row if now else {**row, "settings": EARLIER})
    return marked


def other_rows(folder: Path, plans: Sequence[Plan]) -> list[Row]:
    """Return what the other files of results hold that fits a cell of the plans."""
    found = [*_mnist_rate4(folder), *_ablations(folder), *_competition(folder), *_teachers(folder)]
    keys = {cell.key for plan in plans for cell in plan.cells}
    keys |= {key.dense for key in keys if key.teacher}
    return [row for row in found if any(fits(row, key) for key in keys)]


def of_these_teachers(rows: Iterable[Row], at_hand: Callable[[str], str | None]) -> list[Row]:
    """Leave out rows of other teachers of the same name, whose numbers are not comparable.

    What counts is the teacher that is at hand, by its fingerprint, or else the last one that the rows have. Rows
    without a fingerprint are of nobody knows which; beside a teacher that is at hand they count only if it is embedded.
    """
    everything = list(rows)
    last = {row["teacher"]: row["fingerprint"] for row in everything if row.get("fingerprint")}

    def counts(row: Row) -> bool:
        name, own = row["teacher"], row.get("fingerprint")
        if name is None:
            return True
        if own is None:
            return (name in known_teachers() and bool(find_teacher(name).checkpoint)) or at_hand(name) is None
        return bool(own == (at_hand(name) or last[name]))

    return [row for row in everything if counts(row)]


def _mnist_rate4(folder: Path) -> list[Row]:
    objectives = {"ce": "CE", "pwoa": "distillation + HSIC", "teacher": None}
    rows = []
    for row in (row for row in load_rows(folder / "mnist-rate4.json") if row["model"] in objectives):
        dense = row["model"] == "teacher"
        rows.append(
            _of_mnist(row, objectives[row["model"]], row["rate"], "0" if dense else "50+20", 10000)
            | {"source": "mnist-rate4.json"}
        )
    return rows


def _ablations(folder: Path) -> list[Row]:
    rows = []
    for row in load_rows(folder / "ablations.json"):
        objective = str(row["label"]).partition("objective ")[2] or None
        rows.append(_of_mnist(row, objective, row["rate"], row["epochs"], row["n"]) | {"source": "ablations.json"})
    return rows


def _competition(folder: Path) -> list[Row]:
    mine = [row for row in load_rows(folder / "competition.json") if row["dataset"] == "mnist" and not row["mix"]]
    names = {"pwoa": "distillation + HSIC", TEACHER: None}
    return [
        _of_mnist(row, names[row["method"]], row["rate"], row["epochs"], row["n"]) | {"source": "competition.json"}
        for row in mine
        if row["method"] in names and row.get("allocation", "uniform") == "uniform"
    ]


def _of_mnist(row: Row, objective: str | None, rate: float, epochs: str, n: int) -> Row:
    key = Key("mnist", "lenet", "lenet-mnist-pgd-at", "pwoa" if objective else TEACHER, objective, rate, 0.0)
    return {
        **asdict(key),
        **{attack: row.get(attack) for attack in ATTACKS},
        "seed": row["seed"],
        "epochs": epochs,
        "n": n,
        "n_autoattack": row.get("n_autoattack"),
        "training_seconds": row.get("seconds"),
        "device": row["device"],
        "settings": "training.weight_decay=0.0001" if objective else "",  # which the presets for MNIST had then
    }


def _teachers(folder: Path) -> list[Row]:
    rows = []
    names = {"lenet-mnist-linf-0.3": "lenet-mnist-pgd-at"} | {name: name for name in known_teachers()}
    for row in load_rows(folder / "teachers.json"):
        if (name := names.get(row["name"])) and name != "resnet18-cifar10-natural":
            teacher = find_teacher(name)
            rows.append(
                {
                    **asdict(Key(teacher.data, teacher.architecture, name, TEACHER, None, 1.0, 0.0)),
                    **{attack: row.get(attack) for attack in ATTACKS},
                    "seed": row.get("seed", 0),
                    "epochs": "0",
                    "n": row.get("images", 10000),
                    "n_autoattack": row.get("n_autoattack"),
                    "training_seconds": 0.0,
                    "device": row["device"],
                    "source": "teachers.json",
                }
            )
    return rows
