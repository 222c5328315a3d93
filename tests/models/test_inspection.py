"""A checkpoint of a network that nobody knows: what is shown of it, and the skeleton of its class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from typer.testing import CliRunner

import pwoa
from pwoa.cli import app
from pwoa.models.architectures.registry import build
from pwoa.models.checkpoints.files import misfit, open_checkpoint
from pwoa.models.checkpoints.skeleton import write_skeleton
from pwoa.models.factory import load_factory


class Blocks(nn.Module):
    """Convolutions, depthwise too, in a nested sequence; a token, and an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.layers = nn.ModuleList([nn.Sequential(nn.Conv2d(8, 8, (3, 1), groups=8), nn.Conv2d(8, 4, 1))])
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("index", torch.arange(5))
        self.head = nn.Linear(4, 7)


def networks() -> dict[str, nn.Module]:
    return {
        "blocks": Blocks(),
        "sequence": nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)),
        "residual": build("resnet18@0.0625", 10, 3),
        "encoder": nn.TransformerEncoderLayer(8, 2, 16),
        "transposed": nn.Sequential(nn.ConvTranspose2d(3, 5, 2), nn.BatchNorm1d(5, affine=False)),
        "weight norm": nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))),
        "recurrent": nn.LSTM(3, 4),
    }


@pytest.mark.parametrize("name", networks())
def test_every_tensor_fits_the_skeleton(name: str, tmp_path: Path) -> None:
    state = networks()[name].state_dict()
    (tmp_path / "net.py").write_text(write_skeleton(state))
    model = load_factory(f"{tmp_path / 'net.py'}:Net")
    assert misfit(model, state) == ""
    with pytest.raises(NotImplementedError, match="write how images become logits"):
        model(torch.zeros(1))


def test_the_layers_of_a_skeleton_are_those_that_names_and_shapes_tell() -> None:
    source = write_skeleton(Blocks().state_dict())
    for line in (
        "self.stem.add_module('0', nn.Conv2d(3, 8, 3, padding=1, bias=False))",
        "self.stem.add_module('1', nn.BatchNorm2d(8))",
        "add_module('0', nn.Conv2d(8, 8, (3, 1), padding=(1, 0), groups=8))",
        "add_module('1', nn.Conv2d(8, 4, 1, padding=0))",
        "self.attention = nn.MultiheadAttention(4, 1, batch_first=True)",
        "self.norm = nn.LayerNorm(4)",
        "self.head = nn.Linear(4, 7)",
    ):
        assert f"{line}\n" in source


def test_a_name_in_a_file_is_never_code() -> None:
    state = {"a'); raise SystemExit; ('.weight": torch.zeros(2, 2), 'x"""\n1/0.class.weight': torch.zeros(2)}
    names: dict[str, Any] = {}
    exec(write_skeleton(state), names)
    assert dict(names["Net"]().state_dict()).keys() == {"a'); raise SystemExit; ('.weight", 'x"""\n1/0.class.weight'}


@pytest.mark.parametrize("name", ["a." * 5_000 + "weight", "a..weight", ".weight", "__class__.weight", "a.forward"])
def test_of_names_that_no_network_can_have_there_is_no_skeleton(name: str, tmp_path: Path) -> None:
    file, wanted = tmp_path / "odd.pt", tmp_path / "odd.py"
    torch.save({name: torch.zeros(3, 4), "fc.weight": torch.zeros(10, 3)}, file)
    assert CliRunner().invoke(app, ["models", "inspect", str(file)]).exit_code == 0
    done = CliRunner().invoke(app, ["models", "inspect", str(file), "--skeleton", str(wanted)])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "no checkpoint file with tensors that a class can have; leave out --skeleton" in done.stderr
    assert not wanted.exists()


def test_an_unknown_network_is_shown_with_its_tensors_and_guesses(tmp_path: Path) -> None:
    file = tmp_path / "blocks.pt"
    torch.save({"state_dict": {f"module.{key}": value for key, value in Blocks().half().state_dict().items()}}, file)
    found = pwoa.inspect_checkpoint(file)
    assert (found.architecture, found.classes, found.channels) == (None, 7, 3)
    assert found.layout[0] == ("token", (1, 1, 4), "float16")
    done = CliRunner().invoke(app, ["models", "inspect", str(file), "--skeleton", str(tmp_path / "mynet.py")])
    assert done.exit_code == 0, done.output
    assert "7 (a guess by the shapes)" in done.output
    assert "3 (a guess by the shapes)" in done.output
    shown = {line.split()[1]: line.split()[3:6:2] for line in done.output.splitlines() if line.count("│") == 4}
    assert shown["stem.0.weight"] == ["8×3×3×3", "float16"]
    assert shown["index"] == ["5", "int64"]
    assert shown["stem.1.num_batches_tracked"] == ["a", "│"]
    model = pwoa.load_model(f"{tmp_path / 'mynet.py'}:Net", checkpoint=file)
    assert isinstance(model.head, nn.Linear)
    again = CliRunner().invoke(app, ["models", "inspect", str(file), "--skeleton", str(tmp_path / "mynet.py")])
    assert (again.exit_code, "mynet.py exists; give --skeleton the name of a new file" in again.output) == (2, True)


def test_a_known_network_is_shown_without_its_tensors(tmp_path: Path) -> None:
    torch.save(build("lenet@0.05", 10, 1).state_dict(), tmp_path / "lenet.pt")
    done = CliRunner().invoke(app, ["models", "inspect", str(tmp_path / "lenet.pt")])
    assert "lenet@0.05" in done.output
    assert "a guess" not in done.output
    assert "conv1.weight" not in done.output


def test_an_onnx_file_is_inspected(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["pixels"], ["logits"])],
        "net",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 3, 2, 2])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 12])],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    done = CliRunner().invoke(app, ["models", "inspect", str(path)])
    assert done.exit_code == 0, done.output
    for text in ("it can be measured, not pruned", "pixels: ?×3×2×2 of float32", "logits: n×12", "--mean and --std"):
        assert text in done.output
    refused = CliRunner().invoke(app, ["models", "inspect", str(path), "--skeleton", str(tmp_path / "x.py")])
    assert refused.exit_code == 2
    assert "is no checkpoint file" in refused.output
    assert not (tmp_path / "x.py").exists()


@pytest.mark.parametrize("wrap", [lambda s: [s], lambda s: (s,), lambda s: {"net": [s]}, lambda s: [{"state_dict": s}]])
def test_a_list_with_one_network_is_unwrapped(wrap: Any, tmp_path: Path) -> None:
    network = build("lenet@0.05", 10, 1)
    torch.save(wrap(network.state_dict()), tmp_path / "one.pt")
    opened = open_checkpoint(tmp_path / "one.pt")
    assert misfit(network, opened.tensors) == ""
    assert "0" in opened.container
    assert pwoa.inspect_checkpoint(tmp_path / "one.pt").architecture == "lenet@0.05"
