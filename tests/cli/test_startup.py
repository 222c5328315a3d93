"""What a command loads: one that only shows something does not wait for torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

RUN = """
import json, os, sys
from pwoa.cli import app
sys.stdout = open(os.devnull, "w")
try:
    code = app(sys.argv[1:], standalone_mode=False)
except SystemExit as end:
    code = end.code
sys.stdout = sys.__stdout__
print(json.dumps([code or 0, sorted(sys.modules)]))
"""


def loaded(script: str, *arguments: str) -> tuple[int, list[str]]:
    """The exit code and the modules that a fresh process has loaded in the end."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout)
    return code, modules


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["prune", "--help"],
        ["evaluate", "--help"],
        ["report", "--help"],
        ["recipe"],
        ["recipe", "cifar10"],
        ["recipe", "cifar10-harp"],
        ["models", "list"],
        ["data", "list"],
    ],
    ids=" ".join,
)
def test_what_only_shows_something_loads_no_torch(arguments: list[str]) -> None:
    code, modules = loaded(RUN, *arguments)
    assert code == 0
    assert "pwoa.cli" in modules
    assert "torch" not in modules


def test_the_package_itself_loads_next_to_nothing() -> None:
    _, modules = loaded("import json, sys, pwoa; print(json.dumps([0, sorted(sys.modules)]))")
    assert [name for name in modules if name.partition(".")[0] == "pwoa"] == ["pwoa"]
    assert "torch" not in modules


def test_the_attacks_load_neither_data_nor_models() -> None:
    _, modules = loaded("import json, sys, pwoa.attacks.autoattack; print(json.dumps([0, sorted(sys.modules)]))")
    assert "pwoa.attacks.registry" in modules
    assert [name for name in modules if name.startswith(("pwoa.data", "pwoa.models"))] == []


def test_a_page_is_written_without_the_compiler() -> None:
    _, modules = loaded("import json, sys, pwoa.report.page; print(json.dumps([0, sorted(sys.modules)]))")
    assert "pwoa.report.sections" in modules
    assert [name for name in modules if name.startswith("torch._dynamo")] == []
