"""Where the runs of a sweep are carried out: processes of this machine; a stand-in for Ray."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pwoa.sweep.cluster
import pwoa.sweep.local
from pwoa.errors import MEMORY, InputError, ProcessDied, Terminated
from pwoa.recipe import Recipe
from pwoa.sweep import child
from pwoa.sweep.cluster import run_on_ray
from pwoa.sweep.local import Task, environments, run_here

STUB = """#!/bin/sh
# Stands for Python with code that carries out a run; then WORD FOLDER TEACHER.
echo "$3 $CUDA_VISIBLE_DEVICES" >> calls
case $3 in
  wrong) echo "what it did"; echo "error: no such thing" >&2; echo '{"error": "no such thing"}' > "$4.failure.json"
    exit 2;;
  once) [ -e killed ] || { touch killed; kill -9 $$; };;
  always) kill -9 $$;;
  ended) exit 143;;
  garbled) printf '\\377\\n' > "$4.failure.json"; exit 2;;
  long) echo $$ > pid; exec sleep 20;;
  stubborn) trap '' INT TERM; echo $$ > pid; exec sleep 20;;
esac
"""


@pytest.fixture
def ended() -> dict[str, str | None]:
    return {}


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """`sys.executable` is a script that notes its calls; gives them."""
    script = tmp_path / "python"
    script.write_text(STUB)
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(script))
    return lambda: (tmp_path / "calls").read_text().splitlines()


def tasks(folder: Path, *words: str) -> list[Task]:
    """A task for each word, which is in the place of its recipe."""
    return [Task(Path(word), folder / f"{number}", folder / f"{number}.log") for number, word in enumerate(words)]


@contextmanager
def handled(*numbers: signal.Signals, by: Any) -> Iterator[None]:
    before = {number: signal.signal(number, by) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextmanager
def sending(begun: Path, *names: str) -> Iterator[threading.Event]:
    """Inside, this process is sent signals, one after the other, when there is something in a file.

    The last of several is sent again until what is given is set, as a person does; a busy machine takes two for one.
    """
    over = threading.Event()

    def send() -> None:
        while not (begun.exists() and begun.read_text().strip()):
            time.sleep(0.01)
        for name in names:
            os.kill(os.getpid(), getattr(signal, name))
            time.sleep(0.5)
        while len(names) > 1 and not over.wait(2):
            os.kill(os.getpid(), getattr(signal, names[-1]))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    yield over
    sender.join()


class TestHere:
    def test_a_failure_is_told_as_the_run_left_it(
        self, tmp_path: Path, stub: Callable[[], list[str]], ended: dict[str, str | None]
    ) -> None:
        run_here(tasks(tmp_path, "right", "wrong"), lambda task, why: ended.update({task.name: why}), retries=2)
        assert ended == {"0": None, "1": "no such thing"}
        assert (tmp_path / "1.log").read_text() == "what it did\nerror: no such thing\n"
        assert len(stub()) == 2  # what failed would fail again

    @pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '"a"', "3"])
    def test_a_run_that_left_no_reason_is_told_with_its_log(self, tmp_path: Path, text: str | None) -> None:
        (task,) = tasks(tmp_path, "wrong")
        if text is not None:
            (tmp_path / "0.failure.json").write_text(text)
        assert task.reason() == f"it ended without a word; see {tmp_path / '0.log'}"

    def test_a_killed_process_is_started_again(
        self, tmp_path: Path, stub: Callable[[], list[str]], ended: dict[str, str | None]
    ) -> None:
        words = ("once", "always", "ended")
        run_here(tasks(tmp_path, *words), lambda task, why: ended.update({task.name: why}), retries=2)
        assert ended == {"0": None, "1": "killed by signal 9, 3 times", "2": "killed by signal 15, 3 times"}
        assert [line.split()[0] for line in stub()] == ["once"] * 2 + ["always"] * 3 + ["ended"] * 3

    def test_another_try_adds_to_the_log(
        self, tmp_path: Path, stub: Callable[[], list[str]], ended: dict[str, str | None]
    ) -> None:
        (tmp_path / "0.log").write_text("epoch 1\n")
        run_here(tasks(tmp_path, "wrong"), lambda task, why: ended.update({task.name: why}))
        assert (tmp_path / "0.log").read_text() == "epoch 1\nwhat it did\nerror: no such thing\n"

    def test_a_reason_may_be_garbled(
        self, tmp_path: Path, stub: Callable[[], list[str]], ended: dict[str, str | None]
    ) -> None:
        run_here(tasks(tmp_path, "garbled"), lambda task, why: ended.update({task.name: why}))
        assert ended == {"0": f"it ended without a word; see {tmp_path / '0.log'}"}

    @pytest.mark.parametrize(
        ("word", "signals", "patience"),
        [
            ("long", ["SIGINT"], 60),
            ("long", ["SIGTERM"], 60),
            ("long", ["SIGHUP"], 60),
            ("stubborn", ["SIGINT", "SIGINT"], 60),
            ("stubborn", ["SIGTERM"], 0.2),
        ],
    )
    def test_what_stops_the_sweep_stops_its_runs(
        self,
        tmp_path: Path,
        stub: Callable[[], list[str]],
        monkeypatch: pytest.MonkeyPatch,
        word: str,
        signals: list[str],
        patience: float,
    ) -> None:
        monkeypatch.setattr(pwoa.sweep.local, "PATIENCE", patience)
        with handled(signal.SIGTERM, signal.SIGHUP, by=lambda *_: None), sending(tmp_path / "pid", *signals) as over:
            begun = time.monotonic()

            def run() -> None:
                try:
                    run_here(tasks(tmp_path, word, "right"), lambda task, why: None, retries=2)
                finally:
                    over.set()

            with pytest.raises(Terminated if "SIGTERM" in signals else KeyboardInterrupt):
                run()
            assert time.monotonic() - begun < 15
            with pytest.raises(ProcessLookupError):
                os.kill(int((tmp_path / "pid").read_text()), 0)
        assert len(stub()) == 1

    def test_a_signal_that_is_ignored_stays_so(
        self, tmp_path: Path, stub: Callable[[], list[str]], ended: dict[str, str | None]
    ) -> None:
        with handled(signal.SIGHUP, by=signal.SIG_IGN), sending(tmp_path / "calls", "SIGHUP"):
            run_here(tasks(tmp_path, "right", "right"), lambda task, why: ended.update({task.name: why}))
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert ended == {"0": None, "1": None}

    def test_each_gpu_has_one_run_at_a_time(
        self,
        tmp_path: Path,
        stub: Callable[[], list[str]],
        ended: dict[str, str | None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
        run_here(tasks(tmp_path, *"abcdef"), lambda task, why: ended.update({task.name: why}))
        assert ended == dict.fromkeys("012345")
        assert {line.split()[1] for line in stub()} <= {"3", "5"}

    def test_when_the_time_is_over_what_runs_is_stopped_and_nothing_is_begun(
        self, tmp_path: Path, stub: Callable[[], list[str]], ended: dict[str, str | None]
    ) -> None:
        begun = time.monotonic()
        given = tasks(tmp_path, "right", "long", "right")
        run_here(given, lambda task, why: ended.update({task.name: why}), until=begun + 1)
        assert 1 <= time.monotonic() - begun < 15
        assert ended == {"0": None}
        assert [line.split()[0] for line in stub()] == ["right", "long"]

    def test_an_error_in_between_ends_all(self, tmp_path: Path, stub: Callable[[], list[str]]) -> None:
        def broken(task: Task, why: str | None) -> None:
            raise RuntimeError("full disk")

        with pytest.raises(RuntimeError, match="full disk"):
            run_here(tasks(tmp_path, *"abcdefgh"), broken)
        assert len(stub()) < 8

    @pytest.mark.parametrize(
        ("gpus", "visible", "jobs", "expected"),
        [
            (2, None, 0, ["0", "1"]),
            (2, "3,5", 0, ["3", "5"]),
            (2, "3,5", 3, ["3", "5", "3"]),
            (2, None, 1, ["0"]),
        ],
    )
    def test_gpus_are_shared_out(
        self, monkeypatch: pytest.MonkeyPatch, gpus: int, visible: str | None, jobs: int, expected: list[str]
    ) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [place["CUDA_VISIBLE_DEVICES"] for place in environments(jobs)] == expected

    def test_cores_are_shared_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
        assert environments(0) == [{}]
        assert environments(3) == [{"OMP_NUM_THREADS": "2"}] * 3
        assert environments(20) == [{"OMP_NUM_THREADS": "1"}] * 20


class TestChild:
    """What a process of a sweep, or a node, does."""

    @pytest.mark.parametrize(("method", "called"), [("pwoa", "prune"), ("trades", "pretrain")])
    def test_it_prunes_or_trains_as_the_method_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, called: str
    ) -> None:
        given: list[tuple[str, str, Path]] = []
        for name in ("prune", "pretrain"):

            def run(*, recipe: Recipe, folder: Path, name: str = name, **rest: object) -> None:
                given.append((name, recipe.method, folder))

            monkeypatch.setattr(f"pwoa.runs.{name}.{name}", run)
        (tmp_path / "a.toml").write_text(f'method = "{method}"\n')
        assert child.carry_out(tmp_path / "a.toml", tmp_path / "a") == 0
        assert given == [(called, method, tmp_path / "a")]
        assert not child.failure_file(tmp_path / "a").exists()

    @pytest.mark.parametrize(
        ("error", "reason", "traceback"),
        [
            (InputError("it cannot be"), "it cannot be", False),
            (ProcessDied("a process is gone"), "a process is gone", False),
            (RuntimeError("no such thing\nand more"), "RuntimeError: no such thing", True),
            (MemoryError(), MEMORY, False),
        ],
    )
    def test_why_it_failed_is_left_beside_its_folder(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        error: Exception,
        reason: str,
        traceback: bool,
    ) -> None:
        def fail(**given: object) -> None:
            raise error

        monkeypatch.setattr("pwoa.runs.prune.prune", fail)
        (tmp_path / "a.toml").write_text("")
        assert child.carry_out(tmp_path / "a.toml", tmp_path / "a") == 2
        assert json.loads((tmp_path / "a.failure.json").read_text()) == {"error": reason}
        assert Task(tmp_path / "a.toml", tmp_path / "a", tmp_path / "a.log").reason() == reason
        err = capsys.readouterr().err
        assert err.endswith(f"error: {reason}\n")
        assert ("Traceback" in err) is traceback


class RayError(Exception):
    pass


class StandIn:
    """As much of Ray as a sweep uses. Tasks named in `losses` lose their node that often before they end."""

    def __init__(self, resources: dict[str, float], losses: dict[str, int]) -> None:
        self.resources, self.losses = resources, losses
        self.options: dict[str, Any] = {}
        self.addresses: list[str | None] = []
        self.tries: list[str] = []
        self.cancelled: list[str] = []
        self.exceptions = SimpleNamespace(RayError=RayError)

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str | None, **rest: Any) -> None:
        if not self.resources:
            raise ConnectionError("no answer\nand a long story")
        self.addresses.append(address)

    def shutdown(self) -> None:
        self.addresses.append("down")

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        self.options = options
        return lambda function: SimpleNamespace(remote=lambda *arguments: (function, arguments))

    def cancel(self, reference: Any) -> None:
        self.cancelled.append(reference[1][0])

    def wait(self, references: Sequence[Any], num_returns: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        if timeout is not None:
            return [], list(references)
        assert num_returns == 1
        return [references[-1]], list(references[:-1])

    def get(self, reference: Any) -> Any:
        function, arguments = reference
        word = arguments[0]
        for _ in range(1 + self.options["max_retries"]):
            self.tries.append(word)
            if not self.losses.get(word):
                return function(*arguments)
            self.losses[word] -= 1
        raise RayError("the node died\nwith its process")


class TestRay:
    def run(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ray: StandIn,
        given: list[Task],
        retries: int = 1,
        address: str | None = "auto",
    ) -> dict[str, str | None]:
        ended: dict[str, str | None] = {}
        monkeypatch.setitem(sys.modules, "ray", ray)
        run_on_ray(given, lambda task, why: ended.update({task.name: why}), address, retries)
        return ended

    @pytest.fixture(autouse=True)
    def _carried_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The run of the recipe `right` ends well at once; others are carried out."""

        def carry_out(recipe: Path, folder: Path, settings: Sequence[str], teacher: Path | None) -> int:
            if recipe.name != "right":
                return child.carry_out(recipe, folder, settings, teacher)
            print(f"in {folder}")
            return 0

        monkeypatch.setattr(pwoa.sweep.cluster, "carry_out", carry_out)

    def test_each_task_is_a_run_with_a_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        ray = StandIn({"CPU": 4.0}, {})
        ended = self.run(monkeypatch, ray, tasks(tmp_path, "right", "nowhere"))
        assert ended["0"] is None
        assert (tmp_path / "0.log").read_text() == f"in {tmp_path / '0'}\n"
        assert str(ended["1"]).startswith("no recipe 'nowhere': neither a file nor a preset")
        assert (tmp_path / "1.log").read_text() == f"error: {ended['1']}\n"
        assert ray.addresses == ["auto", "down"]
        assert ray.options == {"num_cpus": 1, "num_gpus": 0, "max_retries": 1, "max_calls": 1}

    def test_a_task_has_a_gpu_where_there_are_any(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ray = StandIn({"CPU": 4.0, "GPU": 2.0}, {})
        self.run(monkeypatch, ray, tasks(tmp_path, "right"))
        assert ray.options["num_gpus"] == 1

    def test_a_lost_node_is_answered_with_another_until_there_were_too_many(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ray = StandIn({"CPU": 4.0}, {"right": 2})
        assert self.run(monkeypatch, ray, tasks(tmp_path, "right"), retries=2) == {"0": None}
        assert ray.tries == ["right"] * 3
        ray = StandIn({"CPU": 4.0}, {"right": 2})
        assert self.run(monkeypatch, ray, tasks(tmp_path, "right")) == {"0": "RayError: the node died"}

    def test_when_the_time_is_over_what_is_left_is_cancelled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ray, ended = StandIn({"CPU": 4.0}, {}), dict[str, str | None]()
        monkeypatch.setitem(sys.modules, "ray", ray)
        given = tasks(tmp_path, "right", "right")
        run_on_ray(given, lambda task, why: ended.update({task.name: why}), "auto", until=time.monotonic())
        assert (ended, ray.cancelled) == ({}, ["right", "right"])

    def test_no_cluster_and_no_ray_are_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(InputError, match=r"^no Ray cluster at auto: no answer$"):
            self.run(monkeypatch, StandIn({}, {}), [])
        with pytest.raises(InputError, match=r"^no Ray cluster at ray://127\.0\.0\.1:1: .*refused$"):
            self.run(monkeypatch, StandIn({"CPU": 1.0}, {}), [], address="ray://127.0.0.1:1")
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(InputError, match=r"needs Ray: pip install 'pwoa\[ray\]'"):
            run_on_ray([], lambda task, why: None)
