"""Checkpoints from elsewhere on the command line and through a whole run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import pwoa
from pwoa.cli import app
from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.models.architectures.registry import ARCHITECTURES, build
from pwoa.models.border import Normalised
from pwoa.recipe import recorded_recipe
from pwoa.recipe.sections import Recipe
from pwoa.recipe.settings import numbers
from pwoa.runs.folder import Run
from pwoa.runs.prune import prune

Make = Callable[..., Recipe]

NETS = """
from pwoa.models.architectures.registry import build

def net():
    return build("lenet@0.02", 3, 1)
"""


def call(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "120"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def lenet() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build("lenet@0.02", 3, 1).eval()


@pytest.fixture
def digits() -> Data:
    generator = torch.Generator().manual_seed(0)

    def split(n: int) -> Images:
        return Images(torch.rand(n, 1, 28, 28, generator=generator), torch.arange(n) % 3)

    return Data("digits", split(64), split(16), 3)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "teacher.pt"
    torch.save({"state_dict": {f"module.{key}": value for key, value in lenet().state_dict().items()}}, path)
    return path


def logits(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.as_tensor(model(x))


def test_list_shows_every_architecture() -> None:
    code, out, _ = call("models", "list")
    assert code == 0
    assert all(name in out for name in ARCHITECTURES)
    assert "11,173,962" in out
    assert re.search(r"lenet +│ +3,274,634 │ +3 │", out)


def test_inspect_shows_what_a_file_holds(checkpoint: Path) -> None:
    code, out, err = call("models", "inspect", checkpoint)
    assert (code, err) == (0, "")
    for word in ("lenet@0.02", "state_dict", "module.", "float32", "none in the file", "--mean"):
        assert word in out


def test_inspect_warns_and_refuses(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(
        dict(nn.Linear(2, 3).state_dict()) | {"mean": torch.tensor(0.5), "std": torch.tensor(0.25)},
        path,
    )
    code, out, _ = call("models", "inspect", path)
    assert code == 0
    assert "not a registered one" in out
    assert "mean 0.5; std 0.25" in out
    assert "warning: no registered architecture" in out
    code, _, err = call("models", "inspect", tmp_path / "gone.pt")
    assert code == 2
    assert err.count("\n") == 1


def test_inspect_shows_both_rates_of_a_pruned_checkpoint(tmp_path: Path) -> None:
    model = lenet()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        for name in ("fc1.weight", "fc2.weight"):
            model.get_parameter(name).flatten()[1:] = 0
    torch.save(model.state_dict(), tmp_path / "pruned.pt")
    code, out, err = call("models", "inspect", tmp_path / "pruned.pt")
    assert (code, err) == (0, "")
    parameters, kept = (sum(count(value) for value in model.parameters()) for count in (Tensor.numel, nonzero))
    weights = [value for value in model.parameters() if value.dim() > 1]
    rate = sum(map(Tensor.numel, weights)) / sum(map(nonzero, weights))
    assert f"% of the weights: rate {rate:.4g}" in out
    assert f"{kept:,} of all {parameters:,} parameters are not zero: rate {parameters / kept:.4g}" in out


def nonzero(values: Tensor) -> int:
    return int(values.count_nonzero())


def test_inspect_shows_what_a_model_folder_holds(tmp_path: Path) -> None:
    model = lenet()
    with torch.no_grad():
        model.get_parameter("conv1.bias").fill_(0.5)
        model.get_parameter("conv2.weight").flatten()[:10] = 0
    folder = pwoa.save_pretrained(Normalised(model, [0.5], [0.25]), tmp_path / "model")
    code, out, err = call("models", "inspect", folder)
    assert (code, err) == (0, "")
    for word in ("lenet@0.02", "mean 0.5; std 0.25", "prunable weights are not zero", "which is that of the weights"):
        assert word in out
    assert re.search(r"pruned .* prunable weights are not zero: rate 1\.\d+", out)
    assert re.search(r"overall .* of all [\d,]+ parameters are not zero: rate 1\.\d+", out)
    (folder / "model.safetensors").write_bytes((tmp_path / "model" / "model.safetensors").read_bytes()[:-4] + b"1234")
    code, _, err = call("models", "inspect", folder)
    assert (code, err.count("\n")) == (2, 1)
    assert "another fingerprint" in err


def test_inspect_shows_how_far_a_run_has_come(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    begun = Run(tmp_path / "begun")
    begun.begin(quick(), {})
    begun.log({"epoch": 1})
    code, out, _ = call("models", "inspect", begun.path)
    assert code == 0
    assert "not finished (1 epoch done); the same command resumes it" in out
    plan = quick(search__epochs=1, finetune__epochs=1)
    result = prune(tiny_teacher, tiny_data, recipe=plan, rate=4, folder=tmp_path / "run")
    code, out, _ = call("models", "inspect", tmp_path / "run")
    assert code == 0
    pruned = result.summary["pruned"]
    for word in ("finished", "TinyNet", f"natural {pruned['natural']:.2f}, PGD-2 {pruned['pgd2']:.2f}", "597 of 2,388"):
        assert word in out
    code, _, err = call("models", "inspect", tmp_path)
    assert (code, err) == (2, f"error: {tmp_path} is not a file\n")


def test_card_shows_or_writes_and_push_asks_for_a_name(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    plan = quick(search__epochs=1, finetune__epochs=1, evaluation__attacks=["natural"])
    prune(tiny_teacher, tiny_data, recipe=plan, rate=4, folder=tmp_path / "run")
    code, shown, _ = call("card", tmp_path / "run")
    assert code == 0
    assert shown.startswith("---\nlibrary_name:")
    code, out, _ = call("card", tmp_path / "run", "--out", tmp_path / "model")
    assert (code, out) == (0, f"model folder: {tmp_path / 'model'}\n")
    assert (tmp_path / "model" / "README.md").read_text() == shown
    code, _, err = call("push", tmp_path / "nowhere", "--repo", "me/net")
    assert (code, err) == (2, f"error: {tmp_path / 'nowhere'} is not a run folder\n")
    code, _, err = call("push", tmp_path / "run", "--repo", "net")
    assert (code, err) == (2, "error: net is no name on the hub; give owner/name\n")


LABELS = {"natural": "natural", "pgd2": "PGD-2", "worst": "worst case"}


def test_inspect_shows_what_the_card_of_a_model_folder_says(
    tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make
) -> None:
    plan = quick(search__epochs=1, finetune__epochs=1, evaluation__attacks=["natural", "pgd2"])
    result = prune(tiny_teacher, tiny_data, recipe=plan, rate=4, folder=tmp_path / "run")
    folder = pwoa.save_pretrained(result, tmp_path / "model")
    code, out, _ = call("models", "inspect", folder)
    assert code == 0
    pruned = result.summary["pruned"]
    shown = " ".join(out.replace("│", " ").split())
    assert (
        f"natural {pruned['natural']:.2f}, PGD-2 {pruned['pgd2']:.2f}, worst case {pruned['worst']:.2f} (by its card)"
        in shown
    )
    assert re.search(r"test images +│ 48 ", out)
    (folder / "README.md").write_text("---\nmodel-index: []\n---\n# mine\n")
    code, out, _ = call("models", "inspect", folder)
    assert code == 0
    assert "its card" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mean", "0.5,x"], "'0.5,x' is not a list of numbers; write for example 0.49,0.48,0.45"),
        (["--mean", "0.1", "--std", "1/0"], "is not a list of numbers"),
        (
            ["--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2"],
            "the mean has length 3; give one number a channel, 1 in all",
        ),
        (["--mean", "0.5"], "the std is missing"),
    ],
)
def test_a_wrong_normalisation_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    for verb in (["prune"], ["evaluate", "embedded", "--data", "mnist-mini"]):
        code, _, err = call(*verb, *arguments, "--out", tmp_path / "run")
        assert code == 2
        assert message in err
        assert err.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_evaluate_normalises(tmp_path: Path) -> None:
    plain = ["evaluate", "embedded", "--data", "mnist-mini", "--attacks", "natural", "--images", "50", "--no-checks"]
    found = []
    choices = {"a": [], "b": ["--arch", "auto", "--mean", "0", "--std", "1"], "c": ["--mean", "2", "--std", "0.01"]}
    for name, options in choices.items():
        code, _, err = call(*plain, *options, "--out", tmp_path / name)
        assert code == 0, err
        found.append(json.loads((tmp_path / name / "result.json").read_text())["attacks"][0]["accuracy"])
    assert found[0] == found[1] > 90 > found[2]


def test_a_named_model_behind_a_normalisation(tmp_path: Path, checkpoint: Path, digits: Data) -> None:
    source = tmp_path / "nets.py"
    source.write_text(NETS)
    x = digits.test.batch(torch.arange(4))[0]
    expected = logits(Normalised(lenet(), [0.1307], [0.3081]), x)
    options: dict[str, Any] = {"mean": [0.1307], "std": [0.3081]}
    for architecture in (None, "auto", "lenet@0.02", f"{source}:net"):
        model = pwoa.load_model(str(checkpoint), digits, architecture=architecture, **options)
        assert torch.equal(logits(model, x), expected)
    model = pwoa.load_model(f"{source}:net", digits, checkpoint=checkpoint, **options)
    assert torch.equal(logits(model, x), expected)
    assert isinstance(pwoa.load_model(f"{source}:net", digits, **options), Normalised)


@pytest.mark.parametrize("own", [False, True])
def test_a_normalised_teacher_is_pruned_and_comes_back(
    tmp_path: Path, checkpoint: Path, digits: Data, quick: Make, own: bool
) -> None:
    source = tmp_path / "nets.py"
    source.write_text(NETS)
    plan = quick(
        teacher__architecture=f"{source}:net" if own else "auto",
        teacher__checkpoint=str(checkpoint),
        teacher__mean="0.1307",
        teacher__std="0.3081",
        search__epochs=1,
        finetune__epochs=1,
        evaluation__attacks=["natural"],
    )
    result = prune(data=digits, recipe=plan, rate=2, folder=tmp_path / "run", force=True)
    assert isinstance(result.model, Normalised)
    x = digits.test.batch(torch.arange(4))[0]
    assert recorded_recipe(tmp_path / "run").teacher.architecture == (f"{source}:net" if own else "lenet@0.02")
    again = pwoa.load_model(tmp_path / "run")
    assert isinstance(again, Normalised)
    assert torch.equal(logits(again, x), logits(result.model, x))
    assert (again.model.conv2.weight == 0).float().mean() == pytest.approx(0.5, abs=0.03)  # type: ignore[union-attr]
    same = prune(data=digits, recipe=plan, rate=2, folder=tmp_path / "run", force=True)
    assert same.summary == result.summary
    with pytest.raises(InputError, match="knows its normalisation; leave out --mean and --std"):
        pwoa.load_model(str(tmp_path / "run"), digits, mean=[0.1], std=[0.2])


def test_a_run_of_a_network_of_ones_own_is_named_with_its_factory(tmp_path: Path, digits: Data, quick: Make) -> None:
    source = tmp_path / "own.py"
    source.write_text("from torch import nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))\n")
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(784, 3)).state_dict(), tmp_path / "own.pt")
    plan = quick(
        teacher__architecture=f"{source}:net",
        teacher__checkpoint=str(tmp_path / "own.pt"),
        teacher__mean="0.1",
        teacher__std="0.2",
        search__epochs=1,
        finetune__epochs=1,
        evaluation__attacks=["natural"],
        objective__hsic_x=0.0,
        objective__hsic_y=0.0,
    )
    result = prune(data=digits, recipe=plan, rate=2, folder=tmp_path / "run", force=True)
    x = digits.test.batch(torch.arange(4))[0]
    found = pwoa.load_model(str(tmp_path / "run"), digits, architecture=f"{source}:net")
    assert torch.equal(logits(found, x), logits(result.model, x))
    with pytest.raises(InputError, match=f"give it yourself: --arch {re.escape(str(source))}:net "):
        pwoa.load_model(str(tmp_path / "run"), digits)


def test_numbers_in_a_text() -> None:
    assert numbers("", "x") == ()
    assert numbers("0.5, 1", "x") == (0.5, 1.0)
    assert numbers("51/255", "x") == (0.2,)
    with pytest.raises(InputError, match=r"teacher\.mean = '1;2' is not a list of numbers"):
        Recipe().with_settings({"teacher.mean": "1;2"})
