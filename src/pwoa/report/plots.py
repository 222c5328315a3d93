"""Plots, with matplotlib (the extra `plots`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pwoa.errors import InputError
from pwoa.report.table import attack_name, norm_name

_COLOURS = ("#4c72b0", "#c44e52", "#55a868", "#8172b3", "#dd8452", "#64b5cd", "#937860", "#8c8c8c")
_SHADES = ("#4c72b0", "#8fa8d0", "#e8b48f", "#dd8452")
_CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
_MARKS = "os^Dv<>"
_LETTERS = 80  # side by side below the axes


def accuracy_bars(rows: Mapping[str, Mapping[str, float]], title: str, path: str | Path) -> None:
    """A group of bars an attack, one bar a model, with the values on top."""
    figure, (axes,) = _figure(title)
    attacks = list(next(iter(rows.values())))
    width = 0.8 / len(rows)
    for number, (name, scores) in enumerate(rows.items()):
        places = [group + (number - (len(rows) - 1) / 2) * width for group in range(len(attacks))]
        colour = _COLOURS[number % len(_COLOURS)]
        bars = axes.bar(places, [scores[a] for a in attacks], width * 0.94, label=name, color=colour)
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
    axes.set_xticks(range(len(attacks)), [attack_name(attack) for attack in attacks])
    axes.set_ylim(0, 108)
    figure.legend(loc="outside lower center", ncols=len(rows), frameon=False)
    figure.savefig(path, dpi=144)


@dataclass
class Panel:
    """Accuracies of methods pruned from one teacher: by method and mix ratio the mean and deviation, in percent."""

    title: str
    teacher: float | None
    methods: dict[str, dict[float, tuple[float, float]]] = field(default_factory=dict)


def mix_bars(panels: Sequence[Panel], attack: str, path: str | Path) -> None:
    """A group of bars a method, one bar a mix ratio that it has, with the values on top; the teacher is a line."""
    if not panels:
        raise InputError("there is nothing to draw: no two methods were measured alike")
    figure, every = _figure("", len(panels), f"accuracy under {attack_name(attack)}, %")
    mixes = sorted({mix for panel in panels for own in panel.methods.values() for mix in own})
    colours = dict(zip(mixes, itertools.cycle(_SHADES)))
    legend: dict[str, Any] = {}
    for axes, panel in zip(every, panels, strict=True):
        width = 0.84 / max(map(len, panel.methods.values()))
        for number, own in enumerate(panel.methods.values()):
            for place, mix in enumerate(sorted(own)):
                mean, deviation = own[mix]
                x = number + (place - (len(own) - 1) / 2) * width
                bar = axes.bar(x, mean, width * 0.94, yerr=deviation, color=colours[mix], ecolor="#444444")
                axes.bar_label(bar, fmt="%.0f", fontsize=7, padding=2, bbox=_CLEAR)
                legend[f"mix ratio {mix:g}"] = bar[0]
        if panel.teacher is not None:
            legend["dense teacher"] = axes.axhline(
                panel.teacher, color="#444444", linestyle="--", linewidth=0.8, zorder=0
            )
        names = [name.replace(" (", "\n(") for name in panel.methods]
        axes.set_xticks(range(len(names)), names, fontsize=8)
        axes.set_title(panel.title, fontsize=9, loc="left")
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
    shown = sorted(legend)
    figure.legend([legend[name] for name in shown], shown, loc="outside lower center", ncols=len(shown), frameon=False)
    figure.savefig(path, dpi=144)


def security_curve(
    radii: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    norm: str,
    path: str | Path,
    *,
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    title: str = "",
) -> None:
    """Accuracy in percent over the radius of the threat, one line an attack, in the order of `radii` or any other.

    intervals: by the name of a curve the low and high end of each of its points, in percent; drawn as a shade.
    """
    intervals = intervals or {}
    _check_curves(radii, curves, intervals)
    figure, (axes,) = _figure(title)
    order = sorted(range(len(radii)), key=radii.__getitem__)
    x = [radii[place] for place in order]
    for number, (name, accuracy) in enumerate(curves.items()):
        look = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKS[number % len(_MARKS)]}
        axes.plot(x, [accuracy[place] for place in order], label=attack_name(name), markersize=5, clip_on=False, **look)
        if name in intervals:
            low, high = zip(*(intervals[name][place] for place in order), strict=True)
            axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set_xticks(*_labels(x, norm))
    axes.set_xlabel(f"{norm_name(norm)} radius")
    axes.set_ylim(0, 100)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=min(len(curves), 6), frameon=False)
    figure.savefig(path, dpi=144)


def _figure(title: str, panels: int = 1, what: str = "accuracy, %") -> tuple[Any, list[Any]]:
    """A figure in the look of all, and the axes of its panels, side by side; what: the values they have in common."""
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
    """Which of the sorted radii get a label, so that labels do not touch, and what it is."""
    whole = norm == "linf" and all(math.isclose(255 * radius, round(255 * radius), abs_tol=1e-5) for radius in radii)
    labels = [f"{255 * radius:.0f}/255" if whole and radius else f"{radius:.4g}" for radius in radii]
    apart = (radii[-1] - radii[0]) * (max(map(len, labels)) + 1) / _LETTERS
    shown = [0]
    for place, radius in enumerate(radii):
        if radius - radii[shown[-1]] > apart:
            shown.append(place)
    return [radii[place] for place in shown], [labels[place] for place in shown]
