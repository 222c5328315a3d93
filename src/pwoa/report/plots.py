"""Plots, with matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pwoa.errors import InputError
from pwoa.report.table import attack_name

_COLOURS = ("#4c72b0", "#c44e52", "#55a868", "#8172b3")


def accuracy_bars(rows: Mapping[str, Mapping[str, float]], title: str, path: str | Path) -> None:
    """A group of bars an attack, one bar a model, with the values on top."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'pwoa[plots]'") from None
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    attacks = list(next(iter(rows.values())))
    width = 0.8 / len(rows)
    for number, (name, scores) in enumerate(rows.items()):
        places = [group + (number - (len(rows) - 1) / 2) * width for group in range(len(attacks))]
        bars = axes.bar(places, [scores[a] for a in attacks], width * 0.94, label=name, color=_COLOURS[number % 4])
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
    axes.set_xticks(range(len(attacks)), [attack_name(attack) for attack in attacks])
    axes.set_ylabel("accuracy, %")
    axes.set_ylim(0, 108)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    figure.legend(loc="outside lower center", ncols=len(rows), frameon=False)
    figure.savefig(path, dpi=144)
