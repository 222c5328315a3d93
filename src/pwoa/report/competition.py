"""The comparison of methods as tables of the documents, and as a picture, from the rows of results/competition.json."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pwoa.files import load_rows
from pwoa.methods import METHODS
from pwoa.report.plots import Panel, mix_bars
from pwoa.report.table import attack_name, markdown
from pwoa.sweep.rows import COLUMNS, mean_and_deviation
from pwoa.words import counted

PUBLISHED = {
    ("pwoa", 0.0): (83.29, 45.35),
    ("advprune", 1.0): (80.54, 43.68),
    ("hydra", 1.0): (76.74, 43.34),
    ("harp", 1.0): (83.38, 45.40),
}
"""By method and mix ratio the natural and AutoAttack accuracy of ResNet-18 on CIFAR-10 without 90 % of its weights, in
the Adversarial Pruning Benchmark."""
_OF_PUBLISHED: Mapping[str, Any] = {"dataset": "cifar10", "architecture": "resnet18", "rate": 10.0}
_ALIKE = ("method", "rate", "mix", "epochs", "fingerprint", "settings", "square")
"""What the rows have in common that one line of the comparison is the mean of."""

Line = Sequence[Mapping[str, Any]]
"""The rows, one a seed, that a line of a table is the mean of."""


def competition_table(path: Path) -> str:
    """A table a network, one row a method, rate and mix ratio, over the seeds."""
    head = ["method", "rate", "mix ratio", "epochs", *(attack_name(column) for column in COLUMNS), "seeds"]
    tables = []
    for (dataset, architecture), lines in _networks(load_rows(path)).items():
        cells = []
        for own in lines:
            row, accuracies = own[0], {column: mean_and_deviation([row[column] for row in own]) for column in COLUMNS}
            if row.get("square") == "paper":
                accuracies["autoattack"] += " †"
            about = [_name(row), f"{row['rate']:g}", f"{row['mix']:g}", row["epochs"]]
            cells.append([*about, *accuracies.values(), f"{len(own)}"])
        strongest = f" (AutoAttack: {row['n_autoattack']:,})" if row.get("n_autoattack") else ""
        table = markdown(head, cells)
        other = "\n\n† AutoAttack with `square-paper`, which can break more." if "†" in table else ""
        tables.append(
            f"{architecture} on {dataset}, {row['n']:,} test images{strongest}, {row['device']}; accuracy in "
            f"percent, mean ± standard deviation over the seeds:\n\n{table}{other}"
        )
    return "\n\n".join(tables)


def published_table(path: Path) -> str:
    """What was published of methods, and what the same methods reach here."""
    lines = _networks(load_rows(path))[_OF_PUBLISHED["dataset"], _OF_PUBLISHED["architecture"]]
    teacher = _means(next(own for own in lines if own[0]["method"] == "teacher"))
    cells = []
    for own in lines:
        row, known = own[0], PUBLISHED.get((_name(own[0]), own[0]["mix"]))
        of_it = all(row[key] == value for key, value in _OF_PUBLISHED.items())
        if known and of_it and None not in (row["autoattack"] for row in own):
            here = _means(own)
            differences = (_pair(_minus(here, other), "+.1f") for other in (known, teacher))
            about = [row["method"], f"{row['mix']:g}", row["epochs"], f"{len(own)}"]
            cells.append([*about, _pair(known), _pair(here), *differences])
    about = ["method", "mix ratio", "epochs here", "seeds here"]
    return markdown([*about, "published", "here", "difference", "here, to the dense teacher"], cells)


def draw(path: Path, picture: Path) -> None:
    """The accuracy under AutoAttack of each method by its mix ratio, a panel a teacher, rate and number of epochs.

    Left out is what was measured otherwise, with a method as it was before, or with no other to compare it with.
    """
    panels: dict[tuple[str, Any], Panel] = {}
    for (dataset, architecture), lines in _networks(load_rows(path)).items():
        measured = [own for own in lines if not _of_before(own[0]) and None not in (row["autoattack"] for row in own)]
        dense = {own[0].get("fingerprint"): _means(own)[1] for own in measured if own[0]["method"] == "teacher"}
        for own in measured:
            row, known, teacher = own[0], [row["autoattack"] for row in own], own[0].get("fingerprint")
            if row["method"] != "teacher":
                epochs = counted(_epochs(row), "epoch")
                title = f"{architecture} on {dataset}, rate {row['rate']:g}, {epochs}"
                panel = panels.setdefault((title, teacher), Panel(title, dense.get(teacher)))
                deviation = statistics.stdev(known) if len(known) > 1 else 0.0
                name = _name(row)
                if row["mix"] in panel.methods.get(name, {}):
                    name += f" ({row['epochs']}, {row.get('settings')})"  # another line of the table
                panel.methods.setdefault(name, {})[row["mix"]] = statistics.mean(known), deviation
    mix_bars([panel for panel in panels.values() if len(panel.methods) > 1], "autoattack", picture)


def _networks(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Line]]:
    """By data set and architecture the lines to show, in their order.

    What was measured with another Square than AutoAttack's, `square-paper`, or with a method as it was before (after a
    comma it says how), is shown where there is nothing else.
    """
    networks: dict[tuple[str, str], dict[tuple[Any, ...], list[Mapping[str, Any]]]] = {}
    for row in rows:
        groups = networks.setdefault((row["dataset"], row["architecture"]), {})
        alike = ("method", "fingerprint", "square") if row["method"] == "teacher" else _ALIKE
        groups.setdefault(tuple(row.get(key) for key in alike), []).append(row)
    return {network: _shown(groups.values()) for network, groups in networks.items()}


def _shown(lines: Iterable[Line]) -> list[Line]:
    ordered = sorted(lines, key=lambda own: _order(own[0]))
    present = {_place(own[0]) for own in ordered if not _of_before(own[0])}
    return [own for own in ordered if not _of_before(own[0]) or _place(own[0]) not in present]


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    own = (row.get(key) for key in ("rate", "mix", "epochs", "fingerprint"))
    return _method(row), row.get("allocation") or "uniform", *own


def _of_before(row: Mapping[str, Any]) -> bool:
    return row.get("square") == "paper" or row["method"] != _method(row)


def _name(row: Mapping[str, Any]) -> str:
    """The method, and the allocation if it is not the paper's."""
    allocation = row.get("allocation") or "uniform"
    return f"{row['method']}" if allocation == "uniform" else f"{row['method']} ({allocation})"


def _method(row: Mapping[str, Any]) -> str:
    return str(row["method"]).partition(",")[0]


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The teacher first; then by rate and mix ratio, so that competing methods stand together."""
    methods = ["teacher", *METHODS]
    return row["rate"], row["mix"], methods.index(_method(row)), _name(row), _epochs(row)


def _epochs(row: Mapping[str, Any]) -> int:
    """Those of all stages."""
    return sum(map(int, row["epochs"].split("+")))


def _means(own: Line) -> tuple[float, float]:
    return statistics.mean(row["natural"] for row in own), statistics.mean(row["autoattack"] for row in own)


def _minus(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return a[0] - b[0], a[1] - b[1]


def _pair(pair: tuple[float, float], form: str = ".2f") -> str:
    return " / ".join(format(value, form).replace("-", "−") for value in pair)
