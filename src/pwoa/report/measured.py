"""The tables of the documents, built from the rows in results/."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pwoa.report.table import attack_name

_COLUMNS = ("natural", "fgsm", "pgd10", "pgd20", "cw")
_MODELS = {"teacher": "teacher (dense)", "ce": "naive (cross-entropy)", "pwoa": "PwoA"}


def mnist_table(path: Path) -> str:
    """results/mnist-rate4.json as Markdown: mean ± standard deviation over the seeds."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    seeds = len({row["seed"] for row in rows})
    head = ["model", "rate", *(attack_name(column) for column in _COLUMNS)]
    lines = [_line(head), _line(["---"] * len(head))]
    for model, name in _MODELS.items():
        own = [row for row in rows if row["model"] == model]
        lines.append(_line([name, f"{own[0]['rate']:.4g}", *(_spread(own, column) for column in _COLUMNS)]))
    device = rows[0]["device"]
    return (
        f"LeNet on the full MNIST, l∞ 0.3, rate 4, preset `mnist` (50 + 20 epochs), 10,000 test images, "
        f"{seeds} seeds, {device}; accuracy in percent, mean ± standard deviation:\n\n" + "\n".join(lines)
    )


def _spread(rows: Sequence[Mapping[str, Any]], column: str) -> str:
    values = [row[column] for row in rows]
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
