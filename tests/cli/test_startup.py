"""What a command loads: one that only shows something does not wait for torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pwoa.cli.options import VERBS, load_verb

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


VERB_MODULES = {f"pwoa.cli.{module}" for module, _ in VERBS.values()}


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["--help"], set()),
        (["--version"], set()),
        (["recipe"], {"pwoa.cli.show"}),
        (["data", "list"], {"pwoa.cli.show"}),
        (["card", "--help"], {"pwoa.cli.share"}),
    ],
    ids=str,
)
def test_only_the_verb_that_is_asked_for_is_loaded(arguments: list[str], needed: set[str]) -> None:
    code, modules = loaded(RUN, *arguments)
    assert code == 0
    assert VERB_MODULES.intersection(modules) == needed


@pytest.mark.parametrize("name", VERBS)
def test_the_list_of_verbs_says_what_the_verb_says_itself(name: str) -> None:
    verb = load_verb(name)
    assert verb.help.partition("\n\n")[0] == VERBS[name][1]


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
