"""A mistake in the options of a script is one line, as on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

MISTAKES = {
    "competition": ["--out", "rows.json", "--checkpoint", "nowhere.pt"],
    "engine": ["--checkpoint", "nowhere.pt", "--folder", "nowhere"],
    "hsic_error": ["--checkpoint", "nowhere.pt", "--folder", "nowhere"],
    "mnist_rate4": ["--recipe", "nowhere"],
    "public_checkpoints": ["--models", "nowhere", "--data", "nowhere"],
    "speed": ["--folder", "nowhere"],
    "teachers": ["--recipe", "nowhere", "--out", "rows.json"],
}


@pytest.mark.parametrize(("name", "options"), MISTAKES.items())
def test_a_mistake_is_one_line(
    script: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    options: list[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *options])
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    with pytest.raises(SystemExit) as caught:
        script(name).main()
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "nowhere" in said
