"""What a trace counts."""

from __future__ import annotations

import sys

import pytest

import pwoa
from benchmarks.trace import changes, first_calls
from pwoa.errors import counted, did_you_mean
from pwoa.storage.folder import rows_text, to_json


def test_a_function_of_the_package_counts_at_its_first_call() -> None:
    calls = first_calls(lambda: (counted(1, "image"), to_json({}), counted(2, "image"), sorted([2, 1])))
    assert calls == [("errors.py", "counted"), ("storage/folder.py", "to_json")]


def test_comprehensions_and_generator_expressions_do_not_count() -> None:
    calls = first_calls(lambda: (did_you_mean("x", ["far", "away"]), rows_text([{}])))
    assert calls == [("errors.py", "did_you_mean"), ("errors.py", "nearest"), ("storage/folder.py", "rows_text")]


def test_what_runs_while_a_module_is_imported_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        from pwoa.recipe.sections import Recipe

        Recipe()

    monkeypatch.setattr(pwoa, "recipe", sys.modules["pwoa.recipe"])  # afterwards it is this one again
    for name in [name for name in sys.modules if name.startswith("pwoa.recipe")]:
        monkeypatch.delitem(sys.modules, name)
    names = [name for _, name in first_calls(load)]
    assert "number" not in names  # called for the defaults of the sections, as their module is imported
    assert "TeacherRecipe.__post_init__" not in names


def test_changes_of_file_are_counted_between_first_calls() -> None:
    assert changes([("a.py", "f"), ("a.py", "g"), ("b.py", "f"), ("a.py", "h")]) == 2
    assert changes([]) == 0
