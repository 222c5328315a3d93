"""A model folder: written, read back, and refused when anything in it is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import pwoa
from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from pwoa.models.border import Normalised
from pwoa.models.checkpoints.folder import fingerprint, state_fingerprint
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Result, Run
from pwoa.runs.prune import prune
from pwoa.share.publish import card_of
from pwoa.storage import folder as files
from pwoa.storage.folder import sealed

Make = Callable[..., Recipe]
X = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def network(name: str = "lenet@0.02", classes: int = 3, channels: int = 1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(name, classes, channels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pwoa.save_pretrained(network(), tmp_path / "model")


@pytest.fixture
def result(tmp_path: Path, tiny_teacher: nn.Module, tiny_data: Data, quick: Make) -> Result:
    plan = quick(search__epochs=1, finetune__epochs=1)
    return prune(tiny_teacher, tiny_data, rate=4, recipe=plan, folder=tmp_path / "run")


def config(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return read


def change(folder: Path, **values: Any) -> None:
    about = {key: value for key, value in config(folder).items() if key != "checksum"}
    (folder / "config.json").write_text(json.dumps(sealed(about | values)))


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def logits(model: nn.Module, x: Tensor = X) -> Tensor:
    with torch.no_grad():
        return torch.as_tensor(model(x))


@pytest.mark.parametrize(
    ("name", "classes", "channels"),
    [("lenet@0.02", 3, 1), ("smallcnn@0.1", 10, 1), ("resnet18@0.05", 7, 3), ("wrn-28-4@0.05", 10, 3)],
)
def test_a_registered_architecture_comes_back_from_the_folder_alone(
    tmp_path: Path, name: str, classes: int, channels: int
) -> None:
    model = network(name, classes, channels)
    folder = pwoa.save_pretrained(model, tmp_path / "model")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    described = config(folder)
    assert f"{described['architecture']}@{described['width']}" == name
    assert (described["classes"], described["channels"]) == (classes, channels)
    again = pwoa.load_model(folder)
    assert type(again) is type(model)
    assert fingerprint(again) == fingerprint(model) == described["fingerprint"]
    assert not any(module.training for module in again.modules())


@pytest.mark.parametrize("numbers", [([0.1307], [0.3081]), ([0.0], [1.0])])
def test_a_normalisation_comes_back(tmp_path: Path, numbers: tuple[list[float], list[float]]) -> None:
    model = Normalised(network(), *numbers).eval()
    again = pwoa.load_model(pwoa.save_pretrained(model, tmp_path))
    assert isinstance(again, Normalised)
    assert torch.equal(logits(again), logits(model))
    mean, std = (pytest.approx(values) for values in numbers)
    assert config(tmp_path)["normalisation"] == {"mean": mean, "std": std}


def test_a_network_of_ones_own_is_filled_and_else_asked_for(tmp_path: Path, tiny_teacher: nn.Module) -> None:
    folder = pwoa.save_pretrained(Normalised(tiny_teacher, [0.5], [0.25]), tmp_path)
    message = refused(lambda: pwoa.load_model(folder))
    assert "TinyNet, which only your own code can build, and no file can ask to run code" in message
    again = pwoa.load_model(folder, architecture=type(tiny_teacher)())
    assert isinstance(again, Normalised)
    assert fingerprint(again.model) == fingerprint(tiny_teacher)
    assert "does not fit Normalised: missing model.weight" in refused(
        lambda: pwoa.load_model(folder, architecture=nn.Linear(2, 2))
    )


def test_a_run_is_saved_with_what_was_measured(tmp_path: Path, result: Result, tiny_teacher: nn.Module) -> None:
    sources: list[Result | Path | str | Run] = [result, result.folder, str(result.folder), Run(result.folder)]
    for number, source in enumerate(sources):
        folder = pwoa.save_pretrained(source, tmp_path / str(number))
        again = pwoa.load_model(folder, architecture=type(tiny_teacher)())
        assert fingerprint(again) == fingerprint(result.model)
    described = config(folder)
    assert described["threat"] == {"norm": "linf", "radius": 0.05, "step": 0.0125}
    assert described["sparsity"][-1] == {"layer": "total", "total": 2388, "kept": 597, "rate": 4.0}
    card = (folder / "README.md").read_text()
    assert card == card_of(result.folder)
    for scores in (result.summary["teacher"], result.summary["pruned"]):
        assert f"| {scores['natural']:.2f} | {scores['pgd2']:.2f} |" in card
    assert "on 48 test images" in card


def test_a_card_is_made_of_what_a_run_says_or_refused_in_one_line(result: Result) -> None:
    about = Run(result.folder).read_json("model.json")
    Run(result.folder).write_json("model.json", {key: value for key, value in about.items() if key != "versions"})
    assert "## Accuracy" in card_of(result.folder)
    for width in ("abc", "nan", "1e9", "\n", "-1"):
        Run(result.folder).write_json("model.json", about | {"architecture": f"lenet@{width}"})
        with pytest.raises(InputError, match=r"is no architecture with a width, as resnet18@0.5 is$"):
            card_of(result.folder)


def test_what_is_pruned_in_a_model_without_a_run_is_counted(tmp_path: Path) -> None:
    model = network()
    with torch.no_grad():
        model.conv2.weight.flatten()[:10] = 0  # type: ignore[union-attr, operator]
    layers = {row["layer"]: row for row in config(pwoa.save_pretrained(model, tmp_path))["sparsity"]}
    assert layers["conv2.weight"]["total"] - layers["conv2.weight"]["kept"] == 10
    assert config(pwoa.save_pretrained(network(), tmp_path / "dense"))["sparsity"] is None


def test_weights_that_share_memory_or_are_not_contiguous_are_saved(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.register_buffer("turned", torch.arange(6.0).view(2, 3).T)

    model = Tied()
    again = pwoa.load_model(pwoa.save_pretrained(model, tmp_path), architecture=Tied())
    assert fingerprint(again) == fingerprint(model)


def test_saving_again_replaces_and_a_run_is_not_written_into(tmp_path: Path, folder: Path, quick: Make) -> None:
    pwoa.save_pretrained(network("lenet@0.03"), folder)
    assert config(folder)["width"] == 0.03
    assert pwoa.load_model(folder).width == 0.03
    Run(tmp_path / "run").begin(quick(), {})
    assert "is a run folder; choose another one" in refused(lambda: pwoa.save_pretrained(network(), tmp_path / "run"))


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors"])
@pytest.mark.parametrize("config", [None, '{"architecture": "bert", "model_type": "bert"}', "[]", "{"])
def test_files_of_others_are_not_written_over(tmp_path: Path, name: str, config: str | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    if name != "config.json" or config is None:
        (tmp_path / name).write_text("precious")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    message = refused(lambda: pwoa.save_pretrained(network(), tmp_path))
    assert message.startswith(f"{tmp_path} holds a {'config.json' if config else name} that pwoa did not write; choose")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_save_that_was_killed_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("pwoa.share.publish.replacing", _killed_at("model.safetensors"))
        with pytest.raises(KeyboardInterrupt):
            pwoa.save_pretrained(network(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert pwoa.load_model(pwoa.save_pretrained(network(), tmp_path)) is not None


def _killed_at(name: str) -> Callable[[Path], Any]:
    def replacing(path: Path) -> Any:
        if path.name == name:
            raise KeyboardInterrupt
        return files.replacing(path)

    return replacing


def test_only_a_finished_run_is_shared(tmp_path: Path, quick: Make) -> None:
    Run(tmp_path / "run").begin(quick(), {})
    assert "has not finished yet" in refused(lambda: pwoa.save_pretrained(tmp_path / "run", tmp_path / "model"))
    assert "is not a run folder" in refused(lambda: pwoa.save_pretrained(tmp_path / "no", tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_other_weights_are_refused_by_their_fingerprint(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["conv1.bias"][0] += 1e-6
    save_file(weights, folder / "model.safetensors")
    assert "model.safetensors is not the one that config.json was written for" in refused(
        lambda: pwoa.load_model(folder)
    )


@pytest.mark.parametrize("how", ["missing", "unexpected", "shape", "nan"])
def test_every_tensor_must_fit_even_if_the_fingerprint_was_made_for_it(folder: Path, how: str) -> None:
    weights = load_file(folder / "model.safetensors")
    if how == "missing":
        del weights["conv1.bias"]
    elif how == "unexpected":
        weights["conv9.bias"] = torch.zeros(1)
    elif how == "shape":
        weights["conv1.bias"] = torch.zeros(9)
    else:
        weights["conv1.bias"][0] = float("nan")
    save_file(weights, folder / "model.safetensors")
    change(folder, fingerprint=state_fingerprint(weights))
    message = refused(lambda: pwoa.load_model(folder))
    assert {"nan": "NaN", "shape": "conv1.bias is 9"}.get(how, how) in message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architecture": "os:system"}, "which only your own code can build"),
        ({"architecture": "lenett"}, "unknown architecture 'lenett'"),
        ({"architecture": ["lenet"]}, "architecture in config.json must be a name, not ['lenet']"),
        ({"classes": -3}, "classes in config.json must be a whole number above 0, not -3"),
        ({"classes": True}, "classes in config.json must be a whole number above 0"),
        ({"channels": None}, "does not say its classes and channels"),
        ({"width": "wide"}, "width in config.json must be a number, not 'wide'"),
        ({"width": 11}, "the width of lenet must be a number above 0 and up to 10"),
        ({"normalisation": {"mean": "0.5"}}, "normalisation in config.json must be lists of numbers"),
        ({"normalisation": [0.5]}, "normalisation in config.json must be lists of numbers"),
        ({"threat": {"norm": "l7", "radius": 1, "step": 1}}, "threat in config.json must be norm, radius and step"),
        ({"threat": "linf"}, "threat in config.json must be norm, radius and step"),
        ({"sparsity": []}, "sparsity in config.json must be the total and kept weights of each layer"),
        (
            {"sparsity": [{"total": 2, "kept": 1}]},
            "sparsity in config.json must be the total and kept weights of each layer",
        ),
        ({"nonzero": 10**400}, "nonzero in config.json must be a whole number"),
        ({"sparsity": [{"total": "many"}]}, "sparsity in config.json must be the total and kept weights of each layer"),
        ({"fingerprint": None}, "fingerprint in config.json must be a SHA-256"),
        ({"fingerprint": "0" * 64}, "another fingerprint"),
        ({"format": 2}, "saved by a later version of pwoa"),
        ({"classes": 4}, "the model wants"),
    ],
)
def test_a_config_that_is_wrong_is_one_line(folder: Path, values: dict[str, Any], message: str) -> None:
    change(folder, **values)
    assert message in refused(lambda: pwoa.load_model(folder))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", "config.json is damaged (Expecting"),
        ("config.json", b"[" * 100_000, "config.json is damaged (it is nested too deeply"),
        ("config.json", b"[]", "it is not of a model that pwoa saved"),
        ("config.json", b'{"architecture": "resnet50"}', "has no architecture or fingerprint"),
        ("config.json", None, "is neither a run nor a model folder: it has no recipe.toml or config.json"),
        ("model.safetensors", None, "is no model folder: it has no model.safetensors"),
        ("model.safetensors", b"\x80\x04cos\nsystem\n", "is not a safetensors file"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(folder: Path, file: str, content: bytes | None, message: str) -> None:
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    assert message in refused(lambda: pwoa.load_model(folder))


def test_the_hub_is_needed_only_to_fetch_and_to_push(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert pwoa.load_model(folder) is not None
    needs = "needs huggingface_hub: pip install 'pwoa[hub]'"
    assert needs in refused(lambda: pwoa.load_model("hf:me/net"))
    assert "me/net does not exist; give " in refused(lambda: pwoa.load_model("me/net"))
    assert needs in refused(lambda: pwoa.push_to_hub(folder, "me/net"))


@pytest.mark.parametrize("name", ["hf:net", "hf:me/net/more", "hf:", "hf:me/ne t"])
def test_a_name_that_cannot_be_on_the_hub(name: str) -> None:
    assert "which is named hf:owner/name" in refused(lambda: pwoa.load_model(name))


def test_a_folder_has_no_revisions(folder: Path) -> None:
    assert "has no revisions" in refused(lambda: pwoa.load_model(folder, revision="main"))
    assert "leave out revision='b'" in refused(lambda: pwoa.load_model("hf:me/net@a", revision="b"))


def test_a_model_folder_is_a_model_and_a_checkpoint(tmp_path: Path, folder: Path, digits: Data) -> None:
    assert fingerprint(pwoa.load_model(str(folder), digits)) == fingerprint(network())
    for architecture in (None, "auto", network("lenet@0.02")):
        assert fingerprint(pwoa.load_model(folder, digits, architecture=architecture)) == fingerprint(network())
    behind = pwoa.save_pretrained(Normalised(network(), [0.1307], [0.3081]), tmp_path / "behind")
    loaded = pwoa.load_model(behind, digits, architecture="auto")
    assert isinstance(loaded, Normalised)
    assert torch.equal(logits(loaded), logits(pwoa.load_model(behind)))
    assert "knows its architecture" in refused(lambda: pwoa.load_model(str(folder), digits, architecture="lenet"))
    assert "knows its normalisation" in refused(lambda: pwoa.load_model(str(folder), digits, mean=[0.1], std=[0.2]))


def test_a_model_folder_of_ones_own_is_named_with_its_factory(tmp_path: Path, digits: Data) -> None:
    source = tmp_path / "nets.py"
    source.write_text("from torch import nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))\n")
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 3))
    folder = pwoa.save_pretrained(model, tmp_path / "model")
    assert fingerprint(pwoa.load_model(str(folder), digits, architecture=f"{source}:net")) == fingerprint(model)
    assert "--arch FILE.py:CLASS" in refused(lambda: pwoa.load_model(str(folder), digits))


@pytest.fixture
def digits() -> Data:
    images = Images(torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(1)), torch.arange(4) % 3)
    return Data("digits", images, images, 3)
