"""The command line, as a person meets it: real processes for the whole way, the rest in this one."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from pwoa.cli import app
from pwoa.data import load_data
from pwoa.models import build

SETTINGS = (
    "search.epochs=1",
    "finetune.epochs=2",
    "training.batch=50",
    "training.checkpoint_seconds=0",
    "data.validation=100",
    "evaluation.images=20",
    "evaluation.attacks=natural,pgd2",
)
QUICK = ["--recipe", "demo"] + [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, as a user may have one: 300 to train on and 50 to test with, from MNIST."""
    folder = tmp_path_factory.mktemp("digits")
    data = load_data("mnist-mini")
    for split, images, n in (("train", data.train, 300), ("test", data.test, 50)):
        for i in range(n):
            target = folder / split / str(int(images.labels[i]))
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.pixels[i, 0].numpy()).save(target / f"{i:04}.png")
    return folder


def call(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pwoa", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    """A run of the embedded LeNet by the command line."""
    folder = tmp_path_factory.mktemp("cli") / "whole"
    code, out, err = call("prune", "--data", digits, *QUICK, "--out", folder)
    assert (code, err) == (0, "")
    assert "pruned 4×" in out
    assert "conv1.weight" in out
    assert f"run folder: {folder}" in out
    return folder


def test_prune_keeps_the_embedded_teacher_robust_enough_to_start(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert result["rate"] == pytest.approx(4.0, abs=1e-3)
    assert result["teacher"]["natural"] > 90
    assert json.loads((finished / "teacher.json").read_text())["pgd10"] > 90


def test_a_process_killed_outright_resumes_to_the_same_bits(finished: Path, digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    process = start("prune", "--data", digits, *QUICK, "--out", folder)
    wait_for(folder / "checkpoint" / "state.pt", process)
    process.kill()
    process.communicate()
    assert not (folder / "model.safetensors").exists()
    code, out, _ = call("prune", "--data", digits, *QUICK, "--out", folder)
    assert code == 0
    assert "resuming" in out
    assert (folder / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    leftovers = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert leftovers == []


def test_ctrl_c_says_how_to_resume(tmp_path: Path, digits: Path) -> None:
    folder = tmp_path / "stopped"
    process = start("prune", "--data", digits, *QUICK, "--out", folder)
    wait_for(folder / "metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"stopped; the same command, with the folder {folder}, resumes" in out
    assert "Traceback" not in err


def test_evaluate_a_run_folder(finished: Path, tmp_path: Path) -> None:
    scores = tmp_path / "scores.json"
    code, out, _ = call("evaluate", finished, "--attacks", "natural,pgd2", "--n", "20", "--out", scores)
    assert code == 0
    assert "PGD-2" in out
    measured = json.loads(scores.read_text())
    result = json.loads((finished / "result.json").read_text())
    assert {name: measured[name] for name in ("natural", "pgd2")} == result["pruned"]


def test_evaluate_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "lenet.pt"
    torch.save({"state_dict": build("lenet", 10, 1).state_dict()}, path)
    command = ("evaluate", path, "--arch", "lenet", "--data", "mnist-mini", "--attacks", "natural", "--n", "10")
    assert call(*command)[0] == 0
    code, _, err = call("evaluate", path)
    assert code == 2
    assert "give --arch NAME and --data NAME" in err


def test_what_cannot_be_evaluated_is_said(finished: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ([tmp_path / "nowhere"], "does not exist"),
        ([tmp_path], "is not a run folder"),
        ([finished, "--arch", "lenet"], "leave out --arch"),
        ([finished, "--out", tmp_path], "cannot write the scores"),
    ):
        code, _, err = call("evaluate", *arguments)
        assert code == 2
        assert message in err


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


def spoiled_checkpoint(kind: str, folder: Path) -> Path:
    path = folder / f"{kind}.pt"
    state = build("lenet", 10, 1).state_dict()
    if kind == "text":
        path.write_text("these are not weights")
    elif kind == "bomb":
        path.write_bytes(pickle.dumps(Bomb(folder / "boom"), protocol=2))
    elif kind == "resnet":
        torch.save(build("resnet18", 10, 3).state_dict(), path)
    elif kind == "classes":
        torch.save(build("lenet", 7, 1).state_dict(), path)
    elif kind == "nan":
        state["fc1.bias"][3] = torch.nan
        torch.save(state, path)
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "does not exist"),
        ("text", "refused|not a checkpoint"),
        ("bomb", "refused: .*code"),
        ("resnet", "does not fit LeNet: missing .*; unexpected"),
        ("classes", r"fc2.weight is 7×1024, the model wants 10×1024"),
        ("nan", "NaN or infinite weights in fc1.bias"),
    ],
)
def test_a_bad_checkpoint_is_one_line_and_exit_code_2(tmp_path: Path, kind: str, message: str) -> None:
    path = spoiled_checkpoint(kind, tmp_path)
    code, _, err = call("prune", "--checkpoint", path, "--out", tmp_path / "run")
    assert code == 2
    assert re.search(message, err), err
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "mnits"], "did you mean 'mnist'?"),
        (["--set", "search.epoch=3"], "did you mean 'search.epochs'?"),
        (["--set", "search.epochs"], "not of the form section.key=value"),
        (["--data", "minst"], "did you mean 'mnist'?"),
        (["--arch", "lenett"], "did you mean 'lenet'?"),
        (["--rate", "0.5"], "sparsity.rate = 0.5; allowed: at least 1"),
        (["--rate", "5000"], "rate 5000 leaves layer conv1.weight empty"),
        (["--recipe", "cifar10", "--data", "mnist-mini"], "names no teacher"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
        (["--set", "training.batch=9001"], "larger than the 9000 training images"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    code, _, err = call("prune", *arguments, "--out", tmp_path / "run")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_teacher_that_is_not_robust_is_stopped_unless_forced(tmp_path: Path, digits: Path) -> None:
    path = tmp_path / "random.pt"
    torch.manual_seed(0)
    torch.save(build("lenet", 10, 1).state_dict(), path)
    code, _, err = call("prune", "--data", digits, *QUICK, "--checkpoint", path, "--out", tmp_path / "run")
    assert code == 2
    assert "the teacher is not robust" in err
    assert not (tmp_path / "run").exists()
    assert call("prune", "--data", digits, *QUICK, "--checkpoint", path, "--out", tmp_path / "run", "--force")[0] == 0


def test_a_folder_that_cannot_be_made_is_exit_code_2(tmp_path: Path, digits: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = call("prune", "--data", digits, *QUICK, "--out", tmp_path / "file" / "run")
    assert code == 2
    assert "cannot write to" in err
    assert err.count("\n") == 1


def test_no_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache, no server that answers, no package client."""
    monkeypatch.setenv("PWOA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    code, _, err = call("data", "get", "mnist")
    assert code == 2
    assert err.count("\n") == 1
    assert "mnist" in err


def test_data_list_shows_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWOA_CACHE", str(tmp_path))
    code, out, _ = call("data", "list")
    assert code == 0
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100", "mnist-mini"):
        assert name in out


def test_help_is_quick_and_shows_an_example() -> None:
    start_time = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pwoa", "prune", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "Example: pwoa prune" in done.stdout
    assert " torch\n" not in done.stderr
    assert time.perf_counter() - start_time < 20


def test_version() -> None:
    assert call("--version")[1].startswith("pwoa 0.")
