"""What the documents show is so: every command and every piece of code in them is run, with small stand-ins.

A fenced block without a language holds commands, one a line. Python that begins with `# name.py`, and TOML that comes
after the mention of a `name.toml`, are files that the other blocks find. Nothing in a fence is left out.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

import pwoa
from pwoa.cli import app
from pwoa.cli.options import VERBS, load_verb
from pwoa.methods import METHODS, find_method
from pwoa.models.border import as_logits
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.recipe import Recipe, flat, load_recipe
from pwoa.sweep.grid import expand
from scripts.update_reference import PAGES as REFERENCES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OURS = ("pwoa", "torchrun")
"""Commands that are run; torchrun as `-m pwoa` in one process."""
FOLLOWED = ("deployment.md", "deployment-c.md", "packed-format.md", "report.md", "bench.md")
"""Pages whose blocks can be run one after the other, in one folder."""
OF_OTHERS = (["ray", "start"], ["hf", "auth", "login"], ["git", "clone"], ["tensorboard", "--logdir"])
"""How commands begin that are not ours to run."""


class Block(NamedTuple):
    """A fenced block: its page, its first line, the heading above, its language, its text, and its file if any."""

    page: Path
    line: int
    heading: str
    language: str
    text: str
    file: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    blocks: list[Block] = []
    heading = mentioned = ""
    start, language, lines = 0, "", list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"\s*```(\w*)\s*$", line)
        if fence and not start:
            start, language, lines = number + 1, fence[1], []
        elif fence:
            header = re.match(r"# (\w+\.py)$", lines[0])
            name = (header[1] if header else "") if language == "python" else mentioned if language == "toml" else ""
            blocks.append(Block(page, start, heading, language, "\n".join(lines) + "\n", name))
            start, mentioned = 0, ""
        elif start:
            lines.append(line)
        else:
            heading = line.lstrip("# ") if line.startswith("#") else heading
            mentioned = ([mentioned, *re.findall(r"`(\w+\.toml)`", line)])[-1]
    assert not start, f"{page}:{start}: the block does not end"
    return blocks


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


class Command(NamedTuple):
    """A line of a block of commands, as words."""

    block: Block
    line: int
    words: list[str]

    def __str__(self) -> str:
        return f"{self.block.page.relative_to(ROOT)}:{self.line} {shlex.join(self.words)}"


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a block, one a line, without comments."""
    lines = (
        (number, shlex.split(line, comments=True)) for number, line in enumerate(block.text.splitlines(), block.line)
    )
    return [Command(block, number, words) for number, words in lines if words]


COMMANDS = [command for block in BLOCKS if not block.language for command in commands_of(block)]
RUN = list(dict.fromkeys(command.block for command in COMMANDS if command.words[0] in OURS))
PYTHON = [block for block in BLOCKS if block.language == "python"]
TOML = [block for block in BLOCKS if block.language == "toml"]


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The files that the documents show, by name."""
    return {block.file: block.text for block in BLOCKS if block.file}


def test_nothing_in_a_fence_is_left_out() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert 2 * len(BLOCKS) == len(re.findall(r"^\s*```", text, re.MULTILINE))
    assert {block.language for block in BLOCKS} <= {"", "python", "toml"}
    assert all(commands_of(block) for block in BLOCKS if not block.language)
    kinds = {*OURS, "make", "pip", "python", *(words[0] for words in OF_OTHERS)}
    assert {command.words[0] for command in COMMANDS} <= kinds


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("block", RUN, ids=str)
def test_commands_run_one_after_the_other(block: Block) -> None:
    run_commands(block)


def run_commands(block: Block) -> None:
    """Run our commands of a block, of which none may fail."""
    for command in commands_of(block):
        if command.words[0] in OURS:
            result = CliRunner().invoke(app, command.words[command.words.index("pwoa") + 1 :])
            if result.exception and not isinstance(result.exception, SystemExit):
                raise result.exception
            assert (result.exit_code, result.stderr) == (0, ""), str(command)


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.words[0] not in OURS], ids=str)
def test_a_command_of_another_program_names_what_there_is(command: Command) -> None:
    words = command.words
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(words[1:]) <= set(targets)
    elif words[0] == "pip":
        assert words[1] == "install"
        named = re.fullmatch(r"\.(\[([\w,]+)\])?", words[-1])
        assert named
        assert set((named[2] or "").split(",")) <= {"", *project["optional-dependencies"]}
    elif words[0] == "python":
        file = words[2].replace(".", "/") + ".py" if words[1] == "-m" else words[1]
        assert file in ("venv.py", "pytest.py") or (ROOT / file).is_file()
    else:
        assert any(words[: len(begin)] == begin for begin in OF_OTHERS)


@pytest.mark.parametrize("block", PYTHON, ids=str)
@pytest.mark.usefixtures("here")
def test_python_runs(block: Block, workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_python(block, monkeypatch)
    if check := CHECKS.get(block.heading):
        check(names, workshop)


def run_python(block: Block, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the Python of a block, and return the names that it has made."""
    module = ModuleType("document")
    monkeypatch.setitem(sys.modules, "document", module)  # where dataclasses look for their types
    tree = ast.increment_lineno(ast.parse(block.text), block.line - 1)
    exec(compile(tree, str(block.page), "exec"), vars(module))
    return vars(module)


