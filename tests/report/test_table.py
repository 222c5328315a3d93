"""Tables for the terminal, where there is little room."""

from __future__ import annotations

import io

from rich.console import Console

from pwoa.report.table import text_table

ATTACKS = ("natural", "pgd20", "cw", "autoattack")


def test_no_column_is_lost_beside_a_long_name() -> None:
    cells = {"overall_rate": "3.996", "macs_rate": "4"} | dict.fromkeys(ATTACKS, "98.70 ± 0.12")
    names = ["teacher", "pwoa, rate 16, mix 0, checkpoint resnet18-trades-of-the-whole-width-seed0.safetensors"]
    console = Console(file=io.StringIO(), width=80)
    console.print(text_table(dict.fromkeys(names, cells), "Accuracy"))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for head in ("overall", "MACs", "natural", "PGD-20", "CW", "AutoAttack"):
        assert f" {head} " in text
    first = "".join(line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│"))
    assert "resnet18-trades-of-the-whole-width-seed0.safetensors" in first
