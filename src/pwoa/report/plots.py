"""Plots, with matplotlib (the extra `plots`)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pwoa.attacks.registry import attack_label
from pwoa.errors import InputError, counted
from pwoa.report.figure import Bars, Figure, Plot
from pwoa.storage.folder import naming, replacing
from pwoa.threat import norm_label

_COLOURS = ("#4c72b0", "#c44e52", "#55a868", "#8172b3", "#dd8452", "#64b5cd", "#937860", "#8c8c8c")
_MARKS = "os^Dv<>"
_LETTERS = 80  # side by side below the axes


def accuracy_bars(
    rows: Mapping[str, Mapping[str, float]], title: str, path: str | Path, fewer: Mapping[str, int] | None = None
) -> None:
    """Draw a group of bars for each attack, a bar for each model, with the values on top.

    fewer: on how many images attacks were run that were not run on all; it stands below their names.
    """
    figure, (axes,) = _figure(title)
    attacks = list(next(iter(rows.values())))
    width = 0.8 / len(rows)
    for number, (name, scores) in enumerate(rows.items()):
        places = [group + (number - (len(rows) - 1) / 2) * width for group in range(len(attacks))]
        colour = _COLOURS[number % len(_COLOURS)]
        bars = axes.bar(places, [scores[a] for a in attacks], width * 0.94, label=name, color=colour)
        axes.bar_label(bars, fmt="%.1f" if len(rows) < 4 else "%.0f", fontsize=7, padding=1)  # else they overlap
    axes.set_xticks(range(len(attacks)), [_below(attack, fewer or {}) for attack in attacks])
    axes.set_ylim(0, 108)
    figure.legend(loc="outside lower center", ncols=len(rows), frameon=False)
    _save(figure, Path(path))


def latency_bars(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draw the latency of each model by each route, with the fewest threads that were timed, on a logarithmic scale."""
    fewest = min((row["threads"] for row in rows), default=1)
    mine = [row for row in rows if row["threads"] == fewest and "error" not in row]
    if not mine:
        raise InputError("no route ran any of the models: there is nothing to draw")
    models, routes = (list(dict.fromkeys(row[key] for row in mine)) for key in ("model", "label"))
    figure, (axes,) = _figure(f"One image, {counted(fewest, 'thread')}", what="milliseconds")
    width = 0.8 / len(models)
    for number, model in enumerate(models):
        own = {row["label"]: row["milliseconds"] for row in mine if row["model"] == model}
        places = [routes.index(route) + (number - (len(models) - 1) / 2) * width for route in own]
        colour = _COLOURS[number % len(_COLOURS)]
        bars = axes.bar(places, list(own.values()), width * 0.94, label=model, color=colour)
        axes.bar_label(bars, fmt="%.3g", fontsize=7, padding=1)
    axes.set_yscale("log")
    axes.set_xticks(range(len(routes)), routes)
    figure.legend(loc="outside lower center", ncols=min(len(models), 3), frameon=False)
    _save(figure, Path(path))


def security_curve(
    radii: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    norm: str,
    path: str | Path,
    *,
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    title: str = "",
) -> None:
    """Draw accuracy in percent over the radius of the threat, a line for each attack, in any order of `radii`.

    intervals: by the name of a curve the low and high end of each of its points, in percent; drawn as a shade.
    """
    intervals = intervals or {}
    _check_curves(radii, curves, intervals)
    figure, (axes,) = _figure(title)
    order = sorted(range(len(radii)), key=radii.__getitem__)
    x = [radii[place] for place in order]
    for number, (name, accuracy) in enumerate(curves.items()):
        look = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKS[number % len(_MARKS)]}
        axes.plot(
            x, [accuracy[place] for place in order], label=attack_label(name), markersize=5, clip_on=False, **look
        )
        if name in intervals:
            low, high = zip(*(intervals[name][place] for place in order), strict=True)
            axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set_xticks(*_labels(x, norm))
    axes.set_xlabel(f"{norm_label(norm)} radius")
    axes.set_ylim(0, 100)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=min(len(curves), 6), frameon=False)
    _save(figure, Path(path))


def _save(figure: Any, path: Path) -> None:
    """Write a figure, as a whole, in the format that its name ends with."""
    with replacing(path) as file:
        figure.savefig(file, dpi=144, format=path.suffix.removeprefix(".") or "png")


def _below(attack: str, fewer: Mapping[str, int]) -> str:
    return attack_label(attack) + (f"\n(first {fewer[attack]:,})" if attack in fewer else "")