@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.usefixtures("here")
def test_a_page_can_be_followed_from_the_top(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in (block for block in BLOCKS if block.page.name == name):
        if block.language == "python":
            run_python(block, monkeypatch)
        elif not block.language:
            run_commands(block)


def check_pruned(names: dict[str, Any], workshop: Any) -> None:
    """The teacher computes what was trained, so its normalisation is right; a quarter of it knows most images."""
    x, y = names["data"].test.batch(torch.arange(20))
    with torch.no_grad():
        assert torch.allclose(as_logits(names["teacher"], 10)(x), workshop.trained(x), atol=1e-5)
        assert (as_logits(names["result"].model, 10)(x).argmax(1) == y).float().mean() > 0.7
    assert names["result"].summary["rate"] == pytest.approx(4, rel=0.01)
    if "model" in names:
        assert fingerprint(names["model"]) == fingerprint(names["result"].model)


def check_shared(names: dict[str, Any], workshop: Any) -> None:
    """What was written or pushed is a whole model, and comes back."""
    assert isinstance(names["model"], nn.Module)
    if (folder := Path("net-x4")).exists():
        assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    else:
        assert workshop.pushed[-1] == "owner/net-x4"


CHECKS: dict[str, Callable[[dict[str, Any], Any], None]] = {
    "RobustBench": check_pruned,
    "timm": check_pruned,
    "Hugging Face transformers": check_pruned,
    "A model for others": check_shared,
}


def test_the_checks_are_of_headings_that_there_are() -> None:
    assert set(CHECKS) <= {block.heading for block in PYTHON}


@pytest.mark.parametrize("block", TOML, ids=str)
def test_toml_is_a_grid_or_a_recipe(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "block.toml"
    file.write_text(block.text, encoding="utf-8")
    if "grid" in tomllib.loads(block.text):
        assert len(expand(file)) > 1
    else:
        recipe = load_recipe(file)
        assert find_method(recipe.method).complete(recipe) != Recipe()


TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
SPANS = sorted({span for text in TEXT.values() for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)})


def options_of(command: Any) -> set[str]:
    """Return the options of a command, and of all below it."""
    below = getattr(command, "commands", {}).values()
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}.union(
        *map(options_of, below)
    )


@pytest.mark.parametrize("span", [span for span in SPANS if span.startswith(("pwoa ", "--"))])
def test_a_command_in_a_sentence_has_its_verb_and_options(span: str) -> None:
    command: Any = typer.main.get_command(app)
    command.commands = {name: load_verb(name) for name in VERBS}
    words = shlex.split(span)
    of_scripts: set[str] = set()
    if words[0] != "pwoa":
        scripts = (ROOT / "benchmarks").glob("*.py")
        of_scripts = {option for file in scripts for option in re.findall(r'"(--[\w-]+)"', file.read_text("utf-8"))}
    else:
        for word in words[1:]:
            if hasattr(command, "commands"):
                assert word in command.commands
                command = command.commands[word]
    assert {word for word in words if word.startswith("--")} <= {"--help", *options_of(command), *of_scripts}


@pytest.mark.parametrize("span", [span for span in SPANS if span.startswith("python -m ")])
def test_a_module_in_a_sentence_is_there(span: str) -> None:
    assert (ROOT / (span.split()[2].replace(".", "/") + ".py")).is_file()


def test_a_setting_in_a_sentence_is_one() -> None:
    kinds = {name: method.settings for name, method in METHODS.items() if method.settings}
    settings = {
        *flat(Recipe()),
        *(f"{name}.{f.name}" for name, kind in kinds.items() for f in dataclasses.fields(kind)),
    }
    sections = {setting.partition(".")[0] for setting in settings if "." in setting}
    named = {span for span in SPANS if re.fullmatch(rf"({'|'.join(sections)})\.(?!json$|toml$|md$)\w+", span)}
    assert len(named) > 20
    assert named <= settings


def test_a_function_in_a_sentence_is_there() -> None:
    named = {match[1] for span in SPANS if (match := re.match(r"pwoa\.(\w+)(\(|$)", span))}
    missing = {name for name in named if not hasattr(pwoa, name)}
    assert missing <= {"load_run", "from_pretrained"}  # what the page on models says they have become


def anchors_of(text: str) -> set[str]:
    """Return what a page's headings are called in links."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", TEXT[page])
    assert [target for target, _ in links if not (page.parent / target).exists()] == []
    texts = {(target, anchor): (page.parent / target if target else page) for target, anchor in links if anchor}
    assert [key for key, file in texts.items() if key[1] not in anchors_of(file.read_text(encoding="utf-8"))] == []


def test_pages_are_short_and_all_are_listed() -> None:
    pages = [page for page in PAGES if page.parent == ROOT / "docs" and page.name != "README.md"]
    long = {"results.md", "speed.md", "laboratory.md", *REFERENCES}
    assert len(TEXT[ROOT / "README.md"].splitlines()) <= 150
    assert all(len(TEXT[page].splitlines()) <= 200 for page in pages if page.name not in long)
    assert all(f"{page.name})" in TEXT[ROOT / "docs" / "README.md"] for page in pages)


def test_the_teachers_in_the_text_are_those_of_the_results() -> None:
    text = TEXT[ROOT / "docs" / "laboratory.md"]
    found = re.findall(r"`teacher-[\w-]+` a\s[\w-]+ with ([\d.]+) %", text)
    results = json.loads((ROOT / "results" / "teachers.json").read_text(encoding="utf-8"))
    assert len(found) == 3
    assert set(map(float, found)) <= {row["natural"] for row in results}
