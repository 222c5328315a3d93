"""One process at a time in a run folder, and nothing left of it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pwoa.errors import InputError
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Run
from pwoa.storage import folder as storage

Make = Callable[..., Recipe]
HOLD = "import sys, time; from pathlib import Path; from pwoa.storage.folder import held\n"
HOLD += "with held(Path(sys.argv[1])):\n    print('in', flush=True)\n    time.sleep(60)\n"


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process, in the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    return process


def refused(run: Run) -> None:
    with pytest.raises(InputError) as caught, run.held():
        pass
    assert str(caught.value) == f"another process is working on {run.path}; wait for it or stop it"


def test_another_process_is_refused_and_a_killed_one_blocks_nobody(tmp_path: Path, quick: Make) -> None:
    run = Run(tmp_path / "runs" / "mine")
    with holder(run.path) as process:
        refused(run)
        process.kill()
    assert os.listdir(run.path) == [".lock"]
    assert not Run.choose(run.path, quick(), {}).started
    with run.held():
        refused(run)
        run.begin(quick(), {})
    assert sorted(os.listdir(run.path)) == ["recipe.toml", "teacher.json"]


def test_a_folder_stays_as_it_was(tmp_path: Path, quick: Make) -> None:
    run = Run(tmp_path / "runs" / "mine")
    with run.held():
        assert not run.started
        assert not run.finished
        Run.choose(run.path, quick(), {})
    assert os.listdir(tmp_path) == []
    run.path.mkdir(parents=True)
    with pytest.raises(RuntimeError), run.held():
        raise RuntimeError
    assert os.listdir(run.path) == []


def test_never_are_two_inside_though_the_file_comes_and_goes(tmp_path: Path) -> None:
    inside, most, entered = [0], [0], [0]
    end = time.monotonic() + 1

    def enter() -> None:
        while time.monotonic() < end:
            try:
                with Run(tmp_path / "run").held():
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    entered[0] += 1
                    time.sleep(0)
                    inside[0] -= 1
            except InputError as error:
                assert "another process" in str(error)  # noqa: PT017

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert entered[0] > 10
    assert not (tmp_path / "run" / ".lock").exists()


def test_where_there_are_no_locks_all_are_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    with Run(tmp_path / "run").held(), Run(tmp_path / "run").held():
        pass
    monkeypatch.setattr(storage, "fcntl", None)
    with Run(tmp_path / "none").held():
        assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to"), Run(tmp_path / "file" / "run").held():
        pass


def test_who_waits_is_let_in_when_the_other_ends(tmp_path: Path) -> None:
    inside = threading.Event()

    def wait() -> None:
        with storage.held(tmp_path, wait=True):
            inside.set()

    with holder(tmp_path) as process:
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not inside.wait(0.2)
        process.kill()
    waiting.join(20)
    assert inside.is_set()
