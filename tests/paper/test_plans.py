"""The plans: their cells, the paper's own numbers beside them, and what a scale makes of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from pwoa.errors import InputError
from pwoa.methods import find_method
from pwoa.models.architectures.registry import build
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.models.load import load_model
from pwoa.paper.cells import Cell
from pwoa.paper.cost import Rates, time_text
from pwoa.paper.earlier import of_presets_now, of_these_teachers
from pwoa.paper.figures import _plane, place_of
from pwoa.paper.plan import ATTACKS, ORDER, SCALES, Plan, choose, load_plan, published, published_row
from pwoa.paper.rows import EARLIER, merged, settings_of, steady_seconds
from pwoa.paper.tables import Table, find, parameters, table_of
from pwoa.paper.teachers import Teachers, training_points
from pwoa.recipe import load_recipe
from tests.paper.tex import numbers_of

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "pwoa-paper.tex"
EXCERPT = r"""
\begin{table}
    \label{tab:overall-cifar10}
        PR & $\celoss$ & $\kdloss$ & $\hbarloss$  & Natural & FGSM & PGD$^{10}$ & PGD$^{20}$ & CW & AA \\
        \multirow{4}{*}{16$\times$}
            & \checkmark &&& 92.87 & 20.95 & 0.00 & 0.00 & 0.00 & 0.00 \\
            & \checkmark && \checkmark & \textbf{93.14} & 29.88 & 0.84 & 0.11 & 0.04 & 0.00 \\
            &&\checkmark && 88.30 & 60.77 & 48.80 & 46.32 & 45.76 & 42.01 \\
            &&\checkmark & \checkmark & 88.51 & \textbf{61.52} & \textbf{49.68} & \textbf{47.19} & 47.01 & 43.33\\
\end{table}
\begin{table}
    \label{tab:compare-cifar100}
        PR & Methods & Natural & FGSM & PGD$^{10}$ & PGD$^{20}$ & CW & AA & TT \\
        \multirow{3}{*}{8$\times$}
            & HYDRA       & 61.04 & 29.90 & 25.55 & 25.04 & 24.11 & 22.36 & 18.73 \\
            & \name (ours)& 61.58 & \textbf{36.39} & 33.09 & \textbf{32.50} & \textbf{28.29} & \textbf{26.46}& 17.05 \\
