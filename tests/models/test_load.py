"""A model as a person names it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from pwoa.data.images import Data, Images
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from pwoa.models.checkpoints.tensors import fingerprint
from pwoa.models.load import is_run, named_model
from pwoa.models.onnx import OnnxModel
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Run, describe_model

SOURCE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

def other():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))
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
def run(tmp_path: Path) -> Path:
    made = Run(tmp_path / "run")
    made.begin(Recipe(), {})
    model = lenet()
    made.save_model(model, describe_model(model, 10, 1))
    return made.path


def linear(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def lenet() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build("lenet", 10, 1)


def save_onnx(path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 784])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def refused(name: str | Path, data: Data, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        named_model(str(name), data, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_folder(run: Path, data: Data) -> None:
    model = named_model(str(run), data)
    assert is_run(str(run))
    assert fingerprint(model) == fingerprint(lenet())
    assert not model.training


def test_a_checkpoint_of_a_registered_architecture(tmp_path: Path, data: Data) -> None:
    torch.save({"state_dict": lenet().state_dict()}, tmp_path / "lenet.pt")
    model = named_model(str(tmp_path / "lenet.pt"), data, architecture="lenet")
    assert fingerprint(model) == fingerprint(lenet())
    assert not model.training


def test_a_checkpoint_of_an_architecture_of_ones_own(source: Path, checkpoint: Path, data: Data) -> None:
    model = named_model(str(checkpoint), data, architecture=f"{source}:net")
    assert fingerprint(model) == fingerprint(linear(7))
    assert not model.training


def test_the_embedded_one(data: Data) -> None:
    model = named_model("embedded", data, architecture="lenet")
    assert fingerprint(model) != fingerprint(lenet())
    assert "to load a checkpoint give --arch NAME" in refused("embedded", data)


def test_a_factory(source: Path, checkpoint: Path, data: Data) -> None:
    name = f"{source}:net"
    assert fingerprint(named_model(name, data)) == fingerprint(linear(0))
    model = named_model(name, data, checkpoint=checkpoint)
    assert fingerprint(model) == fingerprint(linear(7))
    assert not model.training


def test_a_factory_in_a_module_of_the_current_folder(source: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    (source.parent / "mine_for_this_test.py").write_text(SOURCE)
    assert fingerprint(named_model("mine_for_this_test:net", data)) == fingerprint(linear(0))


def test_an_onnx_file(tmp_path: Path, data: Data) -> None:
    model = named_model(str(save_onnx(tmp_path / "net.onnx")), data)
    assert isinstance(model, OnnxModel)
    assert model.classes == 10


@pytest.mark.parametrize("kind", ["run", "factory", "onnx"])
def test_what_knows_its_architecture_takes_no_other(
    kind: str, run: Path, source: Path, tmp_path: Path, data: Data
) -> None:
    name = {"run": str(run), "factory": f"{source}:net", "onnx": str(save_onnx(tmp_path / "net.onnx"))}[kind]
    assert refused(name, data, architecture="lenet") == f"{name} knows its architecture; leave out --arch"


@pytest.mark.parametrize("kind", ["run", "file", "onnx"])
def test_what_has_its_own_weights_takes_no_others(
    kind: str, run: Path, checkpoint: Path, tmp_path: Path, data: Data
) -> None:
    name = {"run": str(run), "file": str(checkpoint), "onnx": str(save_onnx(tmp_path / "net.onnx"))}[kind]
    said = f"--checkpoint goes with a factory MODULE:FUNCTION; {name} has its own weights"
    assert refused(name, data, checkpoint=checkpoint) == said


def test_names_of_nothing(tmp_path: Path, source: Path, checkpoint: Path, data: Data) -> None:
    missing = tmp_path / "nowhere"
    kinds = "a run folder, a checkpoint, MODULE:FUNCTION or an .onnx file"
    assert refused(missing, data) == f"{missing} does not exist; give {kinds}"
    assert refused(f"{missing}.onnx", data) == f"{missing}.onnx does not exist"
    assert f"{missing}.py does not exist" in refused(f"{missing}.py:net", data)
    assert "has no 'nett' (did you mean 'net'?)" in refused(f"{source}:nett", data)
    assert (
        refused(tmp_path, data)
        == f"{tmp_path} is neither a run nor a model folder: it has no recipe.toml or config.json"
    )
    assert (
        refused(tmp_path, data, architecture="lenet")
        == f"{tmp_path} is neither a run nor a model folder: it has no recipe.toml or config.json"
    )
    assert "give --arch NAME, or --arch MODULE:FUNCTION for your own" in refused(checkpoint, data)
    assert "unknown architecture 'lenett' (did you mean 'lenet'?)" in refused(checkpoint, data, architecture="lenett")


def test_weights_that_do_not_fit(source: Path, checkpoint: Path, data: Data) -> None:
    assert "does not fit LeNet: missing" in refused(checkpoint, data, architecture="lenet")
    fits_not = "1.weight is 10×784, the model wants 3×784"
    assert fits_not in refused(checkpoint, data, architecture=f"{source}:other")
    assert fits_not in refused(f"{source}:other", data, checkpoint=checkpoint)
    assert "does not exist" in refused(f"{source}:net", data, checkpoint=source.parent / "no.pt")


def test_a_run_that_has_not_finished(tmp_path: Path, data: Data) -> None:
    Run(tmp_path / "run").begin(Recipe(), {})
    assert "has not finished yet; start it again to resume" in refused(tmp_path / "run", data)
