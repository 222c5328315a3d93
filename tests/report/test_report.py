"""Tables and plots show what was measured."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from pwoa.attacks.registry import attack_label
from pwoa.errors import InputError
from pwoa.evaluation.comparison import compare
from pwoa.evaluation.scores import FILE, save_verdicts
from pwoa.report.plots import accuracy_bars, security_curve
from pwoa.report.table import Row, accuracy_table, comparison_table, evaluation_table, result_table

ROOT = Path(__file__).resolve().parents[2]
ROWS = {"teacher": {"natural": 99.0, "pgd20": 97.09}, "naive": {"natural": 99.25, "pgd20": 4.42}}


def test_the_results_hold_what_the_project_claims_for_mnist() -> None:
    rows = json.loads((ROOT / "results" / "mnist-rate4.json").read_text(encoding="utf-8"))
    for seed in {row["seed"] for row in rows}:
        teacher, naive, ours = (
            next(row for row in rows if row["seed"] == seed and row["model"] == model)
            for model in ("teacher", "ce", "pwoa")
        )
        assert ours["pgd20"] >= 0.95 * teacher["pgd20"]
        assert naive["pgd20"] <= 0.05 * teacher["pgd20"]
        assert ours["rate"] >= 4
        assert naive["rate"] >= 4


@pytest.mark.parametrize(
    ("attack", "name"),
    [
        ("natural", "natural"),
        ("fgsm", "FGSM"),
        ("pgd20", "PGD-20"),
        ("cw", "CW"),
        ("cw50", "CW-50"),
        ("apgd-t", "APGD-T"),
        ("square-paper", "Square (paper)"),
        ("worst", "worst case"),
        ("pgd20@0.1", "PGD-20 at 0.1"),
        ("autoattack:fab-t", "FAB-T of AutoAttack"),
        ("autoattack@8/255", "AutoAttack at 8/255"),
    ],
)
def test_attacks_are_written_as_in_papers(attack: str, name: str) -> None:
    assert attack_label(attack) == name


def test_a_table_has_a_row_a_model_and_a_column_an_attack() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(accuracy_table(ROWS, "title"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line for line in text.splitlines() if "teacher" in line or "naive" in line]
    assert len(lines) == 2
    assert "97.09" in lines[0]
    assert "4.42" in lines[1]
    assert "PGD-20" in text


def test_a_plot_is_written(tmp_path: Path) -> None:
    accuracy_bars(ROWS, "title", tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def printed(table: Table, width: int = 80, styles: bool = False) -> list[str]:
    file = io.StringIO()
    Console(
        markup=False, width=width, file=file, force_terminal=styles, color_system="standard" if styles else None
    ).print(table)
    return file.getvalue().splitlines()


EVALUATION = (
    Row("natural", 900, 1000, 1.25),
    Row("autoattack", 400, 1000, 1234.5),
    Row("apgd-ce", 420, 1000, 200.0, indent=1),
    Row("worst", 0, 1000, None, strong=True),
)


def test_an_evaluation_has_a_row_an_attack_with_interval_and_seconds() -> None:
    lines = printed(evaluation_table(EVALUATION, "of a model"))
    cells = [[cell.rstrip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert "of a model" in lines[0]
    assert [row[0] for row in cells] == [" natural", " AutoAttack", "   APGD-CE", " worst case"]
    assert [row[1].strip() for row in cells] == ["90.00", "40.00", "42.00", "0.00"]
    assert [row[2].strip() for row in cells] == ["87.98 to 91.71", "37.01 to 43.07", "38.98 to 45.08", "0.00 to 0.38"]
    assert [row[3].strip() for row in cells] == ["1.2", "1,234.5", "200.0", ""]


def test_a_result_has_the_intervals_of_an_evaluation_for_every_model() -> None:
    models = {"teacher": {"natural": 90.0, "pgd20": 42.0}, "pruned 4×": {"natural": 40.0, "pgd20": 0.0, "cw": 29.0}}
    lines = printed(result_table(models, 1000, "of two models"))
    assert "of two models" in lines[0]
    assert " ".join(lines[2].split()) == "┃ attack ┃ teacher ┃ 95 % interval ┃ pruned 4× ┃ 95 % interval ┃"
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert rows == [
        ["natural", "90.00", "87.98 to 91.71", "40.00", "37.01 to 43.07"],
        ["PGD-20", "42.00", "38.98 to 45.08", "0.00", "0.00 to 0.38"],
        ["CW", "", "", "29.00", "26.27 to 31.89"],
    ]


def test_the_worst_case_is_bold_and_set_apart() -> None:
    lines = printed(evaluation_table(EVALUATION), styles=True)
    (number,) = (number for number, line in enumerate(lines) if "worst case" in line)
    assert lines[number - 1].startswith("├")
    assert "\x1b[1m" in lines[number]
    assert not any("\x1b[1m" in line for line in lines[3 : number - 1])
    assert sum(line.startswith("├") for line in lines) == 1


def test_a_comparison_fits_eighty_columns_and_tells_what_to_know(tmp_path: Path) -> None:
    numbers = torch.arange(10_000)
    sides = {"[a]": (numbers < 5000, 8 / 255), "b": (numbers < 3766, 4 / 255)}
    for name, (right, radius) in sides.items():
        (tmp_path / name).mkdir()
        about = {"data": "d", "threat": {"norm": "linf", "radius": radius, "step": 0.1}}
        verdicts = {"natural": numbers >= 0, "autoattack": right, f"apgd-{'ce' if name == 'b' else 't'}": right}
        save_verdicts(tmp_path / name / FILE, verdicts, about)
    lines = printed(comparison_table(compare(tmp_path / "[a]", tmp_path / "b")))
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert rows == [
        ["natural", "100.00", "100.00", "+0.00", "−0.03…+0.03", "0", "0", "1.000"],
        ["AutoAttack", "50.00", "37.66", "−12.34", "−12.98…−11.69", "1234", "0", "<0.001"],
        ["worst case", "50.00", "37.66", "−12.34", "−12.98…−11.69", "1234", "0", "<0.001"],
    ]
    text = "".join(line.rstrip() for line in lines)
    assert "[a]" in text
    assert "on the same 10,000 images" in text
    assert [line.rstrip() for line in lines[-2:]] == [
        "not compared, only A has: apgd-t",
        "not compared, only B has: apgd-ce",
    ]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Figure]:
    """The figures that have been saved."""
    monkeypatch.chdir(tmp_path)
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


CURVES = {"pgd20": [40.0, 90.0, 60.0], "autoattack": [30.0, 90.0, 50.0]}


def test_a_security_curve_is_written(tmp_path: Path) -> None:
    security_curve([0, 0.1], {"pgd20": [90, 10]}, "linf", tmp_path / "curve.png", title="title")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_security_curve_joins_its_points_from_small_to_large(drawn: list[Figure]) -> None:
    intervals = {"pgd20": [(35.0, 45.0), (85.0, 95.0), (55.0, 65.0)]}
    security_curve([8 / 255, 0, 4 / 255], CURVES, "linf", "unused", intervals=intervals)
    (axes,) = drawn[0].axes
    assert [line.get_label() for line in axes.lines] == ["PGD-20", "AutoAttack"]
    assert [np.asarray(line.get_xdata()).tolist() for line in axes.lines] == [[0, 4 / 255, 8 / 255]] * 2
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [[90, 60, 40], [90, 50, 30]]
    assert all(line.get_marker() not in ("", "None") for line in axes.lines)
    (shade,) = axes.collections
    corners = {tuple(corner) for corner in np.asarray(shade.get_paths()[0].vertices).tolist()}
    assert {(0, 85), (0, 95), (4 / 255, 55), (4 / 255, 65), (8 / 255, 35), (8 / 255, 45)} <= corners


@pytest.mark.parametrize(
    ("radii", "norm", "labels", "axis"),
    [
        ([8 / 255, 0, 4 / 255], "linf", ["0", "4/255", "8/255"], "l∞ radius"),
        ([0.3, 0, 40 / 255], "linf", ["0", "0.1569", "0.3"], "l∞ radius"),
        ([1, 0, 0.2], "l2", ["0", "0.2", "1"], "l2 radius"),
    ],
)
def test_radii_are_written_as_people_write_them(
    drawn: list[Figure], radii: list[float], norm: str, labels: list[str], axis: str
) -> None:
    security_curve(radii, CURVES, norm, "unused")
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == labels
    assert axes.get_xlabel() == axis


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_labels_of_many_radii_do_not_touch(drawn: list[Figure], norm: str) -> None:
    security_curve([k / 255 for k in range(33)], {"pgd20": [50.0] * 33}, norm, "unused")
    (axes,) = drawn[0].axes
    drawn[0].draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert len(boxes) > 6
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_a_security_curve_needs_a_point_a_radius(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the security curve of cw has 1 points for 2 radii"):
        security_curve([0, 0.1], {"pgd20": [90, 10], "cw": [90]}, "linf", tmp_path / "c.png")
    with pytest.raises(InputError, match="of pgd20 has 1 points for 2 radii"):
        security_curve([0, 0.1], {"pgd20": [90, 10]}, "linf", tmp_path / "c.png", intervals={"pgd20": [(1, 2)]})
    with pytest.raises(InputError, match="at least one radius and one attack"):
        security_curve([], {}, "linf", tmp_path / "c.png")
    assert not list(tmp_path.iterdir())
