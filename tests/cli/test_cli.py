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
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from typer.testing import CliRunner

from pwoa.attacks.apgd import apgd_ce, apgd_t_rounds
from pwoa.attacks.registry import ATTACKS
from pwoa.attacks.square import square_rounds
from pwoa.cli import app
from pwoa.data.images import Data
from pwoa.data.load import load_data
from pwoa.evaluation.checks import Finding
from pwoa.evaluation.comparison import compare
from pwoa.evaluation.folder import OF_MODEL
from pwoa.evaluation.scores import FILE, load_verdicts
from pwoa.models.architectures.registry import build
from pwoa.recipe import load_recipe, parse_setting, presets, to_toml

SETTINGS = (
    "search.epochs=1",
    "finetune.epochs=2",
    "training.batch=50",
    "training.checkpoint_seconds=0",
    "data.validation=100",
    "evaluation.images=20",
    "evaluation.checks=false",
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
    assert "95 % interval" in out
    assert "conv1.weight" in out
    assert "all parameters" in out
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


ENDED = "ended by SIGTERM; start the same command again to go on\n"


def test_sigterm_ends_a_run_which_then_resumes(finished: Path, digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ended"
    command: list[str | Path] = ["prune", "--data", digits, *QUICK, "--out", folder]
    process = start(*command)
    wait_for(folder / "checkpoint" / "state.pt", process)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, ENDED)
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    code, out, _ = call(*command)
    assert code == 0
    assert "resuming" in out
    assert (folder / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_sigterm_ends_robust_training(digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ended"
    settings = [word for setting in SETTINGS[2:] for word in ("--set", setting)]
    process = start("pretrain", "--data", digits, "--arch", "lenet@0.1", *settings, "--out", folder)
    wait_for(folder / "checkpoint" / "state.pt", process)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, ENDED)


def test_prune_keeps_the_verdicts_its_result_is_counted_from(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    right, about = load_verdicts(finished / OF_MODEL / FILE)
    counted = {name: 5.0 * int(verdicts.sum()) for name, verdicts in right.items()}
    assert counted | {"worst": 5.0 * int(torch.stack(list(right.values())).all(0).sum())} == result["pruned"]
    assert (about["images"], about["data"]) == (20, json.loads((finished / "teacher.json").read_text())["data"])


# evaluate and compare

NETS = """
import torch
from torch import nn

class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, x):
        return self.net((x * 4).round() / 4)

def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

def bent():
    return nn.Sequential(plain(), nn.Tanh())
"""


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(NETS)
    return path


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Default folders are under the current one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def accuracies(folder: Path) -> dict[str, float]:
    return {row["attack"]: row["accuracy"] for row in json.loads((folder / "result.json").read_text())["attacks"]}


def test_evaluate_a_run_folder(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evaluation"
    code, out, err = call(
        "evaluate", finished, "--attacks", "natural,pgd2", "--images", "20", "--no-checks", "--out", folder
    )
    assert (code, err) == (0, "")
    assert out.count("evaluation folder") == out.count(f"evaluation folder: {folder}") == 1
    for word in ("PGD-2", "95 % interval", "worst case", "20 test images, l∞ 0.3"):
        assert word in re.sub(r"\s+", " ", out)
    assert accuracies(folder).items() <= json.loads((finished / "result.json").read_text())["pruned"].items()
    (mine, about), (its, about_its) = (load_verdicts(place / FILE) for place in (folder, finished / OF_MODEL))
    assert all(torch.equal(mine[name], its[name]) for name in ("natural", "pgd2"))
    assert (about["data"], about["model"]) == (about_its["data"], about_its["model"])
    code, out, _ = call(
        "evaluate", finished, "--attacks", "natural,pgd2", "--images", "20", "--no-checks", "--out", folder
    )
    assert code == 0
    assert f"{folder} is finished, nothing is left to do" in out
    assert "PGD-2" in out


def test_a_table_ends_with_the_worst_case_and_says_what_falls_short(finished: Path, digits: Path) -> None:
    code, out, err = call("prune", "--data", digits, *QUICK, "--out", finished)
    assert (code, err) == (0, "")
    assert out.index("PGD-2") < out.index("strong") < out.index("worst case")
    assert "note: PGD-2 moves at most 0.02 of 0.3: too few steps of 0.01" in out
    code, out, err = call("evaluate", finished, "--no-checks", "--out", finished.parent / "again")
    assert (code, err) == (0, "")
    assert out.index("PGD-2") < out.index("strong") < out.index("worst case")
    assert "note: PGD-2 moves at most 0.02 of 0.3" in out


def test_compare_takes_a_run_alone(finished: Path) -> None:
    code, out, err = call("compare", finished)
    assert (code, err) == (0, "")
    assert all(word in re.sub(r"\s", "", out) for word in ("evaluation/teacher", "natural", "strong", "worstcase"))


def test_of_a_run_its_own_recipe_says_how_it_is_evaluated_and_set_changes_that(finished: Path, tmp_path: Path) -> None:
    def measured(*options: str | Path) -> tuple[int, list[str]]:
        folder = tmp_path / "-".join(map(str, options)) if options else tmp_path / "plain"
        code, _, err = call("evaluate", finished, *options, "--out", folder)
        assert (code, err) == (0, "")
        result = json.loads((folder / "result.json").read_text())
        return result["images"], [row["attack"] for row in result["attacks"]]

    assert measured() == (20, ["natural", "pgd2", "strong"])
    assert measured("--set", "evaluation.images=40") == (40, ["natural", "pgd2", "strong"])
    assert measured("--set", "evaluation.attacks=natural") == (20, ["natural"])
    assert measured("--images", "30", "--attacks", "fgsm") == (30, ["natural", "fgsm"])
    assert measured("--attacks", "natural", "--set", "threat.radius=0.1")[0] == 20
    code, _, err = call("evaluate", finished, "--set", "evaluation.images=40", "--images", "30")
    assert (code, err) == (2, "error: evaluation.images is given twice, as 30 and as 40; leave one out\n")
    (folder,) = (path for path in tmp_path.iterdir() if "radius" in path.name)
    assert json.loads((folder / "result.json").read_text())["threat"]["radius"] == 0.1


def test_evaluate_recognises_the_architecture_of_a_checkpoint(digits: Path, tmp_path: Path) -> None:
    weights = tmp_path / "net.pt"
    torch.save({"state_dict": build("lenet", 10, 1).state_dict()}, weights)
    common = ("--data", digits, "--attacks", "natural", "--images", "30", "--no-checks", "--out")
    assert call("evaluate", weights, *common, tmp_path / "a")[0] == 0
    assert call("evaluate", weights, "--arch", "lenet", *common, tmp_path / "b")[0] == 0
    assert accuracies(tmp_path / "a") == accuracies(tmp_path / "b")
    assert json.loads((tmp_path / "a" / "result.json").read_text())["architecture"] == "lenet"


@pytest.mark.usefixtures("_here")
def test_without_out_the_folder_is_that_of_the_command(nets: Path, digits: Path) -> None:
    weights = nets.parent / "net.pt"
    torch.save({"model": build("lenet", 10, 1).state_dict()}, weights)
    same = ("evaluate", weights, "--arch", "lenet", "--data", digits, "--attacks", "natural", "--images", "10")
    places = Path("runs") / "evaluate"

    def after(*command: str | Path) -> int:
        assert call(*command)[0] == 0
        assert all((place / "result.json").is_file() for place in places.iterdir())
        return len(list(places.iterdir()))

    assert after(*same) == 1
    assert next(places.iterdir()).name.startswith("net-")
    assert after(*same) == 1
    for number, more in enumerate((["--seed", "1"], ["--images", "11"], ["--radius", "0.1"], ["--no-checks"]), 2):
        assert after(*same, *more) == number
    torch.save(build("lenet", 10, 1).state_dict(), weights)
    assert after(*same) == 6  # other weights under the same name
    factory = ("evaluate", f"{nets}:plain", "--data", digits, "--attacks", "natural", "--images", "10")
    assert after(*factory) == 7
    assert after(*factory[:1], f"{nets}:bent", *factory[2:]) == 8


def test_evaluate_weights_with_an_architecture_of_ones_own(nets: Path, digits: Path, tmp_path: Path) -> None:
    weights = tmp_path / "net.pt"
    torch.manual_seed(1)
    torch.save({"1.weight": torch.randn(10, 784), "1.bias": torch.zeros(10)}, weights)
    common = ("--data", digits, "--attacks", "natural,fgsm", "--images", "30", "--no-checks", "--out")
    assert call("evaluate", weights, "--arch", f"{nets}:plain", *common, tmp_path / "a")[0] == 0
    code, out, _ = call("evaluate", f"{nets}:plain", "--checkpoint", weights, *common, tmp_path / "b")
    assert (code, "no --checkpoint" in out) == (0, False)
    code, out, _ = call("evaluate", f"{nets}:plain", *common, tmp_path / "c")
    assert code == 0
    assert f"note: no --checkpoint: the weights are those that {nets}:plain makes\n" in out
    assert accuracies(tmp_path / "a") == accuracies(tmp_path / "b") != accuracies(tmp_path / "c")


def test_evaluate_prints_its_warnings(nets: Path, digits: Path, tmp_path: Path) -> None:
    command = ("evaluate", f"{nets}:Rounded", "--data", digits, "--attacks", "natural,fgsm", "--out", tmp_path / "a")
    code, out, _ = call(*command)
    assert code == 0
    assert "warning (vanishing-gradients): the gradient of the loss with respect to the image is zero" in out
    assert json.loads((tmp_path / "a" / "result.json").read_text())["unreliable"] is True
    assert "warning (vanishing-gradients)" in call(*command)[1]  # as it is read back
    assert "warning" not in call(*command[:-1], tmp_path / "b", "--no-checks")[1]


def test_evaluate_an_onnx_file(nets: Path, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = {
        "apgd-t": partial(apgd_t_rounds, targets=1, steps=5),
        "square": partial(square_rounds, queries=10),
        "square-paper": partial(square_rounds, queries=10, paper=True),
    }
    monkeypatch.setitem(ATTACKS, "apgd-ce", replace(ATTACKS["apgd-ce"], run=partial(apgd_ce, steps=5)))
    for name, fewer in rounds.items():
        monkeypatch.setitem(ATTACKS, name, replace(ATTACKS[name], rounds=fewer))
    path = tmp_path / "net.onnx"
    torch.manual_seed(0)
    layer = torch.nn.Linear(784, 10)  # what `plain` makes
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("Gemm", ["flat", "w", "b"], ["y"], transB=1)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(v.detach().numpy(), name) for name, v in (("w", layer.weight), ("b", layer.bias))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    command = ("evaluate", path, "--data", digits, "--images", "30", "--out")
    code, out, _ = call(*command, tmp_path / "a", "--surrogate", f"{nets}:plain")
    assert code == 0
    assert all(word in out for word in ("natural", "Square", "transfer", "worst case"))
    assert call("evaluate", f"{nets}:plain", *command[2:], tmp_path / "b", "--attacks", "natural")[0] == 0
    assert list(accuracies(tmp_path / "a")) == ["natural", "square", "transfer"]
    assert accuracies(tmp_path / "a")["natural"] == accuracies(tmp_path / "b")["natural"]
    code, out, _ = call(*command, tmp_path / "c", "--attacks", "square-paper")
    assert code == 0
    assert "Square (paper)" in out
    assert list(accuracies(tmp_path / "c")) == ["natural", "square-paper"]
    code, _, err = call(*command, tmp_path / "d", "--attacks", "pgd20")
    assert (code, err) == (
        2,
        "error: pgd20 needs gradients, which this model has not; use natural, square, square-paper, transfer, "
        "replica\n",
    )


def test_evaluate_draws_the_security_curve(nets: Path, digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "[curve]"
    command = ("evaluate", f"{nets}:plain", "--data", digits, "--attacks", "natural,fgsm", "--out", folder)
    code, out, _ = call(*command, "--radii", "0,16/255,4/255")
    assert code == 0
    assert f"security curve: {folder / 'curve.png'}" in out
    with Image.open(folder / "curve.png") as picture:
        assert min(picture.size) > 300
    rows = json.loads((folder / "result.json").read_text())["curve"]
    assert [row["radius"] for row in rows[::2]] == [0, 4 / 255, 8 / 255, 16 / 255]
    natural, fgsm = ([row["accuracy"] for row in rows if row["attack"] == name] for name in ("natural", "fgsm"))
    assert fgsm == sorted(fgsm, reverse=True)
    assert fgsm[0] == natural[0] > fgsm[-1]


WAITING = """
import time
from pwoa.cli import main
from pwoa.evaluation import folder

folder.SAVE_SECONDS = 0.0
save, saves = folder.EvaluationFolder.save, []

def save_and_wait(self, measurements):
    save(self, measurements)
    saves.append(None)
    if len(saves) == 8:
        print("it can be killed now", flush=True)
        time.sleep(600)

folder.EvaluationFolder.save = save_and_wait
main()
"""


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGKILL, (-9, "")), (signal.SIGTERM, (143, ENDED))])
def test_an_evaluation_that_is_killed_resumes_to_the_same_result(
    nets: Path, digits: Path, tmp_path: Path, number: signal.Signals, expected: tuple[int, str]
) -> None:
    attacks = ("--attacks", "natural,pgd2,apgd-ce", "--batch", "20", "--no-checks")
    command = ("evaluate", f"{nets}:plain", "--data", digits, *attacks, "--out")
    arguments = [sys.executable, "-c", WAITING, *map(str, command), str(tmp_path / "killed")]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "it can be killed now\n" in iter(process.stdout.readline, "")
    process.send_signal(number)
    _, err = process.communicate()
    assert (process.returncode, err) == expected
    left = {"evaluation.json", "progress.safetensors"}
    assert set(os.listdir(tmp_path / "killed")) == (left | {".lock"} if number == signal.SIGKILL else left)
    code, out, _ = call(*command, tmp_path / "killed")
    assert code == 0
    assert f"resuming {tmp_path / 'killed'}" in out
    assert call(*command, tmp_path / "whole")[0] == 0
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert accuracies(whole) == accuracies(killed)
    assert accuracies(whole)["apgd-ce"] < accuracies(whole)["natural"]
    (right, _), (others, _) = (load_verdicts(place / FILE) for place in (whole, killed))
    assert all(torch.equal(right[name], others[name]) for name in right)
    names = ["evaluation.json", "examples.safetensors", "report.html", "result.json", "verdicts.safetensors"]
    assert sorted(os.listdir(killed)) == names


def test_compare_two_evaluations_and_two_runs(finished: Path, nets: Path, digits: Path, tmp_path: Path) -> None:
    common = ("--data", digits, "--attacks", "natural,fgsm", "--images", "20", "--no-checks", "--out")
    for name, model in (("a", finished), ("b", f"{nets}:plain"), ("c", f"{nets}:bent")):
        assert call("evaluate", model, *common, tmp_path / name)[0] == 0
    code, out, err = call("compare", tmp_path / "a", tmp_path / "b")
    assert (code, err) == (0, "")
    for word in ("B − A", "95 % interval", "FGSM", "natural", "<0.001", "20 images"):
        assert word in re.sub(r"\s+", " ", out)
    assert out.startswith("warning: A was attacked at l∞ 0.3, B at l∞ 8/255\n")
    assert "was attacked" not in call("compare", tmp_path / "b", tmp_path / "c")[1]
    other = tmp_path / "run"
    settings = ["--rate", "8", "--set", "finetune.epochs=1"]
    assert call("prune", "--data", digits, *QUICK, *settings, "--out", other)[0] == 0
    code, out, _ = call("compare", finished, other)
    assert code == 0
    assert "PGD-2" in out
    code, _, err = call("compare", finished, tmp_path)
    assert (code, err) == (
        2,
        f"error: {tmp_path} is neither a run nor an evaluation\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}/nowhere"], "nowhere does not exist\n"),
        (
            ["{tmp}/nowhere", "--data", "{digits}"],
            "nowhere does not exist; give a run folder, a model folder",
        ),
        (["{tmp}", "--data", "{digits}"], "is neither a run nor a model folder: it has no recipe.toml"),
        (["{run}", "--arch", "lenet"], "leave out --arch"),
        (["{run}", "--checkpoint", "x.pt"], "--checkpoint goes with a factory"),
        (["{run}", "--out", "{digits}"], "exists and holds no evaluation; choose another folder"),
        (["{run}", "--out", "{run}"], "exists and holds no evaluation; choose another folder"),
        (["{run}", "--attacks", "pdg20"], "unknown attack 'pdg20'"),
        (["{run}", "--attacks", "standard"], "it is now autoattack, AutoAttack's four attacks, or paper"),
        (["{run}", "--set", "evaluation.image=40"], "did you mean 'evaluation.images'?"),
        (["{run}", "--set", "evaluation.images=many"], "evaluation.images = 'many' is not a whole number"),
        (
            ["{run}", "--seed", "9" * 30],
            "evaluation.seed is too large; allowed: whole numbers up to 9223",
        ),
        (["{run}", "--surrogate-arch", "lenet"], "--surrogate-arch goes with --surrogate MODEL"),
        (["x" * 300, "--data", "{digits}"], "File name too long"),
        (["{run}", "--attacks", "transfer"], "the attack transfer needs a surrogate: --surrogate MODEL"),
        (["{run}", "--radii", "0,much"], "'0,much' is no list of radii"),
        (["{run}", "--radii", "0,2"], "threat.radius = 2.0; allowed: from 0 to 1 in linf"),
        (["{run}", "--radius", "wide"], "threat.radius = 'wide' is not a number"),
        (["{run}", "--radius", "8"], "threat.radius = 8.0; allowed: from 0 to 1 in linf; for 8 of 255 give 8/255\n"),
        (["{run}", "--attacks", "autoatack"], "as in pgd20; did you mean 'autoattack'?\n"),
        (["{run}", "--precision", "float8"], "evaluation.precision = 'float8'; allowed: auto, float32"),
        (["{run}", "--batch", "0"], "evaluation.batch = 0; allowed: at least 1"),
        (["{run}", "--images", "-1"], "evaluation.images = -1; allowed: at least 0"),
        (["{nets}:nothing", "--data", "{digits}"], "has no 'nothing'"),
        (["{nets}:plain", "--data", "minst"], "did you mean 'mnist'?"),
    ],
)
@pytest.mark.usefixtures("_here")
def test_what_cannot_be_evaluated_is_one_line_and_exit_code_2(
    finished: Path, digits: Path, nets: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    known = {"tmp": tmp_path, "run": finished, "digits": digits, "nets": nets}
    code, _, err = call("evaluate", *(argument.format(**known) for argument in arguments))
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert not Path("runs").exists()


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
        (
            "resnet",
            "is a resnet18, but the file takes 3-channel images, the data has 1-channel ones; mnist-mini is the "
            "default, so give --data cifar10\n",
        ),
        ("classes", "has 7 classes, the data has 10; mnist-mini is the default, so give --data NAME\n"),
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
    ("kind", "message"),
    [
        ("resnet", "does not fit LeNet: missing .*; unexpected"),
        ("classes", r"fc2.weight is 7×1024, the model wants 10×1024"),
    ],
)
def test_a_checkpoint_of_another_architecture_than_told_is_refused(tmp_path: Path, kind: str, message: str) -> None:
    path = spoiled_checkpoint(kind, tmp_path)
    code, _, err = call("prune", "--checkpoint", path, "--arch", "lenet", "--out", tmp_path / "run")
    assert code == 2
    assert re.search(message, err), err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "mnits"], "did you mean 'mnist'?"),
        (["--set", "search.epoch=3"], "did you mean 'search.epochs'?"),
        (["--set", "search.epochs"], "not of the form section.key=value"),
        (["--data", "minst"], "did you mean 'mnist'?"),
        (["--arch", "lenett"], "did you mean 'lenet'?"),
        (
            ["--arch", "mynet.py:Net"],
            "no --checkpoint was given, so the embedded LeNet was taken; give the weights of Net",
        ),
        (["--rate", "0.5"], "sparsity.rate = 0.5; allowed: at least 1"),
        (["--rate", "5000"], "rate 5000 leaves layer conv1.weight empty"),
        (["--recipe", "cifar10", "--data", "mnist-mini"], "names no teacher"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
        (["--device", "hpu"], "device 'hpu' cannot be used: only cpu and cuda can"),
        (["--recipe", "x" * 300], "neither a file nor a preset"),
        (["--data", "~nobody-of-that-name/digits"], "'~nobody-of-that-name/digits' is not the path of a folder"),
        (["--seed", "9" * 30], "training.seed is too large"),
        (["--set", "training.batch=9001"], "larger than the 9,000 training images"),
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
    monkeypatch.setattr("urllib.request._opener", None)  # one is kept for the whole process, with its proxies
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


def test_the_list_of_a_rehearsal_says_what_it_is_on(tmp_path: Path) -> None:
    places = ("--out", tmp_path / "out", "--results", tmp_path / "results")
    words = "scale quick: a rehearsal, all on the embedded LeNet and data; how long"
    assert words in " ".join(call("reproduce", "--scale", "quick", *places)[1].split())
    assert "rehearsal" not in call("reproduce", *places)[1]


def test_version() -> None:
    assert call("--version")[1].startswith("pwoa 0.")


def test_a_recipe_is_shown_with_all_its_settings() -> None:
    code, out, _ = call("recipe")
    assert code == 0
    assert set(presets()) <= set(re.findall(r"[\w-]+", out))
    assert "Beyond the paper" in out
    code, out, _ = call("recipe", "cifar10-hydra")
    assert code == 0
    assert tomllib.loads(out) == tomllib.loads(to_toml(load_recipe("cifar10-hydra")))
    settings = [line for line in out.splitlines() if " = " in line]
    assert len(settings) > 50
    assert all("  # " in line for line in settings)
    assert "rate = 4.0  # unpruned size over pruned size: 4 keeps a quarter of the prunable weights" in settings
    code, _, err = call("recipe", "cifar11")
    assert code == 2
    assert "did you mean 'cifar10'?" in err


def test_the_demo_shows_the_strong_attack_the_worst_case_and_what_the_checks_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dict(parse_setting(setting) for setting in SETTINGS) | {"data.validation": 100, "training.batch": 128}
    few |= {"finetune.epochs": 1, "evaluation.attacks": "natural,pgd20", "evaluation.checks": True}
    recipe = load_recipe("demo").with_settings(few | {"evaluation.strong": 10, "training.device": "cpu"})
    data = load_data("mnist-mini")
    monkeypatch.setattr("pwoa.runs.prepare.load_data", lambda *given, **options: small(data))
    monkeypatch.setattr("pwoa.demo.load_recipe", lambda name: recipe)
    finding = Finding("radius", "the attack does not find what is there")
    monkeypatch.setattr("pwoa.evaluation.measure._findings", lambda *given: [finding])
    code, out, err = call("demo", "--out", tmp_path / "demo")
    assert (code, err) == (0, "")
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    rates = f"rate {result['rate']:.4g} ({result['overall_rate']:.4g} over all parameters)"
    for word in (
        rates,
        "strong",
        "worst case",
        "note: PGD-20 moves at most 0.2 of 0.3",
        "in the worst case, naive pruning keeps",
    ):
        assert word in re.sub(r"\s+", " ", out)
    for model in ("teacher", "naive", "pwoa", "robust"):
        assert f"warning (radius, {model}): {finding.message}" in out
    assert (tmp_path / "demo" / "robustness.png").stat().st_size > 1000
    assert list(result["teacher"]) == list(result["naive"]) == list(result["pwoa"]) == list(result["robust"])
    assert (list(result["pwoa"]), result["rate"]) == (
        ["natural", "pgd20", "strong", "worst"],
        pytest.approx(4, abs=0.01),
    )
    assert compare(tmp_path / "demo" / "pwoa").images == 20


def small(data: Data) -> Data:
    """Return a part of the data that is trained on in seconds."""
    return Data(data.name, data.train.first(400), data.test.first(20), data.classes)
