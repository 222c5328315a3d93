"""The tables of short tries."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.laboratory import images_table


def test_a_row_stands_where_its_images_and_its_rate_are_and_others_are_left_out(tmp_path: Path) -> None:
    plain = {"rate": 16.0, "allocation": "lamp", "tried": "preset cifar10-robust, batches of 256", "cw": 45.0}
    reflected = f"{plain['tried']}, images shifted by up to 4 pixels over their reflection"
    rows = [
        plain,
        {**plain, "allocation": "learned", "cw": 1.0},
        {**plain, "tried": f"{plain['tried']}, temperature 5", "cw": 2.0},
        {**plain, "rate": 4.0, "cw": 3.0},  # with as many epochs as at rate 16
        {**plain, "rate": 4.0, "tried": f"{reflected}, fewer epochs and lower learning rates", "cw": 47.0},
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    lines = images_table(tmp_path / "rows.json").splitlines()
    assert lines[2] == "| shifted over black |  |  | 45.00 |  |"
    assert "| shifted by up to 4 pixels over their reflection | 47.00 |  |  |  |" in lines
    assert len(lines) == 7
