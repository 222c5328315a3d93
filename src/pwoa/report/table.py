"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from pwoa.attacks.registry import attack_label
from pwoa.errors import counted
from pwoa.evaluation.comparison import worst_case
from pwoa.evaluation.scores import WORST, wilson

if TYPE_CHECKING:
    from pwoa.evaluation.comparison import Comparison
    from pwoa.evaluation.scores import Scores


_RATES = {"overall_rate": "overall", "macs_rate": "MACs"}


@dataclass(frozen=True)
class Row:
    """One line of an evaluation: of `n` images, how many are right under an attack, and what it took.

    indent: 1 for a component of the row above, 0 otherwise. strong: for the line that sums up, the worst case.
    """

    name: str
    right: int
    n: int
    seconds: float | None
    indent: int = 0
    strong: bool = False


def score_rows(scores: Scores) -> list[Row]:
    """Return an evaluation as rows: the attacks, AutoAttack's components below it, and the worst case of all."""
    rows: list[Row] = []
    for name, right in scores.right.items():
        rows.append(Row(name, int(right.sum()), len(right), scores.seconds.get(name)))
        if name == "autoattack":
            for part, after in scores.after.items():
                seconds = scores.seconds.get(f"{name}:{part}")
                rows.append(Row(part, int(after.sum()), len(after), seconds, indent=1))
    if len(scores.right) > 1:
        rows.append(Row(WORST, int(scores.worst.sum()), len(scores.worst), None, strong=True))
    return rows


def accuracy_table(
    rows: Mapping[str, Mapping[str, float]], title: str = "", fewer: Mapping[str, int] | None = None
) -> Table:
    """Return a table with a row for each model and a column for each attack; fewer: as `row_label` has it."""
    table = _table(title, [row_label(attack, fewer or {}) for attack in next(iter(rows.values()))])
    for name, scores in rows.items():
        table.add_row(name, *(f"{value:.2f}" for value in scores.values()))
    return table


def row_label(attack: str, fewer: Mapping[str, int]) -> str:
    """Return an attack's label, with the number of images where it was run on fewer than others."""
    return attack_label(attack) + (f", first {fewer[attack]:,}" if attack in fewer else "")


def result_table(
    models: Mapping[str, Mapping[str, float]], images: int, title: str = "", fewer: Mapping[str, int] | None = None
) -> Table:
    """Return a table with a row for each attack: each model's accuracy (percent) and its 95 % interval (Wilson's).

    fewer: how many of the images attacks were run on that were not run on all.
    """
    fewer = fewer or {}
    table = _table(title, [column for name in models for column in (name, "95 % interval")], first="attack")
    for attack in dict.fromkeys(attack for scores in models.values() for attack in scores):
        n = fewer.get(attack, images)
        cells = [
            _accuracy(round(scores[attack] * n / 100), n) if attack in scores else ("", "")
            for scores in models.values()
        ]
        if attack == WORST:
            table.add_section()
        style = "bold" if attack == WORST else None
        table.add_row(row_label(attack, fewer), *(cell for pair in cells for cell in pair), style=style)
    return table


def text_table(rows: Mapping[str, Mapping[str, str]], title: str = "", fewer: Mapping[str, int] | None = None) -> Table:
    """Return a table with a row for each name and a column for each attack; columns without any cell are left out.

    fewer: as `row_label` has it.
    """
    columns = [name for name in next(iter(rows.values())) if any(row[name] for row in rows.values())]
    heads = [(_RATES.get(column) or row_label(column, fewer or {})).replace(" ", "\n") for column in columns]
    table = _table(title, heads)
    for name, cells in rows.items():
        table.add_row(name, *(cells[column].replace(" ± ", "\n±") for column in columns))
    return table


def evaluation_table(rows: Sequence[Row], title: str = "") -> Table:
    """Return a table with a row for each attack: accuracy, its 95 % interval (Wilson's), and the time it took."""
    table = _table(title, ("accuracy %", "95 % interval", "seconds"), first="attack")
    images = max((row.n for row in rows), default=0)
    for row in rows:
        if row.strong:
            table.add_section()
        table.add_row(
            "  " * row.indent + row_label(row.name, {row.name: row.n} if row.n < images else {}),
            *_accuracy(row.right, row.n),
            "" if row.seconds is None else f"{row.seconds:,.1f}",
            style="bold" if row.strong else None,
            end_section=row.strong,
        )
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Return a table with a row for each attack: A, B, the difference with its 95 % interval, and McNemar's p.

    The worst case, under all attacks together, comes last.
    """
    title = f"A: {comparison.a}\nB: {comparison.b}\nAccuracy in % on the same {counted(comparison.images, 'image')}"
    table = _table(title, ("A", "B", "B − A", "95 % interval", "only\nA", "only\nB", "p"), first="attack")
    rows = [*comparison.rows, *filter(None, [worst_case(comparison)])]
    fewer = {row.attack: row.images for row in rows if row.images < comparison.images}
    for row in rows:
        if row.attack == WORST:
            table.add_section()
        low, high = row.interval
        table.add_row(
            row_label(row.attack, fewer),
            f"{row.accuracy_a:.2f}",
            f"{row.accuracy_b:.2f}",
            _signed(row.difference),
            f"{_signed(low)}…{_signed(high)}",
            str(row.only_a),
            str(row.only_b),
            f"{row.p_value:.3f}" if row.p_value >= 0.001 else "<0.001",
        )
    table.caption = "\n".join(comparison.notes) or None
    return table


def bench_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Return a table of one model with a row for each route and number of threads; a dash where it cannot be run."""
    names = ("threads", "ms", "95 %", "images\n/s", "memory\nMB", "size\nMB", "from\ntorch")
    table = _table(title, names, first="route")
    for row in rows:
        cells = ["–"] if "error" in row else _bench_cells(row)
        table.add_row(row["label"], str(row["threads"]), *cells)
    return table


def _bench_cells(row: Mapping[str, Any]) -> list[str]:
    """Return latency, throughput, memory, size, and how far the answers are from torch's."""
    memory = "" if row["memory"] is None else f"{row['memory'] / 1e6:.1f}"
    times = [f"{row[key]:.3g}" for key in ("milliseconds", "milliseconds_95")]
    speed, size = f"{row['images_per_second']:,.0f}", f"{row['bytes'] / 1e6:.2f}"
    return [*times, speed, memory, size, f"{row['max_difference']:.0e}"]


def _table(title: str, numbers: Sequence[str], first: str = "") -> Table:
    """Return a table of numbers, with names in the first column; where there is no room, cells are folded."""
    table = Table(title=title or None, title_justify="left", title_style="bold", caption_justify="left")
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _accuracy(right: int, n: int) -> tuple[str, str]:
    """Return the cells of an accuracy: percent, and the 95 % interval."""
    low, high = wilson(right, n)
    return f"{100 * right / n:.2f}", f"{low:.2f} to {high:.2f}"


def _signed(points: float) -> str:
    return f"{points:+.2f}".replace("-", "−")
