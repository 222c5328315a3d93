"""Tables for the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.table import Table

_NAMES = {"natural": "natural", "square": "Square", "autoattack": "AutoAttack"}


def attack_name(attack: str) -> str:
    """An attack as the papers write it: pgd20 → PGD-20."""
    return _NAMES.get(attack) or re.sub(r"([A-Z])(\d)", r"\1-\2", attack.upper())


def accuracy_table(rows: Mapping[str, Mapping[str, float]], title: str = "") -> Table:
    """One row a model, one column an attack."""
    table = Table(title=title or None, title_justify="left", title_style="bold")
    table.add_column("")
    for attack in next(iter(rows.values())):
        table.add_column(attack_name(attack), justify="right")
    for name, scores in rows.items():
        table.add_row(name, *(f"{value:.2f}" for value in scores.values()))
    return table
