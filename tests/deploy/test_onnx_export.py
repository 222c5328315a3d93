"""ONNX files: the same function as in torch, for any number of images, and nothing in them of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

import pwoa
from pwoa.data.images import Data
from pwoa.data.load import load_data
from pwoa.deploy import onnx_file
from pwoa.deploy.artefact import read_about
from pwoa.deploy.export import export
from pwoa.deploy.onnx_file import opened, to_onnx
from pwoa.errors import InputError
from pwoa.evaluation.evaluate import evaluate
from pwoa.models.architectures.registry import ARCHITECTURES, build
from pwoa.models.border import Normalised
from pwoa.models.load import load_model, trained_threat
from pwoa.models.onnx import OnnxModel
from pwoa.storage.folder import sealed, unsealed
from tests.conftest import TinyNet

WIDTHS = {"smallcnn": 0.5}
BUILT_ALIKE = {"lenet", "resnet34", "wrn-28-10", "wrn-34-10"}
"""Architectures of the same blocks as others, and the one that is embedded, which other tests export."""


def shaken(model: nn.Module) -> nn.Module:
    """Give batch normalisation statistics that do something, and weights that begin as zeros some values."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        if not bool(parameter.any()):
            nn.init.normal_(parameter, std=0.1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2)
    return model.eval().requires_grad_(False)


def agrees(model: nn.Module, x: Tensor) -> Any:
    """Export, check by onnx, and compare on other numbers of images than it was traced with; return the graph."""
    with torch.no_grad():
        wanted = model(x)
    graph = to_onnx(model, x[:2], wanted.shape[1])
    onnx.checker.check_model(graph, full_check=True)
    runnable = opened(graph, wanted.shape[1])
    for n in (1, 5):
        difference = (runnable(x[:n]) - wanted[:n]).abs().max() / wanted.abs().max()
        assert float(difference) <= 1e-5
    return graph


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - BUILT_ALIKE))
def test_every_architecture_is_the_same_function(name: str) -> None:
    torch.manual_seed(0)
    channels = ARCHITECTURES[name].channels
    size = 28 if channels == 1 else 32
    model = shaken(build(name, 10, channels, WIDTHS.get(name, 0.125)))
    graph = agrees(Normalised(model, [0.4] * channels, [0.3] * channels), torch.rand(5, channels, size, size))
    operators = [node.op_type for node in graph.graph.node]
    if not name.startswith(("preact", "wrn")):  # there it stands before its convolution
        assert "BatchNormalization" not in operators


class Vit(nn.Module):
    """A small vision transformer, with torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 7, stride=7)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 17, 16))
        self.attention, self.norm = nn.MultiheadAttention(16, 4, batch_first=True), nn.LayerNorm(16)
        self.out = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        x = x + self.attention(self.norm(x), self.norm(x), self.norm(x), need_weights=False)[0]
        logits: Tensor = self.out(nn.functional.gelu(x[:, 0]))
        return logits


class Several(nn.Module):
    """A network that gives its logits among other things, and has layers that are not a list."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, stride=2, groups=1), nn.GroupNorm(2, 8)
        self.deep, self.out = nn.Conv2d(8, 8, 3, groups=8, dilation=2, padding=2), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = nn.functional.silu(self.norm(self.conv(x)))
        h = nn.functional.avg_pool2d(torch.cat([h, self.deep(h)], 3), 2)
        return {"logits": self.out(h.amax((2, 3))), "features": h}


@pytest.fixture(scope="module")
def digits_data() -> Data:
    return load_data("mnist-mini")


@pytest.mark.parametrize("network", [Vit, Several])
def test_networks_of_ones_own_are_the_same_function(
    network: type[nn.Module], digits_data: Data, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    made = export(network().eval(), "onnx", tmp_path, data=digits_data, images=20)
    assert made.check is not None
    assert made.check.difference <= 1e-5
    assert made.check.same == 20
    assert load_model(made.path, digits_data)(torch.rand(3, 1, 28, 28)).shape == (3, 10)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export("embedded", "onnx", tmp_path_factory.mktemp("onnx"), images=50).path


def test_the_file_says_what_it_is_and_nothing_of_this_machine(file: Path) -> None:
    about, graph = read_about(file), onnx.load(str(file))
    assert about["architecture"] == "lenet"
    assert about["input"] == {"shape": [1, 28, 28], "range": [0, 1], "normalisation": "inside"}
    assert about["threat"]["radius"] == 0.3
    assert about["checked"]["images"] == 50
    assert "lenet" in graph.doc_string
    assert graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    content = file.read_bytes()
    assert not any(word in content for word in (b"site-packages", b".py", str(Path.home()).encode(), b"stack_trace"))
    assert OnnxModel(file).describe()["written by"] == "pwoa"


def test_the_same_export_gives_the_same_bytes(file: Path, tmp_path: Path) -> None:
    assert export("embedded", "onnx", tmp_path, images=50).path.read_bytes() == file.read_bytes()


def test_it_is_measured_by_the_threat_it_was_made_for(tmp_path: Path, digits_data: Data) -> None:
    made = export("embedded", "onnx", tmp_path, images=4)
    assert trained_threat(made.path) == trained_threat("embedded")
    graph = onnx.load(str(made.path))
    about = unsealed(json.loads(graph.metadata_props[0].value), "it")
    onnx_file.save(graph, made.path, about | {"threat": {"norm": "linf", "radius": 0.1, "step": 0.01}})
    scores = evaluate(made.path, digits_data, images=10, attacks="natural", checks=False, progress=False)
    assert scores.threat.radius == 0.1
    graph.metadata_props[0].value = json.dumps(sealed(about | {"threat": "strong"}))
    made.path.write_bytes(graph.SerializeToString())
    with pytest.raises(InputError, match="threat in its description must be norm, radius and step"):
        trained_threat(made.path)
    made.path.write_bytes(made.path.read_bytes()[:-10])
    with pytest.raises(InputError, match="protobuf is damaged"):
        trained_threat(made.path)


class Branches(nn.Module):
    """A network that looks at values to decide what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(x.flatten(1))
        return logits if float(logits.sum()) > 0 else -logits


def test_what_cannot_be_exported_is_refused_in_one_line(digits_data: Data, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(InputError, match="torch cannot export this network to ONNX") as caught:
        export(Branches(), "onnx", tmp_path, data=digits_data, images=4)
    assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_computes_something_else_is_not_put_in_place(
    tiny_teacher: TinyNet, tiny_data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = onnx_file.to_onnx

    def wrong(model: nn.Module, *rest: Any) -> Any:
        with torch.no_grad():
            model.out.bias[0] += 1  # type: ignore[index, union-attr, operator]
            graph = honest(model, *rest)
            model.out.bias[0] -= 1  # type: ignore[index, union-attr, operator]
        return graph

    monkeypatch.setattr(onnx_file, "to_onnx", wrong)
    with pytest.raises(InputError, match="onnx does not compute what the model does: difference to torch"):
        export(tiny_teacher, "onnx", tmp_path, data=tiny_data)
    assert list(tmp_path.iterdir()) == []


def test_the_exporter_is_quiet(tiny_teacher: TinyNet, tiny_data: Data, tmp_path: Path, capfd: Any) -> None:
    pwoa.export(tiny_teacher, "onnx", tmp_path, data=tiny_data)
    assert capfd.readouterr() == ("", "")
