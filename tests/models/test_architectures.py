from __future__ import annotations

import pytest
import torch
from torch import nn

from pwoa.errors import InputError
from pwoa.models import ARCHITECTURES, architecture_name, build
from pwoa.models.lenet import LeNet
from pwoa.models.resnet import ResNet18
from pwoa.sparsity import count


@pytest.mark.parametrize(
    ("name", "channels", "parameters", "prunable"),
    [("lenet", 1, 3_274_634, 3_273_504), ("resnet18", 3, 11_173_962, 11_164_352)],
)
def test_the_number_of_parameters(name: str, channels: int, parameters: int, prunable: int) -> None:
    model = build(name, 10, channels)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert count(model)[-1].total == prunable


def test_the_keys_of_lenet_are_those_of_the_published_checkpoints() -> None:
    assert list(LeNet().state_dict()) == [
        f"{layer}.{kind}" for layer in ("conv1", "conv2", "fc1", "fc2") for kind in ("weight", "bias")
    ]


def test_the_keys_of_resnet18_are_those_of_the_published_checkpoints() -> None:
    state = ResNet18().state_dict()
    assert {key.partition(".")[0] for key in state} == {
        "conv1",
        "bn1",
        "layer1",
        "layer2",
        "layer3",
        "layer4",
        "linear",
    }
    shapes = {key: tuple(value.shape) for key, value in state.items()}
    assert shapes["conv1.weight"] == (64, 3, 3, 3)
    assert shapes["layer1.0.conv1.weight"] == (64, 64, 3, 3)
    assert shapes["layer2.0.shortcut.0.weight"] == (128, 64, 1, 1)
    assert shapes["layer2.0.shortcut.1.running_var"] == (128,)
    assert shapes["layer4.1.bn2.bias"] == (512,)
    assert shapes["linear.weight"] == (10, 512)
    assert "layer1.0.shortcut.0.weight" not in shapes
    assert len(shapes) == 122


@pytest.mark.parametrize(("name", "size"), [("lenet", 28), ("resnet18", 32)])
def test_classes_and_channels_are_as_asked(name: str, size: int) -> None:
    model = build(name, 7, 2).eval()
    with torch.no_grad():
        assert model(torch.rand(2, 2, size, size)).shape == (2, 7)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"unknown architecture 'resnet-18' \(did you mean 'resnet18'\?\)"):
        build("resnet-18", 10, 3)
    with pytest.raises(InputError, match=r"unknown architecture 'vgg' \(known: lenet, resnet18"):
        build("vgg", 10, 3)


def test_names_of_models() -> None:
    assert [architecture_name(build(name, 10, 1)) for name in ("lenet", "resnet18")] == ["lenet", "resnet18"]
    assert set(ARCHITECTURES) >= {"lenet", "resnet18"}

    class Mine(LeNet):
        pass

    assert architecture_name(Mine()).endswith("Mine")
    assert architecture_name(nn.Linear(1, 1)) == "torch.nn.modules.linear:Linear"
