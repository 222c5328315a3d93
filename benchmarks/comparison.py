"""The comparison of methods as tables and as a picture, from rows such as those of results/competition.json."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.robust import ROBUST, as_it_is
from benchmarks.rows import Row, load_rows, markdown
from pwoa.attacks.registry import attack_label
from pwoa.errors import InputError, counted
from pwoa.methods import METHODS
from pwoa.sweep.rows import COLUMNS, TEACHER, mean_and_deviation

PUBLISHED = {
    ("pwoa", 0.0): (83.29, 45.35),
    ("advprune", 1.0): (80.54, 43.68),
    ("hydra", 1.0): (76.74, 43.34),
    ("harp", 1.0): (83.38, 45.40),
}
"""By method and mix ratio, natural and AutoAttack accuracy of ResNet-18 on CIFAR-10 without 90 % of its weights, in the
Adversarial Pruning Benchmark."""
BEYOND = (16.0, 64.0, 100.0)
"""The rates at which the headline shows the preset that goes beyond the paper."""
NAIVE = "magnitude"
"""The method that forgets robustness: the smallest weights go at once, and the others are trained as usual."""
_PUBLISHED_NETWORK = ("cifar10", "resnet18")
_PUBLISHED_RATE = 10.0
_SHORT = 20
"""The epochs that all methods of the comparison have."""
_LINE = ("method", "rate", "mix", "epochs", "fingerprint", "settings", "square")
"""What, with the allocation, the rows of one line have in common; they differ in the seed."""
_TEACHER_LINE = ("method", "fingerprint", "square")
_SHADES = ("#4c72b0", "#8fa8d0", "#e8b48f", "#dd8452")
_GREY = "#444444"

Line = Sequence[Row]
"""The rows, one for each seed, whose mean is a line of a table."""


@dataclass
class Panel:
    """Robust accuracies of methods pruned from one teacher: by method and mix ratio, mean and deviation in percent."""

    title: str
    teacher: float | None
    methods: dict[str, dict[float, tuple[float, float]]] = field(default_factory=dict)


def competition_table(path: Path) -> str:
    """Return a table for each network, with a line for each method, rate and mix ratio."""
    head = ["method", "rate", "mix ratio", "epochs", *(attack_label(column) for column in COLUMNS), "seeds"]
    tables = []
    for (dataset, architecture), lines in _networks(load_rows(path)).items():
        cells, smaller, attacked = [], set(), set()
        most = max(row.get("n_autoattack") or 0 for line in lines for row in line)
        for line in lines:
            row = line[0]
            strongest = _strongest(line)
            accuracies = {column: mean_and_deviation([row[column] for row in line]) for column in COLUMNS}
            accuracies["autoattack"] = mean_and_deviation([row["autoattack"] for row in strongest])
            if row.get("square") == "paper":
                accuracies["autoattack"] += " †"
            if len(strongest) < len(line):
                accuracies["autoattack"] += " §"
                attacked.add(counted(len(strongest), "seed"))
            if (images := strongest[0].get("n_autoattack") or most) < most:
                accuracies["autoattack"] += " ‡"
                smaller.add(f"{images:,}")
            settings = [_name(row), f"{row['rate']:g}", f"{row['mix']:g}", row["epochs"]]
            cells.append([*settings, *accuracies.values(), f"{len(line)}"])
        fewer = f" (AutoAttack: {most:,})" if most else ""
        table = markdown(head, cells)
        note = "\n\n† AutoAttack with `square-paper`, which can break more." if "†" in table else ""
        note += f"\n\n§ AutoAttack of {' or '.join(sorted(attacked))}." if attacked else ""
        note += f"\n\n‡ AutoAttack on {' or '.join(sorted(smaller))} images." if smaller else ""
        tables.append(
            f"{architecture} on {dataset}, {row['n']:,} test images{fewer}, {row['device']}; accuracy in "
            f"percent, mean ± standard deviation over the seeds:\n\n{table}{note}"
        )
    return "\n\n".join(tables)


def _strongest(line: Line) -> Line:
    """Return the rows of a line in which AutoAttack saw the most images."""
    most = max(row.get("n_autoattack") or 0 for row in line)
    return [row for row in line if (row.get("n_autoattack") or 0) == most]


def headline_table(path: Path) -> str:
    """Return what is left of the robust ResNet-18 by each method that sees natural examples only, the best last.

    Below them what the preset `robust` keeps at higher rates, from the rows beside those of the methods.
    """
    lines = _networks(load_rows(path))[_PUBLISHED_NETWORK]
    chosen = [line for line in lines if not line[0]["mix"] and _has_autoattack(line) and _epochs(line[0]) <= _SHORT]
    dense, pruned = (
        [line for line in chosen if (line[0]["method"] == TEACHER) is is_dense] for is_dense in (True, False)
    )
    cells = []
    for line in [*dense, *sorted(pruned, key=lambda line: _means(line)[1])]:
        row = line[0]
        accuracies = (mean_and_deviation([row[column] for row in line]) for column in COLUMNS)
        name = f"{NAIVE} (naive)" if row["method"] == NAIVE else _name(row)
        cells.append([name, f"{row['rate']:g}", *accuracies])
    beyond = _beyond(path.with_name("robust.json"))
    same = next(iter(beyond.values()))
    seen = [mean_and_deviation([row[f"teacher_{column}"] for row in same]) for column in COLUMNS[:-1]]
    cells.append([f"{TEACHER} †", "1", *seen, cells[0][-1].partition(" ")[0]])
    cells += [
        [f"{ROBUST} †", f"{rate:g}", *(mean_and_deviation([row[column] for row in own]) for column in COLUMNS)]
        for rate, own in beyond.items()
    ]
    counts = {rate: counted(len(own), "seed") for rate, own in beyond.items()}
    alike = set(counts.values())
    seeds = alike.pop() if len(alike) == 1 else ", ".join(f"{text} at rate {rate:g}" for rate, text in counts.items())
    attacked = {sum(row["autoattack"] is not None for row in own) for own in beyond.values()}
    of_seeds = "one seed" if attacked == {1} else f"{min(attacked)} to {max(attacked)} seeds"
    first = chosen[0][0]
    return (
        f"ResNet-18 on CIFAR-10, l∞ 8/255, natural examples only, {_SHORT} epochs, {len(pruned[0])} seeds, "
        f"{first['n']:,} test images (AutoAttack: {first['n_autoattack']:,}), {first['device']}; accuracy in percent, "
        "mean ± standard deviation:\n\n"
        + markdown(["method", "rate", *(attack_label(column) for column in COLUMNS)], cells)
        + f"\n\n† all 10,000 test images, AutoAttack on 1,000 and of {of_seeds}. "
        f"{ROBUST} is beyond the paper: 16 epochs, {seeds}."
    )


def _beyond(path: Path) -> dict[float, list[Row]]:
    """Return the rows of the preset `robust` at the higher rates."""
    own = [row for row in load_rows(path) if as_it_is(row) and row["budget"] == "weights"]
    return {rate: [row for row in own if row["rate"] == rate] for rate in BEYOND}


def published_table(path: Path) -> str:
    """Return a table of what was published of methods, and of what the same methods reach here."""
    lines = _networks(load_rows(path))[_PUBLISHED_NETWORK]
    teacher = _means(next(line for line in lines if line[0]["method"] == TEACHER))
    cells = []
    for line in lines:
        row = line[0]
        published = PUBLISHED.get((_name(row), row["mix"]))
        if published and row["rate"] == _PUBLISHED_RATE and _has_autoattack(line):
            here = _means(line)
            differences = (_pair(_minus(here, other), "+.1f") for other in (published, teacher))
            settings = [row["method"], f"{row['mix']:g}", row["epochs"], f"{len(line)}"]
            cells.append([*settings, _pair(published), _pair(here), *differences])
    settings = ["method", "mix ratio", "epochs here", "seeds here"]
    return markdown([*settings, "published", "here", "difference", "here, to the dense teacher"], cells)


def draw(path: Path, picture: Path) -> None:
    """Draw the accuracy under AutoAttack by method and mix ratio, in a panel for each teacher, rate and epochs.

    Rows of an earlier form of AutoAttack or of a method are left out, and panels with one method only.
    """
    panels = [panel for panel in _panels(load_rows(path)) if len(panel.methods) > 1]
    if not panels:
        raise InputError(f"{path} has no two methods that were measured alike; there is nothing to draw")
    figure = Figure(figsize=(8 if len(panels) == 1 else 5 * len(panels), 3.6), layout="constrained")
    every = list(figure.subplots(1, len(panels), squeeze=False)[0])
    every[0].set_ylabel(f"accuracy under {attack_label('autoattack')}, %")
    mixes = sorted({mix for panel in panels for accuracies in panel.methods.values() for mix in accuracies})
    colours = dict(zip(mixes, itertools.cycle(_SHADES)))
    legend: dict[str, Any] = {}
    for axes, panel in zip(every, panels, strict=True):
        legend |= _draw_panel(axes, panel, colours)
    names = sorted(legend)
    figure.legend([legend[name] for name in names], names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(picture, dpi=144)


def _draw_panel(axes: Any, panel: Panel, colours: Mapping[float, str]) -> dict[str, Any]:
    """Draw a group of bars for each method, one bar for each mix ratio; return what the legend has to name."""
    legend: dict[str, Any] = {}
    width = 0.84 / max(map(len, panel.methods.values()))
    for number, accuracies in enumerate(panel.methods.values()):
        for place, mix in enumerate(sorted(accuracies)):
            mean, deviation = accuracies[mix]
            x = number + (place - (len(accuracies) - 1) / 2) * width
            bar = axes.bar(x, mean, width * 0.94, yerr=deviation, color=colours[mix], ecolor=_GREY)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
            axes.bar_label(bar, fmt="%.0f", fontsize=7, padding=2, bbox=box)
            legend[f"mix ratio {mix:g}"] = bar[0]
    if panel.teacher is not None:
        line = axes.axhline(panel.teacher, color=_GREY, linestyle="--", linewidth=0.8, zorder=0)
        legend["dense teacher"] = line
    names = [name.replace(" (", "\n(") for name in panel.methods]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.1)
    axes.set_ylim(bottom=0)
    return legend


def _panels(rows: Iterable[Row]) -> list[Panel]:
    panels: dict[tuple[str, Any], Panel] = {}
    for (dataset, architecture), lines in _networks(rows).items():
        current = [line for line in lines if not _is_earlier(line[0]) and _has_autoattack(line)]
        dense = {line[0].get("fingerprint"): _means(line)[1] for line in current if line[0]["method"] == TEACHER}
        for line in current:
            row, accuracies = line[0], [row["autoattack"] for row in _strongest(line)]
            if row["method"] == TEACHER:
                continue
            title = f"{architecture} on {dataset}, rate {row['rate']:g}, {counted(_epochs(row), 'epoch')}"
            teacher, name = row.get("fingerprint"), _name(row)
            panel = panels.setdefault((title, teacher), Panel(title, dense.get(teacher)))
            if row["mix"] in panel.methods.get(name, {}):
                name += f" ({row['epochs']}, {row.get('settings')})"  # another line of the table
            deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
            panel.methods.setdefault(name, {})[row["mix"]] = statistics.mean(accuracies), deviation
    return list(panels.values())


def _networks(rows: Iterable[Row]) -> dict[tuple[str, str], list[Line]]:
    """Return the lines to show, in their order, by data set and architecture.

    A line with an earlier form of AutoAttack (`square-paper`) or of a method (named after a comma) is shown only where
    there is no current one.
    """
    networks: dict[tuple[str, str], dict[tuple[Any, ...], list[Row]]] = {}
    for row in rows:
        lines = networks.setdefault((row["dataset"], row["architecture"]), {})
        keys = _TEACHER_LINE if row["method"] == TEACHER else _LINE
        lines.setdefault((_allocation(row), *(row.get(key) for key in keys)), []).append(row)
    return {network: _current(lines.values()) for network, lines in networks.items()}


def _current(lines: Iterable[Line]) -> list[Line]:
    ordered = sorted(lines, key=lambda line: _order(line[0]))
    present = {_place(line[0]) for line in ordered if not _is_earlier(line[0])}
    return [line for line in ordered if not _is_earlier(line[0]) or _place(line[0]) not in present]


def _place(row: Row) -> tuple[Any, ...]:
    settings = (row.get(key) for key in ("rate", "mix", "epochs", "fingerprint"))
    return _method(row), _allocation(row), *settings


def _is_earlier(row: Row) -> bool:
    """Tell whether a row is of an earlier form of AutoAttack or of its method."""
    return row.get("square") == "paper" or row["method"] != _method(row)


def _has_autoattack(line: Line) -> bool:
    return None not in (row["autoattack"] for row in line)


def _name(row: Row) -> str:
    """Return the method, with the allocation if it is not the paper's."""
    allocation = _allocation(row)
    return f"{row['method']}" if allocation == "uniform" else f"{row['method']} ({allocation})"


def _allocation(row: Row) -> str:
    """Return the allocation; a sweep names the column like the setting."""
    return row.get("allocation") or row.get("sparsity.allocation") or "uniform"


def _method(row: Row) -> str:
    return str(row["method"]).partition(",")[0]


def _order(row: Row) -> tuple[Any, ...]:
    """Order by rate and mix ratio, so that competing methods stand together; the teacher is first."""
    methods = [TEACHER, *METHODS]
    return row["rate"], row["mix"], methods.index(_method(row)), _name(row), _epochs(row)


def _epochs(row: Row) -> int:
    """Return the number of epochs of all stages."""
    return sum(map(int, row["epochs"].split("+")))


def _means(line: Line) -> tuple[float, float]:
    return statistics.mean(row["natural"] for row in line), statistics.mean(row["autoattack"] for row in line)


def _minus(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return a[0] - b[0], a[1] - b[1]


def _pair(pair: tuple[float, float], form: str = ".2f") -> str:
    return " / ".join(format(value, form).replace("-", "−") for value in pair)
