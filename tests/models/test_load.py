"""A model as a person names it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.models.architectures.registry import architecture_name, build
from pwoa.models.border import Normalised
from pwoa.models.checkpoints.folder import CONFIG, FORMAT, WEIGHTS, describe_model, fingerprint, to_safetensors
from pwoa.models.load import kind_of, load_model
from pwoa.models.onnx import OnnxModel
from pwoa.recipe import RECIPE

SOURCE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

def other():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))

def likely():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Softmax(1))
"""


@pytest.fixture(scope="module")
def data() -> Data:
    images = Images(torch.rand(4, 1, 28, 28), torch.arange(4))
    return Data("mine", images, images, 10)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Weights for what `nets.py:net` makes, but not those it has."""
    path = tmp_path / "net.pt"
    torch.save(linear(7).state_dict(), path)
    return path


@pytest.fixture
def run(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    return write_run(tmp_path / "run", lenet())


@pytest.fixture
def own_run(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    """The run of a network of a user's own."""
    return write_run(tmp_path / "own", linear(7))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as on the hub."""
    path, model = tmp_path / "model", lenet()
    path.mkdir()
    about = describe_model(model, 10, 1) | {"format": FORMAT, "width": 1.0, "fingerprint": fingerprint(model)}
    (path / CONFIG).write_text(json.dumps(about))
    (path / WEIGHTS).write_bytes(to_safetensors(model.state_dict()))
    return path


@pytest.fixture
def lenet_file(tmp_path: Path) -> Path:
    path = tmp_path / "lenet.pt"
    torch.save({"state_dict": lenet().state_dict()}, path)
    return path


def linear(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def lenet(classes: int = 10) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build("lenet", classes, 1)


def save_onnx(path: Path, classes: int = 10) -> Path:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [784, classes], [0.0] * 784 * classes)
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", classes])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def refused(source: Any, data: Data | None = None, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_model(source, data, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_is(model: nn.Module, expected: nn.Module) -> None:
    assert fingerprint(model) == fingerprint(expected)
    assert not model.training


def test_a_run_folder(run: Path, data: Data) -> None:
    for source in (run, str(run)):
        assert_is(load_model(source), lenet())
    assert_is(load_model(run, data), lenet())
    assert_is(load_model(run, architecture="auto"), lenet())
    (run / RECIPE).unlink()
    assert_is(load_model(run), lenet())


def test_a_model_folder(folder: Path, data: Data) -> None:
    assert_is(load_model(folder), lenet())
    assert_is(load_model(str(folder), data), lenet())


def test_a_model_on_the_hub(folder: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def snapshot_download(repo: str, *, revision: str | None, **_: object) -> str:
        asked.append((repo, revision))
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    assert_is(load_model("hf:me/net"), lenet())
    assert_is(load_model("hf:me/net@v1", data), lenet())
    assert_is(load_model("hf:me/net", revision="v2"), lenet())
    assert asked == [("me/net", None), ("me/net", "v1"), ("me/net", "v2")]
    assert refused("hf:me/net@v1", revision="v2") == "hf:me/net@v1 says its revision; leave out revision='v2'"
    assert refused("hf:net") == "hf:net is no model on the hub, which is named hf:owner/name"
    assert refused("hf:me/net", data, architecture="lenet") == "hf:me/net knows its architecture; leave out --arch"


@pytest.mark.parametrize(
    "revision", ["../../..", "a/../b", "/etc", "a//b", ".", "..", "a/..", "a/", "", "a b", "é", ".x"]
)
def test_a_revision_is_no_way_out_of_the_cache(revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for name, given in ((f"hf:me/net@{revision}", None), ("hf:me/net", revision)):
        assert "on the hub" in refused(name, revision=given)
        assert "needs huggingface_hub" not in refused(name, revision=given)


@pytest.mark.parametrize(
    "name", ["hf:../net", "hf:me/..", "hf:./net", "hf:a/b/c", "hf:me/n..t", "hf:me/" + "n" * 97, "hf:é/net"]
)
def test_a_name_is_one_that_the_hub_allows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refused(name) == f"{name} is no model on the hub, which is named hf:owner/name"


@pytest.mark.parametrize(
    "name", ["hf:me/net@refs/pr/1", "hf:me/net@v1.0", "hf:m-e_/n.et-1@0a1b2c", "hf:me/net@feature/x-y"]
)
def test_what_the_hub_allows_is_asked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "needs huggingface_hub" in refused(name)


def test_a_checkpoint_is_recognised(lenet_file: Path, data: Data) -> None:
    for architecture in (None, "auto", "lenet", lenet()):
        assert_is(load_model(lenet_file, data, architecture=architecture), lenet())
        assert_is(load_model(str(lenet_file), architecture=architecture), lenet())


def test_without_data_the_file_tells_the_classes_and_channels(tmp_path: Path, checkpoint: Path) -> None:
    torch.save(lenet(classes=7).state_dict(), tmp_path / "seven.pt")
    for architecture in (None, "lenet"):
        assert_is(load_model(tmp_path / "seven.pt", architecture=architecture), lenet(classes=7))
    assert "it looks like a lenet: try --arch lenet" in refused(tmp_path / "seven.pt", architecture="smallcnn")
    said = f"{checkpoint} does not tell the classes and channels of its lenet; give the data it is for"
    assert refused(checkpoint, architecture="lenet") == said
    state = lenet().state_dict()
    del state["fc2.bias"]
    torch.save(state, tmp_path / "cut.pt")
    assert "(nearest is lenet, without its fc2.bias); give the data" in refused(
        tmp_path / "cut.pt", architecture="lenet"
    )


def test_a_checkpoint_of_an_architecture_of_ones_own(source: Path, checkpoint: Path, data: Data) -> None:
    for images in (data, None):
        assert_is(load_model(checkpoint, images, architecture=f"{source}:net"), linear(7))
        assert_is(load_model(checkpoint, images, architecture=linear(0)), linear(7))


def test_the_embedded_one(data: Data, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("embedded", data)
    assert architecture_name(model) == "lenet"
    assert fingerprint(model) != fingerprint(lenet())
    assert_is(load_model("embedded", architecture="lenet"), model)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "embedded")
    assert_is(load_model("embedded"), model)
    assert_is(load_model("./embedded"), lenet())


def test_a_factory(source: Path, checkpoint: Path, data: Data) -> None:
    name = f"{source}:net"
    for images in (data, None):
        assert_is(load_model(name, images), linear(0))
        assert_is(load_model(name, images, checkpoint=checkpoint), linear(7))


def test_a_factory_in_a_module_of_the_current_folder(source: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    (source.parent / "mine_for_this_test.py").write_text(SOURCE)
    assert_is(load_model("mine_for_this_test:net", data), linear(0))


def test_an_onnx_file(tmp_path: Path, data: Data) -> None:
    path = save_onnx(tmp_path / "net.onnx")
    model = load_model(path, data)
    assert isinstance(model, OnnxModel)
    assert model.classes == 10
    assert fingerprint(load_model(str(path))) == model.fingerprint


def test_a_network_is_returned_as_it_is(data: Data) -> None:
    model = lenet().train()
    assert load_model(model) is model
    assert not model.training
    assert load_model(model, data) is model
    normalised = load_model(model, mean=[0.5], std=[0.25])
    assert isinstance(normalised, Normalised)
    assert normalised.model is model
    assert normalised.numbers == ((0.5,), (0.25,))
    assert "a LeNet knows its architecture" in refused(model, architecture="lenet")
    assert "a LeNet has its own weights" in refused(model, checkpoint="a.pt")


@pytest.mark.parametrize("kind", ["file", "factory", "filled factory", "network"])
def test_a_normalisation_that_is_given(kind: str, source: Path, checkpoint: Path, lenet_file: Path, data: Data) -> None:
    sources: dict[str, Any] = {"file": lenet_file, "network": lenet()}
    options: dict[str, Any] = {"checkpoint": checkpoint} if kind == "filled factory" else {}
    for images in (data, None):
        model = load_model(sources.get(kind, f"{source}:net"), images, mean=[0.5], std=[0.25], **options)
        assert isinstance(model, Normalised)
        assert model.numbers == ((0.5,), (0.25,))
        assert not model.training
    said = refused(sources.get(kind, f"{source}:net"), data, mean=[0.5, 0.5], std=[0.1, 0.1], **options)
    assert said == "the mean has length 2; give one number a channel, 1 in all"
    said = refused(sources.get(kind, f"{source}:net"), mean=[0.5], std=[0.1, 0.1], **options)
    assert said == "the std has length 2; give one number a channel, 1 in all"


def test_a_run_of_a_network_of_ones_own_needs_its_code(own_run: Path, source: Path, data: Data) -> None:
    assert refused(own_run, data) == (
        f"{own_run} holds a torch.nn.modules.container:Sequential, which only your own code can build, and no file can "
        "ask to run code; if you trust it, give it yourself: --arch FILE.py:CLASS "
        "(in Python: architecture= of load_model)"
    )
    for architecture in (f"{source}:net", linear(0)):
        assert_is(load_model(own_run, data, architecture=architecture), linear(7))
    assert "1.weight is 10×784, the model wants 3×784" in refused(own_run, architecture=f"{source}:other")


@pytest.mark.parametrize(
    ("recorded", "typed"),
    [
        ("nets.py:net", "nets.py:net"),
        ("my nets/net.py:Net", "'my nets/net.py:Net'"),
        ("nets:Net", "nets:Net"),
        ("__main__:Net", "FILE.py:Net"),  # of a script, which has no name of its own
        ("__main__:make.<locals>.Net", "FILE.py:CLASS"),
        ("nets:Outer.Net", "FILE.py:CLASS"),
    ],
)
def test_what_to_type_for_a_network_of_ones_own(own_run: Path, recorded: str, typed: str) -> None:
    about = json.loads((own_run / "model.json").read_text())
    (own_run / "model.json").write_text(json.dumps(about | {"architecture": recorded}))
    assert refused(own_run).endswith(f"give it yourself: --arch {typed} (in Python: architecture= of load_model)")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("run", "folder"),
        ("model", "folder"),
        ("hf:owner/name", "folder"),
        ("net.onnx", "onnx"),
        ("nets.py:net", "factory"),
        ("nets:net", "factory"),
        ("net.pt", "file"),
        ("embedded", "file"),
        ("nowhere", "file"),
        (".", "file"),
    ],
)
def test_kinds(path: str, kind: str, run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    assert kind_of(path) == kind
    assert kind_of(nn.Flatten()) == "network"


@pytest.mark.parametrize("kind", ["run", "folder", "file", "embedded", "factory", "onnx", "network"])
def test_other_classes_or_channels_than_the_datas_are_refused(
    kind: str, run: Path, folder: Path, lenet_file: Path, source: Path, tmp_path: Path, data: Data
) -> None:
    path = save_onnx(tmp_path / "net.onnx")
    names: dict[str, Any] = {"run": run, "folder": folder, "file": lenet_file, "factory": f"{source}:net", "onnx": path}
    name = lenet() if kind == "network" else names.get(kind, "embedded")
    other = Data("mine", data.train, data.test, 3)
    assert any(
        said in refused(name, other)
        for said in ("gives 10 classes, the data has 3", "the file has 10 classes, the data has 3")
    )
    colours = Images(torch.rand(4, 3, 28, 28), torch.arange(4))
    said = refused(name, Data("mine", colours, colours, 10))
    assert "3-channel" in said or "3×28×28" in said


def test_probabilities_can_be_measured(source: Path, data: Data) -> None:
    assert isinstance(load_model(f"{source}:likely", data), nn.Sequential)


@pytest.mark.parametrize("kind", ["run", "folder", "factory", "onnx"])
def test_what_knows_its_architecture_takes_no_other(
    kind: str, run: Path, folder: Path, source: Path, tmp_path: Path, data: Data
) -> None:
    path = save_onnx(tmp_path / "net.onnx")
    name = str({"run": run, "folder": folder, "factory": f"{source}:net", "onnx": path}[kind])
    assert refused(name, data, architecture="lenet") == f"{name} knows its architecture; leave out --arch"
    if kind in ("factory", "onnx"):
        assert "knows its architecture" in refused(name, data, architecture=lenet())


@pytest.mark.parametrize("kind", ["run", "folder", "file", "onnx"])
def test_what_has_its_own_weights_takes_no_others(
    kind: str, run: Path, folder: Path, checkpoint: Path, tmp_path: Path, data: Data
) -> None:
    path = save_onnx(tmp_path / "net.onnx")
    name = str({"run": run, "folder": folder, "file": checkpoint, "onnx": path}[kind])
    said = f"--checkpoint goes with a factory MODULE:FUNCTION; {name} has its own weights"
    assert refused(name, data, checkpoint=checkpoint) == said


@pytest.mark.parametrize("kind", ["run", "folder"])
def test_what_knows_its_normalisation_takes_no_other(kind: str, run: Path, folder: Path) -> None:
    name = str({"run": run, "folder": folder}[kind])
    assert refused(name, mean=[0.1], std=[0.2]) == f"{name} knows its normalisation; leave out --mean and --std"


def test_options_of_other_sources_are_refused(run: Path, source: Path, lenet_file: Path) -> None:
    for name in (str(run), f"{source}:net"):
        said = f"kept=0.5 goes with a checkpoint file that has scores; leave it out for {name}"
        assert refused(name, kept=0.5) == said
    for name in (str(run), str(lenet_file), f"{source}:net"):
        said = f"{name} is not on the hub, and has no revisions; leave out revision='v1'"
        assert refused(name, revision="v1") == said


def test_names_of_nothing(tmp_path: Path, source: Path, checkpoint: Path, data: Data) -> None:
    missing = tmp_path / "nowhere"
    kinds = "a run folder, a model folder, a checkpoint, FILE.py:CLASS, an .onnx file or hf:owner/name"
    assert refused(missing, data) == f"{missing} does not exist; give {kinds}"
    assert refused(f"{missing}.onnx", data) == f"{missing}.onnx does not exist"
    assert f"{missing}.py does not exist" in refused(f"{missing}.py:net", data)
    assert "has no 'nett' (did you mean 'net'?)" in refused(f"{source}:nett", data)
    for architecture in (None, "lenet"):
        said = f"{tmp_path} is neither a run nor a model folder: it has no recipe.toml or config.json"
        assert refused(tmp_path, data, architecture=architecture) == said
    assert "is of no registered architecture; for a network of your own give --arch FILE.py:CLASS" in refused(
        checkpoint, data
    )
    assert "unknown architecture 'lenett' (did you mean 'lenet'?)" in refused(checkpoint, data, architecture="lenett")
    said = "a checkpoint is the path of a file or a folder, not a OrderedDict"
    assert refused(f"{source}:net", checkpoint=linear(7).state_dict()) == said


def test_weights_that_do_not_fit(source: Path, checkpoint: Path, data: Data) -> None:
    assert "does not fit LeNet: missing" in refused(checkpoint, data, architecture="lenet")
    misfit = "1.weight is 10×784, the model wants 3×784"
    assert misfit in refused(checkpoint, data, architecture=f"{source}:other")
    assert misfit in refused(f"{source}:other", data, checkpoint=checkpoint)
    assert "does not exist" in refused(f"{source}:net", data, checkpoint=source.parent / "no.pt")


def test_a_run_that_has_not_finished(tmp_path: Path, data: Data, write_run: Callable[..., Path]) -> None:
    path = write_run(tmp_path / "run", None)
    assert refused(path, data) == f"{path} has not finished yet; start it again to resume"


def test_a_folder_that_lacks_something(run: Path, folder: Path) -> None:
    (run / WEIGHTS).unlink()
    assert refused(run) == f"{run} is no model folder: it has no model.safetensors"
    about = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(about | {"classes": None}))
    assert refused(folder) == f"{folder} does not say its classes and channels"
    (folder / CONFIG).write_text(json.dumps(about))
    (folder / WEIGHTS).write_bytes(to_safetensors(build("lenet", 10, 1).state_dict()))
    assert "is not the one that config.json was written for (another fingerprint)" in refused(folder)
