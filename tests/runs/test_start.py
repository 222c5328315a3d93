"""Robust training that starts from weights that are there, and LBGAT's guide that does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import pwoa
from pwoa.cli.options import app
from pwoa.data.images import Data
from pwoa.errors import InputError
from pwoa.methods import lbgat
from pwoa.models.architectures.registry import build
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Run

Make = Callable[..., Recipe]
NET = "resnet18@0.05"


@pytest.fixture(autouse=True)
def small_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbgat, "GUIDE", NET)


def short(quick: Make, **changes: Any) -> Recipe:
    """One epoch that moves nothing, unless it is changed: what comes out is what it started from."""
    still = {
        "pretrain__epochs": 1,
        "pretrain__steps": 1,
        "pretrain__learning_rate": 0.0,
        "evaluation__images": 8,
        "training__optimizer": "sgd",
        "training__average": 0.0,
    }
    return quick(**{"method": "pgd-at", "teacher__architecture": NET, **still, **changes})


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach() for value in model.parameters()]


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(*pair) for pair in zip(weights(one), weights(other), strict=True))


@pytest.fixture
def saved(tmp_path: Path) -> tuple[nn.Module, Path]:
    torch.manual_seed(7)
    network = build(NET, 3, 1)
    torch.save(network.state_dict(), tmp_path / "start.pt")
    return network, tmp_path / "start.pt"


def test_it_starts_from_a_file_or_from_a_run_and_says_so(
    tmp_path: Path, tiny_data: Data, quick: Make, told: Any, saved: tuple[nn.Module, Path]
) -> None:
    network, file = saved
    recipe = short(quick, pretrain__start=str(file))
    first = pwoa.pretrain(None, tiny_data, recipe=recipe, folder=tmp_path / "first", progress=told)
    assert same(first.model, network)
    assert f"1 epoch from {file} on " in told.said[0]
    again = short(quick, pretrain__start=str(tmp_path / "first"), pretrain__learning_rate=0.01)
    second = pwoa.pretrain(None, tiny_data, recipe=again, folder=tmp_path / "second")
    assert not same(second.model, network)
    scratch = pwoa.pretrain(None, tiny_data, recipe=short(quick), folder=tmp_path / "third")
    assert not same(scratch.model, network)


def test_a_run_does_not_go_on_from_other_weights(
    tmp_path: Path, tiny_data: Data, quick: Make, saved: tuple[nn.Module, Path]
) -> None:
    recipe = short(quick, pretrain__start=str(saved[1]))
    pwoa.pretrain(None, tiny_data, recipe=recipe, folder=tmp_path / "run")
    torch.save(build(NET, 3, 1).state_dict(), saved[1])
    with pytest.raises(InputError, match=r"pretrain\.start") as caught:
        pwoa.pretrain(None, tiny_data, recipe=recipe, folder=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_the_same_file_by_another_name_is_the_same_run(
    tmp_path: Path, tiny_data: Data, quick: Make, saved: tuple[nn.Module, Path]
) -> None:
    first = pwoa.pretrain(None, tiny_data, recipe=short(quick, pretrain__start=str(saved[1])), folder=tmp_path / "run")
    moved = saved[1].rename(tmp_path / "moved.pt")
    again = short(quick, pretrain__start=str(moved))
    assert pwoa.pretrain(None, tiny_data, recipe=again, folder=tmp_path / "run").summary == first.summary
    with pytest.raises(InputError, match=r"pretrain\.start: there "):
        pwoa.pretrain(None, tiny_data, recipe=short(quick), folder=tmp_path / "run")


def test_a_lite_network_is_named_to_start_from_one(tiny_data: Data, quick: Make, saved: tuple[nn.Module, Path]) -> None:
    recipe = short(quick, pretrain__start=str(saved[1]), pretrain__lite=2.0)
    with pytest.raises(InputError, match=r"^pretrain\.lite makes a new network; .* --arch resnet18@0\.5$"):
        pwoa.pretrain(None, tiny_data, recipe=recipe)


@pytest.mark.parametrize("bad", ["absent", "other", "code", "unfinished"])
def test_what_it_cannot_start_from_is_told_in_a_line(
    tmp_path: Path, tiny_data: Data, quick: Make, saved: tuple[nn.Module, Path], bad: str
) -> None:
    Run(tmp_path / "unfinished").begin(short(quick), {})
    torch.save(build("lenet", 3, 1).state_dict(), tmp_path / "other.pt")
    (tmp_path / "net.py").write_text("raise SystemExit('executed')\n")
    start, words = {
        "absent": (tmp_path / "none.pt", "does not exist"),
        "other": (tmp_path / "other.pt", "lenet"),
        "code": (f"{tmp_path / 'net.py'}:Net", "does not exist"),
        "unfinished": (tmp_path / "unfinished", "has not finished yet"),
    }[bad]
    with pytest.raises(InputError, match=words) as caught:
        pwoa.pretrain(None, tiny_data, recipe=short(quick, pretrain__start=str(start)), folder=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_network_that_is_given_has_its_weights(
    tiny_teacher: nn.Module, tiny_data: Data, quick: Make, saved: tuple[nn.Module, Path]
) -> None:
    with pytest.raises(InputError, match=r"leave out pretrain\.start"):
        pwoa.pretrain(tiny_teacher, tiny_data, recipe=short(quick, pretrain__start=str(saved[1])))


def test_the_guide_starts_from_a_run_and_guides_from_the_first_step(
    tmp_path: Path, tiny_data: Data, quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[nn.Module] = []
    original = lbgat.Lbgat.__init__

    def remember(self: lbgat.Lbgat, *given: Any) -> None:
        original(self, *given)
        made.append(copy.deepcopy(self.trained.get_submodule("guide")))

    monkeypatch.setattr(lbgat.Lbgat, "__init__", remember)
    natural = pwoa.pretrain(None, tiny_data, recipe=short(quick, method="natural"), folder=tmp_path / "natural")
    for place, settings in (("led", {"lbgat.guide": str(natural.folder)}), ("alone", {})):
        recipe = short(quick, method="lbgat").with_settings(settings)
        pwoa.pretrain(None, tiny_data, recipe=recipe, folder=tmp_path / place)
    led, alone = made
    assert same(led, natural.model)
    assert not same(alone, natural.model)
    torch.save(build("lenet", 3, 1).state_dict(), tmp_path / "other.pt")
    wrong = short(quick, method="lbgat").with_settings({"lbgat.guide": str(tmp_path / "other.pt")})
    with pytest.raises(InputError, match=r"other\.pt"):
        pwoa.pretrain(None, tiny_data, recipe=wrong, folder=tmp_path / "wrong")


def test_the_command_line_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = "pretrain --data mnist-mini --arch lenet --epochs 1 --device cpu --no-report"
    small = "data.images=60 data.validation=20 training.batch=20 training.group=20 pretrain.steps=1 pretrain.growing=0 "
    small += (
        "pretrain.warmup=0 evaluation.images=5 evaluation.attacks=natural evaluation.strong=0 evaluation.checks=false"
    )
    words = [*command.split(), *(word for one in small.split() for word in ("--set", one))]
    done = CliRunner().invoke(app, [*words, "--start", "embedded", "--out", "run", "--set", "pretrain.learning_rate=0"])
    assert done.exit_code == 0, done.output
    assert same(pwoa.load_model("run"), pwoa.load_model("embedded"))
    refused = CliRunner().invoke(app, [*words, "--start", "nothing.pt", "--out", "other"])
    assert refused.exit_code == 2
    assert "error: checkpoint nothing.pt does not exist" in refused.output
