"""How a command ends when it cannot go on: one line that steers no terminal, and an exit code."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import typer
from rich.table import Table
from safetensors.torch import save_file
from typer.testing import CliRunner

from pwoa.cli import app, options
from pwoa.cli.options import Verbs
from pwoa.errors import ProcessDied

FULL = Path("/dev/full")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pwoa", *arguments]
    return subprocess.run(command, capture_output=True, env=os.environ | environment, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["pruen"], "error: No such command 'pruen'. Did you mean 'prune', 'pretrain'?"),
        (["prune", "--rate", "much"], "error: Invalid value for '--rate': "),
        (["prune", "--nope"], "error: No such option: --nope"),
        (["prune", "--rate"], "error: Option '--rate' requires an argument."),
        (["evaluate"], "error: Missing argument 'model'."),
        (["card", "a", "b"], "error: Got unexpected extra argument"),
        (["prune", "--seed", "1" * 5000], "error: Invalid value for '--seed': "),
        (["recipe", "a\x1b[31m\nb"], r"error: no recipe 'a\x1b[31m\nb': "),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], line: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(line)
    assert (result.stderr.count("\n"), result.stdout) == (1, "")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError(), 2, "error: out of memory; take a smaller batch"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate"), 2, "error: out of memory; take a smaller"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "error: out of memory; take a"),
        (OSError(5, "Input/output error"), 2, "error: cannot read or write: Input/output error"),
        (ProcessDied("another process\x07 died"), 1, r"error: another process\x07 died"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_ends_a_verb_is_one_line_and_an_exit_code(error: BaseException, code: int, line: str) -> None:
    small = typer.Typer(cls=Verbs, pretty_exceptions_enable=False)

    @small.callback()
    def about() -> None:
        pass

    @small.command()
    def verb() -> None:
        raise error

    result = CliRunner().invoke(small, ["verb"])
    assert result.exit_code == code
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == bool(line)


def test_a_bug_stays_a_traceback() -> None:
    small = typer.Typer(cls=Verbs, pretty_exceptions_enable=False)
    small.callback()(lambda: None)

    @small.command()
    def verb() -> None:
        raise KeyError("a bug")

    assert isinstance(CliRunner().invoke(small, ["verb"]).exception, KeyError)


def test_no_arguments_show_the_help() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert "Usage: " in result.output


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_an_output_that_cannot_encode_everything_prints_the_rest(encoding: str, tmp_path: Path) -> None:
    settings = ["data.validation=100", "evaluation.images=5", "evaluation.attacks=natural", "evaluation.checks=false"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = run("evaluate", "embedded", "--data", "mnist-mini", *words, "--out", "e", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "5 test images, l? 0.3" in done.stdout.decode(encoding)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, sys.path)))


def test_a_full_disk_behind_the_output_is_one_line() -> None:
    with FULL.open("wb") as full:
        command = [sys.executable, "-m", "pwoa", "recipe", "mnist"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (2, b"error: cannot read or write: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_process_without_an_output_does_its_work(closed: str, tmp_path: Path) -> None:
    def ended(*words: str) -> int:
        command = shlex.join([sys.executable, "-m", "pwoa", *words])
        return subprocess.run(f"exec {command} {closed}", shell=True, timeout=60).returncode

    save_file({"a.weight": torch.zeros(3, 3)}, tmp_path / "net.safetensors")
    assert ended("recipe", "mnist") == 0
    assert ended("models", "inspect", "net.safetensors", "--skeleton", "net.py") == 0
    assert (tmp_path / "net.py").read_text().startswith('"""')
    assert ended("recipe", "nothing") == 2


TWICE = """
import os, signal, time
from pwoa.cli import app, main

@app.command()
def slow():
    try:
        print("in", flush=True)
        time.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGINT)

import atexit
atexit.register(os.kill, os.getpid(), signal.SIGINT)
main()
"""


def test_ctrl_c_again_and_again_is_answered_once() -> None:
    command = [sys.executable, "-c", TWICE, "slow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


def test_names_in_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    name = "\x1b]0;pwned\x07\x1b[31m[bold]net.weight\u202e"
    save_file({name: torch.zeros(3, 3)}, tmp_path / "net.safetensors")
    result = CliRunner().invoke(app, ["models", "inspect", str(tmp_path / "net.safetensors")])
    (tmp_path / "recipe.toml").write_text('data.name = "\\u001b[31m:boom:"\n', encoding="utf-8")
    second = CliRunner().invoke(app, ["recipe", str(tmp_path / "recipe.toml")])
    for output in (result.output, second.output):
        assert not any(sign in output for sign in ("\x1b", "\x07", "\u202e"))
    assert ":boom:" in second.output


def test_cells_of_a_table_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("layer", title="[red]a\x1b[2J")
    table.add_row("[bold]:boom:\x1b[31m\x9b")
    options.print_table(table)
    options.print_warnings([("check\x1b", "[red] and\nmore")])
    out = capsys.readouterr().out
    assert r"[red]a\x1b[2J" in out
    assert r"[bold]:boom:\x1b[31m\x9b" in out
    assert r"warning (check\x1b): [red] and\nmore" in out
    assert "\x1b" not in out
