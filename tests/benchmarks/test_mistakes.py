"""A mistake in the options of a script is one line, as on the command line."""

from __future__ import annotations

import importlib
import sys

import pytest

MISTAKES = {
    "engine": ["--checkpoint", "nowhere.pt", "--data-folder", "nowhere"],
    "hsic_error": ["--checkpoint", "nowhere.pt", "--data-folder", "nowhere"],
    "launch": ["--recipe", "nowhere"],
    "mnist_rate4": ["--recipe", "nowhere"],
    "public_checkpoints": ["--models", "nowhere", "--data", "nowhere"],
    "speed": ["--data-folder", "nowhere"],
    "teachers": ["--recipe", "nowhere", "--out", "rows.json"],
}


@pytest.mark.parametrize(("name", "options"), MISTAKES.items())
def test_a_mistake_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, options: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *options])
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(f"benchmarks.{name}").main()
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert "nowhere" in message