def _figure(title: str, panels: int = 1, what: str = "accuracy, %") -> tuple[Any, list[Any]]:
    """Make a figure in the common look, and the axes of its panels, side by side; what: the values they share."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'pwoa[plots]'") from None
    figure = Figure(figsize=(8 if panels == 1 else 5 * panels, 3.6), layout="constrained")
    every = list(figure.subplots(1, panels, squeeze=False)[0])
    every[0].set_ylabel(what)
    for axes in every:
        axes.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure, every


def _check_curves(
    radii: Sequence[float], curves: Mapping[str, Sequence[float]], intervals: Mapping[str, Sequence[Any]]
) -> None:
    if not radii or not curves:
        raise InputError("a security curve needs at least one radius and one attack")
    for name, points in (*curves.items(), *intervals.items()):
        if len(points) != len(radii):
            raise InputError(f"the security curve of {name} has {len(points)} points for {len(radii)} radii")


def _labels(radii: Sequence[float], norm: str) -> tuple[list[float], list[str]]:
    """Return which of the sorted radii get a label, so that labels do not touch, and what it is."""
    whole = norm == "linf" and all(math.isclose(255 * radius, round(255 * radius), abs_tol=1e-5) for radius in radii)
    labels = [f"{255 * radius:.0f}/255" if whole and radius else f"{radius:.4g}" for radius in radii]
    distance = (radii[-1] - radii[0]) * (max(map(len, labels)) + 1) / _LETTERS
    shown = [0]
    for place, radius in enumerate(radii):
        if radius - radii[shown[-1]] > distance:
            shown.append(place)
    return [radii[place] for place in shown], [labels[place] for place in shown]


@dataclass(frozen=True)
class Line:
    """A line of a panel: its points, each with a word beside it if there is one; `published` ones are dashed.

    way: it is a way from a first point to a last one, so that those with words stand out from the others.
    """

    x: Sequence[float]
    y: Sequence[float]
    words: Sequence[str] = ()
    published: bool = False
    way: bool = False


def line_panels(
    panels: Mapping[str, Mapping[str, Line]],
    path: str | Path,
    *,
    x: str,
    y: str = "accuracy, %",
    title: str = "",
    doubling: bool = False,
) -> None:
    """Draw panels side by side, by title, each with lines by name; a name has the same look in all of them.

    doubling: on the x axis equal steps are factors of two, and each value of it has a label.
    """
    if not panels or not any(panels.values()):
        raise InputError("there is nothing to draw: no point is measured")
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    figure, every = _figure(title, len(panels), y)
    shown: dict[str, Any] = {}
    for axes, (heading, lines) in zip(every, panels.items(), strict=True):
        for name, line in lines.items():
            number = names.index(name)
            look: dict[str, Any] = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKS[number % len(_MARKS)]}
            look |= {"linestyle": "--", "markerfacecolor": "white", "alpha": 0.7} if line.published else {}
            size = {"markersize": 2, "linewidth": 0.7} if line.way else {"markersize": 5}
            (shown[name],) = axes.plot(line.x, line.y, label=name, **size, **look)
            for place, word in enumerate(line.words):
                where = (line.x[place], line.y[place])
                look_of_word: dict[str, Any] = {"color": look["color"], "xytext": (5, 4)}
                if line.way and word:
                    _stand_out(axes, where, look, first=place == 0)
                    up = line.y[place] > line.y[0]
                    look_of_word = {"xytext": (-6, 6) if up else (7, -12), "ha": "right" if up else "left"}
                axes.annotate(word, where, textcoords="offset points", fontsize=7, zorder=6, **look_of_word)
        if doubling:
            values = sorted({value for line in lines.values() for value in line.x})
            axes.set_xscale("log", base=2)
            axes.set_xticks(values, [f"{value:g}" for value in values], minor=False)
        axes.set_title(heading, fontsize=9)
        axes.set_xlabel(x)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=min(len(shown), 4), frameon=False)
    _save(figure, Path(path))


def _stand_out(axes: Any, where: tuple[float, float], look: Mapping[str, Any], first: bool) -> None:
    """Mark a point of a way: with a star where it begins, which others may share, and else large."""
    own = {"marker": "*", "color": "black", "markersize": 11} if first else {**look, "markersize": 7}
    axes.plot(*where, linestyle="", markeredgecolor="black", zorder=5, **own)


def save_figures(figures: Mapping[str, Figure], folder: Path, formats: Sequence[str]) -> None:
    """Write the figures of a page into a folder, each in every format, as `folder/name.svg`."""
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        for form in formats:
            _save(_bars_of(figure) if isinstance(figure, Bars) else _plot_of(figure), folder / f"{name}.{form}")


def _bars_of(bars: Bars) -> Any:
    figure, (axes,) = _figure(bars.title)
    width = 0.8 / len(bars.names)
    for number, (name, look) in enumerate(zip(bars.names, bars.looks, strict=True)):
        found = [(place, row[number]) for place, (_, row) in enumerate(bars.rows)]
        known = [(place, bar) for place, bar in found if bar is not None]
        places = [place + (number - (len(bars.names) - 1) / 2) * width for place, _ in known]
        ends = [[bar.value - bar.low for _, bar in known], [bar.high - bar.value for _, bar in known]]
        axes.bar(places, [bar.value for _, bar in known], width * 0.94, yerr=ends, label=name, color=_colour(look))
    axes.set_xticks(range(len(bars.rows)), [label for label, _ in bars.rows])
    axes.set_ylim(0, 104)
    figure.legend(loc="outside lower center", ncols=min(len(bars.names), 6), frameon=False)
    return figure


def _plot_of(plot: Plot) -> Any:
    figure, (axes,) = _figure(plot.title, what=plot.y)
    for series in plot.series:
        x, y = zip(*series.points, strict=True)
        colour, mark = _colour(series.look), _MARKS[series.look % len(_MARKS)]
        line = "-" if series.joined else ""
        axes.plot(x, y, line, label=series.name, color=colour, marker=mark, markersize=4)
        if series.intervals:
            low, high = zip(*series.intervals, strict=True)
            if series.joined:
                axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            else:
                axes.vlines(x, low, high, color=colour, linewidth=1)
    axes.set_xlabel(plot.x)
    axes.set_xscale(
        "log" if "x" in plot.log else "linear", **({"base": 2} if plot.doubling and "x" in plot.log else {})
    )
    axes.set_yscale("log" if "y" in plot.log else "linear")
    if plot.y_range:
        axes.set_ylim(*plot.y_range)
    for border, _ in plot.borders[1:]:
        axes.axvline(border, color="#8c8c8c", linewidth=0.8, linestyle=":")
    if len(plot.series) > 1:
        figure.legend(loc="outside lower center", ncols=min(len(plot.series), 6), frameon=False)
    return figure


def _colour(look: int) -> str:
    return _COLOURS[look % len(_COLOURS)]