\end{table}
"""


def where(name: str) -> str:
    return "embedded" if name == "lenet-mnist-pgd-at" else f"/teachers/{name}.pt"


def plan(name: str, scale: str = "paper") -> Plan:
    return load_plan(name, scale, where)


def test_the_papers_numbers_are_those_of_its_source() -> None:
    rows = numbers_of(EXCERPT)
    assert len(rows) == 6
    assert all(row in published() for row in rows)
    if PAPER.is_file():
        whole = numbers_of(PAPER.read_text(encoding="utf-8"))
        assert whole == [row for row in published() if row["table"] != "apd"]
    assert all(row.get(attack) is None or 0 <= row[attack] <= 100 for row in published() for attack in ATTACKS)


@pytest.mark.parametrize("name", ORDER)
def test_every_line_of_the_papers_tables_has_a_cell(name: str) -> None:
    own = [row for row in published() if row["table"] == name]
    found = [published_row(name, cell.paper) for cell in plan(name).cells]
    if own:
        assert [row for row in own if row not in found] == []
        assert len(found) == len(own)


def test_cells_have_the_presets_of_their_methods_and_the_papers_attacks() -> None:
    for cell in plan("comparison-cifar100").cells:
        method = cell.recipe.method
        preset = load_recipe("cifar100" if method == "pwoa" else f"cifar100-{method}")
        assert cell.recipe.search == preset.search
        assert cell.recipe.finetune == preset.finetune
        assert (cell.recipe.training.mix, cell.recipe.teacher.architecture) == (0.2, "wrn-34-10")
        assert (cell.recipe.evaluation.attacks, cell.recipe.evaluation.long) == (("paper",), 1000)
    short = {cell.key.method: cell.recipe for cell in plan("comparison-cifar100", "short").cells}
    assert {(recipe.search.epochs, recipe.finetune.epochs) for recipe in short.values()} == {(10, 20)}
    assert short["hydra"].search.learning_rate == 0.1
    lite = [cell.recipe for cell in plan("lite").cells if cell.key.teacher is None]
    assert {(recipe.method, recipe.pretrain.epochs, recipe.pretrain.steps) for recipe in lite} == {("pgd-at", 100, 10)}
    assert [recipe.pretrain.lite for recipe in lite] == [4, 8, 16] * 3


def test_tables_share_runs_and_other_settings_are_other_runs() -> None:
    everything = {name: {cell.run for cell in plan(name).cells} for name in ORDER}
    assert len(everything["ablation-cifar100"] & everything["naive"]) == 6
    assert len(everything["ablation-cifar10"] & everything["mix"]) == 1
    ablations = everything["ablation-mnist"] | everything["ablation-cifar10"] | everything["ablation-cifar100"]
    assert everything["hsic-plane"] < ablations
    short = {cell.run for cell in plan("ablation-mnist", "short").cells}
    assert not short & everything["ablation-mnist"]
    seeded = load_plan("ablation-mnist", "short", where, ["training.seed=1"])
    assert not {cell.run for cell in seeded.cells} & short
    moved = load_plan("ablation-mnist", "short", where, ["data.folder=elsewhere", "training.device=cpu"])
    assert {cell.run for cell in moved.cells} == short


@pytest.mark.parametrize("name", ORDER)
def test_every_plan_can_be_rehearsed_with_what_comes_with_the_package(name: str) -> None:
    cells = plan(name, "quick").cells
    assert {(cell.recipe.data.name, cell.recipe.teacher.checkpoint) for cell in cells} <= {("mnist-mini", "embedded")}
    assert {cell.paper.rate for cell in cells} <= {1, 4}
    assert [cell.key.objective for cell in cells] == [cell.paper.objective for cell in cells]
    assert [cell.key.method for cell in cells] == [cell.paper.method for cell in cells]
    for cell in cells:
        find_method(cell.recipe.method).complete(cell.recipe)


def test_apd_has_its_second_teacher_by_file() -> None:
    (apd, _) = plan("apd").cells
    assert dict(apd.recipe.own)["teacher"] == "/teachers/resnet18-cifar10-natural.pt"
    assert apd.needs == ("resnet18-cifar10-trades", "resnet18-cifar10-natural")
    (apd, _) = load_plan("apd", "short", lambda name: f"/trained/{name}").cells
    assert dict(apd.recipe.own)["teacher"] == "/trained/resnet18-cifar10-natural/model.safetensors"


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"no table or figure 'ablation-mnits' \(did you mean 'ablation-mnist'"):
        choose(["ablation-mnits"])
    assert choose(["mix", "pretrained"]) == ["pretrained", "mix"]
    assert set(SCALES) == {"quick", "short", "paper"}


def test_the_cost_is_known_of_a_measured_device_and_learned_from_finished_runs() -> None:
    cells = plan("ablation-cifar10", "short").cells
    rates = Rates("NVIDIA H200")
    assert rates.where == "NVIDIA H200"
    naive, ours = rates.seconds(cells[0]), rates.seconds(cells[3])
    assert 200 < naive < ours < 1200
    long = Rates("NVIDIA H200").seconds(plan("ablation-cifar10").cells[3])
    assert long > ours + 100 * 7
    assert Rates("another").where == "NVIDIA H200"
    row = {"device": "another", "architecture": "wrn-34-10", "run": cells[3].run, "training_seconds": 10 * ours}
    learned = Rates("another", [{**row, "evaluation_seconds": 0.0}], cells)
    assert learned.where == "another"
    assert learned.seconds(cells[3]) == pytest.approx(10 * ours)
    assert [time_text(seconds) for seconds in (40, 720, 12240)] == ["40 s", "12 min", "3.4 h"]


def test_teachers_are_found_by_name_and_others_than_the_known_ones_are_told(tmp_path: Path) -> None:
    name = "wrn-34-10-cifar10-lbgat"
    (tmp_path / f"{name}.pt").write_bytes(b"weights")
    (tmp_path / "wrn-34-10-cifar10-trades").mkdir()
    (tmp_path / "wrn-34-10-cifar10-trades" / "model.safetensors").write_bytes(b"")
    teachers = Teachers(tmp_path, tmp_path / "trained", [{"name": name, "sha256": "00ff"}])
    assert teachers.where(name) == str(tmp_path / f"{name}.pt")
    assert teachers.find("wrn-34-10-cifar10-trades") == tmp_path / "wrn-34-10-cifar10-trades"
    assert teachers.where("lenet-mnist-pgd-at") == "embedded"
    assert teachers.missing([name, "lenet-mnist-pgd-at", "resnet18-cifar10-trades"]) == ["resnet18-cifar10-trades"]
    (note,) = teachers.notes([name])
    own = hashlib.sha256(b"weights").hexdigest()
    assert f"is another teacher than the one of the results (sha256 {own[:12]}…, there 00ff…)" in note
    (point,) = training_points(["wrn-34-10-cifar100-lbgat"], ["training.seed=3"])
    assert (point.recipe.method, point.recipe.data.name, point.recipe.training.seed) == ("lbgat", "cifar100", 3)
    with pytest.raises(InputError, match=r"--teachers .* is no folder"):
        Teachers(tmp_path / "nowhere", tmp_path)


def test_a_table_without_runs_still_shows_the_papers_numbers() -> None:
    table = table_of(plan("ablation-cifar10"), [])
    assert len(table.lines) == 1 + 12
    assert table.lines[0][:2] == ("wrn-34-10-cifar10-lbgat (dense)", "(88.24)")
    line = next(line for line in table.lines if line[0] == "4×: distillation + HSIC")
    assert line[1:7] == ("(88.51)", "(63.44)", "(53.54)", "(51.51)", "(50.89)", "(49.03)")
    assert line[7:9] == ("(93 %)", "")  # what the paper keeps of its teacher's 52.61


def rows_of(cells: Sequence[Cell], **more: Any) -> list[dict[str, Any]]:
    """Return a measured row for each cell, as a table of another name has it."""
    about = {"table": "another", "scale": "paper", "seed": 0, "n": 10_000, "n_autoattack": 1000}
    rest = {**about, "natural": 90.0, "autoattack": 50.0, "training_seconds": 60.0} | more
    return [
        {**asdict(cell.key), "run": cell.run, "settings": cell.settings, "epochs": "50+100", **rest} for cell in cells
    ]


def text_of(table: Table, name: str) -> str:
    return " | ".join(next(line for line in table.lines if line[0] == name))


def test_what_was_measured_for_one_table_is_shown_in_all_that_ask_for_it() -> None:
    known = rows_of(plan("ablation-cifar100").cells)
    (shared,) = {cell.run for cell in plan("lite").cells} & {row["run"] for row in known if row["rate"] == 4}
    for name in ("ablation-cifar100", "naive", "classification", "comparison-cifar100-mix0", "lite", "mix"):
        lines = table_of(plan(name), known).lines
        assert any(line[-1] == shared and line[1].startswith("90.00") for line in lines), name
    assert text_of(table_of(plan("naive"), known * 2), "4×: CE").endswith(known[0]["run"])  # and counts once


def test_a_line_is_the_mean_over_seeds_but_never_over_other_settings() -> None:
    cells = plan("ablation-mnist").cells[-1:]
    other = load_plan("ablation-mnist", "paper", where, ["finetune.learning_rate=0.01", "data.folder=here"]).cells[-1:]
    assert (cells[0].settings, other[0].settings) == ("", "finetune.learning_rate=0.01")
    assert load_plan("ablation-mnist", "paper", where, ["training.seed=1"]).cells[0].settings == ""
    seeds = [row for seed in (0, 1) for row in rows_of(cells, seed=seed, autoattack=50.0 + seed, epochs="50+20")]
    odd = rows_of(other, autoattack=10.0, epochs="50+20")
    own = plan("ablation-mnist")
    line = text_of(table_of(own, [*seeds, *odd]), "16×: distillation + HSIC")
    assert "| 50.50 ± 0.71 (77.21, −26.71) |" in line
    assert any(note.startswith("Where there is a ±") for note in table_of(own, [*seeds, *odd]).notes)
    changed = load_plan("ablation-mnist", "paper", where, ["finetune.learning_rate=0.01"])
    for rows in ([*seeds, *odd], odd):
        line = text_of(table_of(changed, rows), "16×: distillation + HSIC †")
        assert "| 10.00 (77.21, −67.21) |" in line
        assert line.endswith(f"{other[0].run} (finetune.learning_rate=0.01)")


def test_rows_of_other_setups_are_never_averaged() -> None:
    """Not of two scales with the same settings, nor of two earlier presets, nor of one and what is asked for now."""
    given = ["search.epochs=1", "finetune.epochs=1"]
    whole, short = (load_plan("ablation-mnist", scale, where, given) for scale in ("paper", "short"))
    rows = rows_of(whole.cells[-1:], autoattack=10.0, epochs="1+1")
    rows += rows_of(short.cells[-1:], autoattack=50.0, epochs="1+1", scale="short")
    assert rows[0]["settings"] == rows[1]["settings"] != ""
    assert "| 10.00 (77.21, " in text_of(table_of(whole, rows), "16×: distillation + HSIC †")
    assert "| 50.00 (77.21, " in text_of(table_of(short, rows), "16×: distillation + HSIC †")

    usual = plan("ablation-mnist")
    about = {"table": "ablation-mnist", "epochs": "50+20"}
    (now,) = rows_of(usual.cells[-1:], **about, autoattack=80.0, seed=2)
    first, second = (
        {**now, "run": f"before-{code}-seed0", "autoattack": own} for code, own in (("a", 10.0), ("b", 70.0))
    )
    line = text_of(table_of(usual, of_presets_now([first, second])), "16×: distillation + HSIC †")
    assert line.split(" | ")[6][:5] in ("10.00", "70.00")
    assert "| 80.00 (77.21, " in text_of(
        table_of(usual, of_presets_now([first, now, second])), "16×: distillation + HSIC"
    )


def test_a_table_shows_its_own_scale_and_else_the_longest_training() -> None:
    whole, short = plan("ablation-mnist"), plan("ablation-mnist", "short")
    long = rows_of(whole.cells[-1:], autoattack=80.0, epochs="50+20", settings="training.weight_decay=0.0001")
    long[0]["run"] = "by-hand-seed0"
    few = rows_of(short.cells[-1:], autoattack=50.0, epochs="10+10", scale="short")
    line = text_of(table_of(whole, [*few, *long]), "16×: distillation + HSIC †")
    assert "| 80.00 (77.21, " in line
    assert "| 50.00 (77.21, " in text_of(table_of(short, [*few, *long]), "16×: distillation + HSIC †")


def test_where_settings_are_asked_for_rows_with_others_are_not_shown() -> None:
    rows = rows_of(plan("ablation-mnist").cells[-1:], settings="training.weight_decay=0.0001", epochs="50+20")
    other = load_plan("ablation-mnist", "paper", where, ["training.batch=64"])
    assert "| (77.21) |" in text_of(table_of(other, rows), "16×: distillation + HSIC")


def test_settings_are_for_the_runs_whose_method_uses_them() -> None:
    """What only the trainings of teachers read makes no other runs; sections of other methods are not errors."""
    usual = {cell.run for cell in plan("ablation-mnist").cells}
    trained = load_plan("ablation-mnist", "paper", where, ["pretrain.epochs=30"])
    assert {cell.run for cell in trained.cells} == usual
    assert {cell.settings for cell in trained.cells} == {""}
    checked = ["evaluation.checks=false", "teacher.minimum=10"]
    assert load_plan("pretrained", "paper", where, checked).cells[0].run == plan("pretrained").cells[0].run
    apd, pwoa = load_plan("apd", "paper", where, ["apd.weight=0.5"]).cells
    assert (apd.settings, pwoa.settings) == ("apd.weight=0.5", "")
    with pytest.raises(InputError, match=r"--set: unknown key 'serach.epochs' \(did you mean 'search.epochs'"):
        load_plan("apd", "paper", where, ["serach.epochs=1"])
    with pytest.raises(InputError, match=r"unknown key 'recipe'"):
        load_plan("apd", "paper", where, ["recipe=mnist"])
    (point,) = training_points(["resnet18-cifar10-natural"], ["apd.weight=0.5", "pretrain.epochs=5"])
    assert point.recipe.pretrain.epochs == 5


@pytest.mark.parametrize(
    ("name", "setting", "told"),
    [
        ("ablation-mnist", "sparsity.rate=32", "rate; 4.0 would become 32.0"),
        ("mix", "training.mix=0.5", "mix; 0.0 would become 0.5"),
        ("apd", "method=hydra", "method; apd would become hydra"),
        ("ablation-mnist", "objective.hsic_x=0.0", ""),
        (
            "ablation-mnist",
            "objective.classification=0.1",
            "objective; distillation would become distillation + 0.1 CE",
        ),
    ],
)
def test_what_tells_lines_apart_cannot_be_set(name: str, setting: str, told: str) -> None:
    if told:
        with pytest.raises(InputError, match=f"--set: the lines of {name} are told apart by the {re.escape(told)}"):
            load_plan(name, "paper", where, [setting])
    else:
        assert load_plan(name, "paper", where, [setting]).cells


def test_runs_of_an_earlier_preset_are_marked_and_averaged_with_no_others() -> None:
    cells = plan("ablation-mnist").cells[-1:]
    (cell,) = cells
    seeded = load_plan("ablation-mnist", "paper", where, ["training.seed=1"]).cells[-1]
    assert (seeded.setup, seeded.run) == (cell.setup, f"{cell.setup}-seed1")
    about = {"table": "ablation-mnist", "epochs": "50+20"}
    old = rows_of(cells, **about, autoattack=10.0) + rows_of(cells, **about, autoattack=10.0, seed=1)
    old = [{**row, "run": f"before-seed{row['seed']}"} for row in old]
    new = rows_of(cells, **about, autoattack=50.0) + rows_of(cells, **about, autoattack=60.0, seed=1)
    new[1]["run"] = seeded.run
    marked = of_presets_now([*old, *new])
    assert [settings_of(row) for row in marked] == [EARLIER, EARLIER, "", ""]
    line = text_of(table_of(plan("ablation-mnist"), marked), "16×: distillation + HSIC")
    assert "| 55.00 ± 7.07 (77.21, " in line
    line = text_of(table_of(plan("ablation-mnist"), of_presets_now(old)), "16×: distillation + HSIC †")
    assert "| 10.00 ± 0.00 (77.21, " in line
    assert line.endswith("(an earlier preset)")
    changed = load_plan("ablation-mnist", "paper", where, ["finetune.learning_rate=0.01"])
    assert "| (77.21) |" in text_of(table_of(changed, of_presets_now(old)), "16×: distillation + HSIC")
    by_hand = rows_of(changed.cells[-1:], **about)
    dense = [{**about, "method": "teacher", "run": "lenet-mnist-pgd-at-00000000", "scale": "paper"}]
    assert of_presets_now([*by_hand, *dense]) == [*by_hand, *dense]


def test_a_short_run_is_not_shown_in_place_of_whole_ones_of_another_file() -> None:
    cells = plan("ablation-mnist").cells[-1:]
    whole = rows_of(
        cells, epochs="50+20", autoattack=80.0, settings="training.weight_decay=0.0001", source="other.json"
    )
    short = rows_of(cells, epochs="1+1", autoattack=12.0, settings="finetune.epochs=1")
    line = text_of(table_of(plan("ablation-mnist"), [*short, *whole]), "16×: distillation + HSIC †")
    assert "| 80.00 (77.21, " in line


def test_an_attack_of_fewer_seeds_than_the_rest_of_the_line_is_marked() -> None:
    cells = plan("ablation-mnist").cells[-1:]
    rows = rows_of(cells, epochs="50+20") + rows_of(cells, epochs="50+20", seed=1, autoattack=None)
    table = table_of(plan("ablation-mnist"), rows)
    assert "| 90.00 ± 0.00 (98.59, −8.59) |" in text_of(table, "16×: distillation + HSIC")
    assert "| 50.00 (77.21, −27.21) ‡ |" in text_of(table, "16×: distillation + HSIC")
    assert "‡ of fewer seeds than the rest of the line." in table.notes
    assert "‡" not in table.latex()


def test_the_plane_has_one_run_of_each_objective() -> None:
    """That of the plan, or the last of those that are like it, and never several in a row."""
    (cell, *_) = cells = plan("hsic-plane").cells
    own: dict[str, Any] = {"table": "hsic-plane", "dataset": cell.key.dataset, "architecture": cell.key.architecture}
    own |= {"teacher": cell.key.teacher, "objective": cell.key.objective, "rate": cell.key.rate}
    points = [
        {**own, "run": run, "stage": stage, "epoch": 0, "hsic_x": float(number), "hsic_y": 1.0}
        for number, run in enumerate(["older", "old"])
        for stage in ("start", "search", "finetune")
    ]
    panels = _plane(plan("hsic-plane"), points)
    (lines,) = panels.values()
    assert lines[str(cell.key.objective)].x == [1.0] * 3
    mine = [{**point, "run": cell.run, "hsic_x": 7.0} for point in points[:3]]
    (lines,) = _plane(plan("hsic-plane"), [*mine, *points]).values()
    assert lines[str(cell.key.objective)].x == [7.0] * 3
    assert len(cells) > 1


def test_the_seconds_of_the_first_epoch_of_a_stage_are_not_those_of_compiling() -> None:
    seconds = {"search": [50.0, 2.0, 4.0], "finetune": [30.0, 5.0], "scores": [7.0]}
    lines = [{"stage": stage, "seconds": value} for stage, values in seconds.items() for value in values]
    assert steady_seconds(lines) == pytest.approx(3 * 3 + 2 * 5 + 7)
    cells = plan("mix").cells[:1]
    for rows, place in ((rows_of(cells, steady_seconds=26.0), 26.0), (rows_of(cells), None)):
        found = find(rows, cells[0])
        assert found is not None
        assert place_of("training_seconds", cells[0], found) == place


def test_other_tables_do_not_show_what_was_measured_for_the_curves() -> None:
    table, curves = plan("ablation-mnist", "quick"), plan("security", "quick")
    dense = {
        "table": "ablation-mnist",
        "run": "lenet-mnist-pgd-at",
        "scale": "quick",
        "seed": 0,
        "n": 200,
        "epochs": "0",
    }
    dense |= asdict(table.cells[0].key.dense) | {"fgsm": 99.0, "pgd20": 97.0, "natural": 100.0, "strong": 94.0}
    own = rows_of(table.cells, table="ablation-mnist", scale="quick", n=200, epochs="1+2", autoattack=None, strong=80.0)
    rows = [dense, *own, {**dense, "table": "security", "fgsm": None, "pgd20": None}]
    rows += rows_of(curves.cells, table="security", scale="quick", n=200, epochs="1+2", autoattack=None, strong=40.0)
    lines = table_of(table, rows).lines
    assert (lines[0][2].split()[0], lines[0][4].split()[0]) == ("99.00", "97.00")
    assert [line[6].split()[0] for line in lines[1:]] == ["80.00"] * 4
    assert {line[3].split()[0] for line in table_of(curves, rows).lines[1:]} == {"40.00"}


def test_a_teacher_measured_by_other_settings_is_another_line() -> None:
    wide = ["threat.radius=0.2", "finetune.epochs=3"]
    usual, other = plan("ablation-mnist"), load_plan("ablation-mnist", "paper", where, wide)
    before, now = usual.cells[0].dense, other.cells[0].dense
    assert (before.settings, now.settings) == ("", "threat.radius=0.2")  # it is not trained
    (dense,) = (cell for cell in load_plan("pretrained", "paper", where, wide).cells if cell.run == now.run)
    assert dense.settings == now.settings
    rows = [*rows_of([before], epochs="0", autoattack=90.0), *rows_of([now], epochs="0", autoattack=95.0)]
    rows = [row | dict.fromkeys(("fgsm", "pgd10", "pgd20", "cw"), 97.0) for row in rows]
    assert before.run != now.run
    assert merged(rows[:1], rows[1:]) == rows
    name = "lenet-mnist-pgd-at (dense)"
    assert "| 90.00 (91.57, −1.57) |" in text_of(table_of(usual, rows), name)
    assert "| 95.00 (91.57, +3.43) |" in text_of(table_of(other, rows), f"{name} †")
    assert text_of(table_of(other, rows), f"{name} †").endswith(f"{now.run} (threat.radius=0.2)")
    assert "| (91.57) |" in text_of(table_of(other, rows[:1]), name)  # at another radius it says nothing
    rows[1] |= {"autoattack": None}
    assert "| (91.57) |" in text_of(table_of(other, rows), f"{name} †")


def test_settings_for_all_runs_are_in_them_as_they_are_trained() -> None:
    given = ["search.full_rate=16", "finetune.epochs=3"]
    for cell in load_plan("naive", "quick", where, given).cells:
        assert cell.recipe.finetune.epochs == 3
        assert cell.recipe == find_method(cell.recipe.method).complete(cell.recipe)
        assert cell.settings == "search.full_rate=16.0, finetune.epochs=3"
        assert cell.point.notes
    assert plan("naive", "quick").cells[0].point.notes == ()


def test_rows_of_another_teacher_of_the_same_name_are_left_out() -> None:
    old, new, older = ({"teacher": "a", "fingerprint": text} for text in ("old", "new", None))
    beside: dict[str, Any] = {"teacher": "b", "fingerprint": "b"}
    lite: dict[str, Any] = {"teacher": None}
    embedded: dict[str, Any] = {"teacher": "lenet-mnist-pgd-at"}  # of which there is but one
    everything = [older, old, new, beside, lite, embedded]
    assert of_these_teachers(everything, lambda name: {"a": "old"}.get(name)) == [old, beside, lite, embedded]
    assert of_these_teachers(everything, lambda name: None) == [older, new, beside, lite, embedded]
    assert Teachers(None, Path("nowhere")).fingerprint("lenet-mnist-pgd-at") == fingerprint(load_model("embedded"))[:12]
    assert Teachers(None, Path("nowhere")).fingerprint("resnet18-cifar10-trades") is None


def test_a_new_row_takes_the_place_of_an_old_one_of_the_same_run_and_teacher() -> None:
    cells = plan("naive").cells[:1]
    (old,), (new,) = rows_of(cells, strong=10.0), rows_of(cells, strong=90.0)
    assert merged([old], [new]) == [new]
    new |= {"fingerprint": "f"}
    other = {**new, "fingerprint": "g"}
    assert merged([new], [other]) == [new, other]
    found = find([old, {**new, "fingerprint": None}], cells[0])
    assert found is not None
    assert len(found.rows) == 1


def test_a_teacher_is_the_one_with_the_normalisation_that_is_given(tmp_path: Path) -> None:
    plain = Teachers(None, tmp_path)
    assert plain.fingerprint("nobody-knows-it") is None
    with pytest.raises(InputError, match=r"teacher.checkpoint is what the plans say; give --teachers"):
        Teachers(None, tmp_path, (), ["teacher.checkpoint=mine.pt"])
    torch.save(build("resnet18", 10, 3).state_dict(), tmp_path / "resnet18-cifar10-trades.pt")
    name, given = "resnet18-cifar10-trades", ["teacher.mean=0.5,0.5,0.5", "teacher.std=0.2,0.2,0.2"]
    first, second = (Teachers(tmp_path, tmp_path / "none", (), settings).fingerprint(name) for settings in ([], given))
    assert first != second


def test_the_parameters_are_the_papers_but_where_it_is_said() -> None:
    table = parameters()
    assert len(table.lines) == 10
    for name, setting, *values in table.lines:
        for value in values:
            here, paper = value.removesuffix(")").split(" (")
            same = here == paper.lower() or (paper[0].isdigit() and float(here) == float(paper))
            assert same or name.endswith("†"), (setting, value)


def test_what_is_shipped_is_json_and_flat() -> None:
    assert all(not isinstance(value, (list, dict)) for row in published() for value in row.values())
    assert json.loads(json.dumps(published())) == published()
