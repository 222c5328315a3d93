"""The tables of the documents are those of the results."""

from __future__ import annotations

import json
from pathlib import Path

from pwoa.report.measured import oracle_table, with_tables

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_shows_what_was_measured() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("<!-- measured: ") == 2
    assert with_tables(text, ROOT / "results") == text  # else: python scripts/update_readme.py


def test_text_outside_the_marks_is_kept(tmp_path: Path) -> None:
    row = {
        "model": "net",
        "attack": "standard",
        "n": 1000,
        "seed": 0,
        "ours": 44.0,
        "oracle": 44.5,
        "seconds_ours": 2.0,
    }
    rows = [
        {**row, "seconds_oracle": 7.0, "device": "GPU"},
        {**row, "attack": "fab-t", "oracle": 43.96, "seconds_oracle": 3.0, "device": "GPU"},
        {**row, "seed": 1, "seconds_oracle": 7.0, "device": "GPU"},
        {**row, "n": 32, "attack": "square", "seconds_oracle": 7.0, "device": "GPU"},
        {**row, "n": 10000, "ours": 46.333, "oracle": None, "seconds_ours": 218.8, "device": "GPU"},
    ]
    (tmp_path / "autoattack-oracle.json").write_text(json.dumps(rows))
    text = with_tables("before\n<!-- measured: autoattack -->\nold\n<!-- /measured -->\nafter", tmp_path)
    assert text.startswith("before\n<!-- measured: autoattack -->\nRobust accuracy")
    assert text.endswith("<!-- /measured -->\nafter")
    assert "old" not in text
    table = oracle_table(tmp_path / "autoattack-oracle.json")
    assert "| net | GPU | 44.0 / 44.5 (3.5×) | 44.0 / 44.0 (1.5×) |" in table
    assert "10,000 test images of CIFAR-10, net, GPU: 46.33 % in 219 s" in table
