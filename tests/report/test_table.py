"""Tables for the terminal, where there is little room."""

from __future__ import annotations

import pytest

from pwoa.cli.options import print_table
from pwoa.report.table import bench_table, text_table

ATTACKS = ("natural", "pgd20", "cw", "strong")


def printed(table: object, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(table)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert text.splitlines()[-1].endswith("┘")
    assert "…" not in text
    return text


@pytest.mark.parametrize("width", [60, 80])
def test_no_column_of_a_sweep_is_lost_beside_a_long_name(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = {"overall_rate": "3.996", "macs_rate": "4"} | dict.fromkeys(ATTACKS, "98.70 ± 0.12")
    names = ["teacher", "pwoa, rate 16, mix 0, checkpoint resnet18-trades-of-the-whole-width-seed0.safetensors"]
    text = printed(text_table(dict.fromkeys(names, cells), "Accuracy", {"strong": 10}), width, capsys, monkeypatch)
    for head in ("overall", "MACs", "natural", "PGD-20", "CW", "strong,"):
        assert head in text
    assert [text.count(number) for number in ("98.70", "±0.12", "3.996")] == [8, 8, 2]
    first = "".join(line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│"))
    assert "resnet18-trades-of-the-whole-width-seed0.safetensors" in first


def test_no_figure_of_bench_is_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"label": "onnxruntime int8", "threads": 1, "milliseconds": 0.0912, "milliseconds_95": 0.12}
    row |= {"images_per_second": 11534, "memory": 4.7e6, "bytes": 2.3e6, "max_difference": 1e-7}
    text = printed(bench_table([row]), 60, capsys, monkeypatch)
    assert all(number in text for number in ("0.0912", "0.12", "11,534", "4.7", "2.30", "1e-07"))
