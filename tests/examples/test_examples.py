"""The examples run: most scripts with fewer images than they have by themselves, and the notebook."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import pwoa
from pwoa.methods import METHODS
from pwoa.models.architectures.registry import architecture_name
from pwoa.recipe import load_recipe, recorded_recipe
from scripts import run_notebook

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(file.stem for file in EXAMPLES.glob("*.py"))
BRIEF: dict[str, Any] = {
    "data.images": 200,
    "data.validation": 40,
    "search.epochs": 1,
    "finetune.epochs": 1,
    "teacher.minimum": 0,
    "evaluation.attacks": ["natural", "pgd2"],
    "evaluation.images": 8,
    "evaluation.strong": 0,
    "evaluation.checks": False,
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what examples write lie in a folder of the test."""
    monkeypatch.chdir(tmp_path)


def main_of(name: str) -> Any:
    return import_module(f"examples.{name}").main


def test_own_model() -> None:
    scores = main_of("own_model")()
    assert scores["pgd20"] > 90
    assert recorded_recipe("runs/examples/own_model/pruned").threat.radius == 0.05


def test_foreign_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    shared = main_of("foreign_checkpoint")(images=400, tested=10)
    assert "lenet, 10 classes, 3,274,634 parameters" in capsys.readouterr().out
    assert architecture_name(pwoa.load_model(shared)) == "lenet"


def test_security_curve() -> None:
    picture = main_of("security_curve")(training=400, images=10, radii=(0.0, 0.3))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_sweep() -> None:
    module = import_module("examples.sweep")
    brief = "".join(f'"{key}" = {json.dumps(value)}\n' for key, value in BRIEF.items())
    grid = re.sub(r"\[set\].*\[grid\]", f"[set]\n{brief}\n[grid]", module.GRID, flags=re.DOTALL)
    result = module.main(grid=grid.replace("[4, 16]", "[4]"))
    assert result.failed == {}
    assert len(result.table) == 3  # the teacher, and two methods
    assert "Robustness against training time" in Path("runs/examples/sweep/runs/report.html").read_text()


def test_the_grid_of_the_sweep_has_four_runs(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(import_module("examples.sweep").GRID)
    assert len(pwoa.sweep.expand(tmp_path / "grid.toml")) == 4


def test_new_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "noisy", None)  # so that it goes again
    result = main_of("new_method")(settings=BRIEF)
    assert result.summary["example_free"]
    assert result.summary["rate"] == pytest.approx(4, rel=0.01)
    assert "noisy" in result.metrics[0]["train"]


def test_every_script_is_short_tested_and_listed() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    listing = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) == 5
    for name in SCRIPTS:
        assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 80
        assert f"def test_{name}(" in tests
        assert f"`{name}.py`" in listing


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run_notebook.NOTEBOOK.read_text(encoding="utf-8"))
    return content


def outputs_of(notebook: dict[str, Any]) -> list[list[str]]:
    """Return for each code cell what kinds of output it has."""
    cells = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [[kind for output in outputs for kind in output.get("data", {"stdout": ""})] for outputs in cells]


def test_the_notebook_runs_and_shows_the_same_kinds_of_things(notebook: dict[str, Any]) -> None:
    """In the committed one every cell was run, in order, as it stands."""
    again = json.loads(json.dumps(notebook))
    for cell in again["cells"]:
        cell.pop("outputs", None)
    names = run_notebook.run(again, {"SETTINGS": BRIEF, "IMAGES": 8})
    assert isinstance(names["figure"], Figure)
    assert names["ours"].summary["images"] == 8
    assert outputs_of(again) == outputs_of(notebook)
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_the_committed_notebook_is_small_whole_and_of_the_demo(notebook: dict[str, Any]) -> None:
    text = run_notebook.NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert "/home/" not in text
    assert "/tmp" not in text
    assert text.count('"image/png"') == 4
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert sources[0].startswith("SETTINGS = {}")
    assert load_recipe("demo").sparsity.rate == 4  # as its text says
