from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pwoa.errors import InputError
from pwoa.models.architectures.mnist import LeNet
from pwoa.models.architectures.registry import ARCHITECTURES, architecture_name, build, described, lite_width
from pwoa.models.architectures.resnet import scaled
from pwoa.models.checkpoints.files import load_state
from pwoa.models.checkpoints.folder import describe_model
from pwoa.models.folding import fold, fuse
from pwoa.models.hidden import hidden_points, recording
from pwoa.models.load import load_model
from pwoa.sparsity.constraint import count

SMALL = ("lenet", "smallcnn")
NARROW = 0.05
BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def images(name: str, channels: int = 3) -> Tensor:
    size = 28 if name in SMALL else 32
    return torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(0))


def narrow(name: str, classes: int = 7, channels: int = 3) -> nn.Module:
    """A lite network of any depth that is quick to run, with weights and statistics as if it had been trained."""
    torch.manual_seed(0)
    model = build(name, classes, channels, NARROW)
    for weight in model.parameters():
        nn.init.normal_(weight, 0, 0.3)
    for module in norms(model):
        nn.init.uniform_(module.get_buffer("running_mean"), -0.3, 0.3)
        nn.init.uniform_(module.get_buffer("running_var"), 0.5, 2)
        nn.init.uniform_(module.weight, 0.5, 1.5)
    return model


def norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def on_meta(name: str, classes: int = 10, channels: int = 3, width: float | None = None) -> nn.Module:
    with torch.device("meta"):
        return build(name, classes, channels, width)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def shapes(name: str, channels: int = 3) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in on_meta(name, 10, channels).state_dict().items()}


def test_every_architecture_has_its_published_number_of_parameters() -> None:
    published = {
        "lenet": 3_274_634,
        "resnet18": 11_173_962,
        "resnet34": 21_282_122,
        "resnet50": 23_520_842,
        "preactresnet18": 11_172_170,
        "wrn-28-4": 5_849_050,
        "wrn-28-10": 36_479_194,
        "wrn-34-10": 46_160_474,
        "vgg16": 14_728_266,
        "vgg16-hydra": 15_311_818,
        "smallcnn": 312_202,
    }
    assert {name: parameters(on_meta(name, 10, 1 if name in SMALL else 3)) for name in ARCHITECTURES} == published


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_the_table_states_is_what_the_network_has(name: str) -> None:
    stated = ARCHITECTURES[name]
    model = on_meta(name, 10, stated.channels)
    assert f"{type(model).__module__}:{type(model).__qualname__}" == stated.home
    assert parameters(model) == stated.parameters
    assert len(hidden_points(model, torch.empty(0))) == stated.hidden_points
    assert stated.channels == (1 if name in SMALL else 3)
    assert (name, stated.parameters, stated.hidden_points) in described()


def test_the_architectures_are_listed_without_torch() -> None:
    code = (
        "import sys; from pwoa.models.architectures.registry import described; described(); print(sorted(sys.modules))"
    )
    command, environment = [sys.executable, "-c", code], {"PYTHONPATH": ":".join(sys.path)}
    modules = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert "'pwoa.models.architectures.registry'" in modules
    assert "'torch'" not in modules


@pytest.mark.parametrize(("name", "channels", "prunable"), [("lenet", 1, 3_273_504), ("resnet18", 3, 11_164_352)])
def test_the_number_of_prunable_weights(name: str, channels: int, prunable: int) -> None:
    assert count(build(name, 10, channels))[-1].total == prunable


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("lenet", "conv1 conv2 fc1 fc2"),
        (
            "smallcnn",
            "feature_extractor.conv1 feature_extractor.conv2 feature_extractor.conv3 feature_extractor.conv4 "
            "classifier.fc1 classifier.fc2 classifier.fc3",
        ),
    ],
)
def test_the_keys_of_the_mnist_networks_are_those_of_the_published_checkpoints(name: str, layers: str) -> None:
    assert list(shapes(name, 1)) == [f"{layer}.{kind}" for layer in layers.split() for kind in ("weight", "bias")]


@pytest.mark.parametrize(
    ("name", "tensors", "roots"),
    [
        ("resnet18", 122, "conv1 bn1 layer1 layer2 layer3 layer4 linear"),
        ("resnet34", 218, "conv1 bn1 layer1 layer2 layer3 layer4 linear"),
        ("resnet50", 320, "conv1 bn1 layer1 layer2 layer3 layer4 linear"),
        ("preactresnet18", 107, "conv1 layer1 layer2 layer3 layer4 bn linear"),
        ("wrn-28-4", 155, "conv1 block1 block2 block3 bn1 fc"),
        ("wrn-34-10", 191, "conv1 block1 block2 block3 bn1 fc"),
        ("vgg16", 93, "features classifier"),
        ("vgg16-hydra", 84, "features classifier"),
    ],
)
def test_the_number_of_tensors_and_their_roots(name: str, tensors: int, roots: str) -> None:
    found = shapes(name)
    assert len(found) == tensors
    assert list(dict.fromkeys(key.partition(".")[0] for key in found)) == roots.split()


@pytest.mark.parametrize(
    ("name", "key", "shape"),
    [
        ("resnet18", "conv1.weight", (64, 3, 3, 3)),
        ("resnet18", "layer1.0.conv1.weight", (64, 64, 3, 3)),
        ("resnet18", "layer2.0.shortcut.0.weight", (128, 64, 1, 1)),
        ("resnet18", "layer2.0.shortcut.1.running_var", (128,)),
        ("resnet18", "layer4.1.bn2.bias", (512,)),
        ("resnet18", "linear.weight", (10, 512)),
        ("resnet34", "layer3.5.conv2.weight", (256, 256, 3, 3)),
        ("resnet50", "layer1.0.shortcut.0.weight", (256, 64, 1, 1)),
        ("resnet50", "layer2.0.conv1.weight", (128, 256, 1, 1)),
        ("resnet50", "layer2.0.conv2.weight", (128, 128, 3, 3)),
        ("resnet50", "layer4.2.conv3.weight", (2048, 512, 1, 1)),
        ("resnet50", "layer4.2.bn3.weight", (2048,)),
        ("resnet50", "linear.weight", (10, 2048)),
        ("preactresnet18", "layer2.0.bn1.weight", (64,)),
        ("preactresnet18", "layer2.0.conv1.weight", (128, 64, 3, 3)),
        ("preactresnet18", "layer2.0.shortcut.0.weight", (128, 64, 1, 1)),
        ("preactresnet18", "bn.running_mean", (512,)),
        ("wrn-28-10", "conv1.weight", (16, 3, 3, 3)),
        ("wrn-28-10", "block3.layer.3.bn2.weight", (640,)),
        ("wrn-34-10", "block1.layer.0.bn1.weight", (16,)),
        ("wrn-34-10", "block1.layer.0.convShortcut.weight", (160, 16, 1, 1)),
        ("wrn-34-10", "block2.layer.0.conv1.weight", (320, 160, 3, 3)),
        ("wrn-34-10", "block3.layer.4.conv2.weight", (640, 640, 3, 3)),
        ("wrn-34-10", "bn1.running_var", (640,)),
        ("wrn-34-10", "fc.weight", (10, 640)),
        ("vgg16", "features.0.bias", (64,)),
        ("vgg16", "features.40.weight", (512, 512, 3, 3)),
        ("vgg16", "features.41.running_mean", (512,)),
        ("vgg16", "classifier.weight", (10, 512)),
        ("vgg16-hydra", "features.40.weight", (512, 512, 3, 3)),
        ("vgg16-hydra", "classifier.0.weight", (256, 2048)),
        ("vgg16-hydra", "classifier.4.weight", (10, 256)),
    ],
)
def test_keys_and_shapes_are_those_of_the_published_checkpoints(name: str, key: str, shape: tuple[int, ...]) -> None:
    assert shapes(name)[key] == shape


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("resnet18", "layer1.0.shortcut.0.weight"),
        ("preactresnet18", "layer2.0.shortcut.1.weight"),
        ("preactresnet18", "layer1.0.shortcut.0.weight"),
        ("wrn-34-10", "block1.layer.1.convShortcut.weight"),
        ("wrn-34-10", "sub_block1.layer.0.conv1.weight"),
        ("vgg16-hydra", "features.0.bias"),
    ],
)
def test_what_the_published_checkpoints_do_not_use_is_not_there(name: str, absent: str) -> None:
    assert absent not in shapes(name)


def test_the_blocks_of_a_wide_network_have_these_keys_alone() -> None:
    block = {key.removeprefix("block1.layer.0.") for key in shapes("wrn-28-4") if key.startswith("block1.layer.0.")}
    normed = {f"bn{i}.{kind}" for i in (1, 2) for kind in BATCH_NORM}
    assert block == normed | {"conv1.weight", "conv2.weight", "convShortcut.weight"}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("lenet", 3),
        ("smallcnn", 6),
        ("resnet18", 10),
        ("resnet34", 18),
        ("resnet50", 18),
        ("preactresnet18", 10),
        ("wrn-28-4", 14),
        ("wrn-28-10", 14),
        ("wrn-34-10", 17),
        ("vgg16", 6),
        ("vgg16-hydra", 6),
    ],
)
def test_a_forward_pass_reaches_the_hidden_points_in_their_order(name: str, number: int) -> None:
    model = narrow(name).eval()
    points = hidden_points(model, images(name))
    with torch.no_grad(), recording(model, points) as found:
        assert model(images(name)).shape == (2, 7)
    assert list(found) == list(points)
    assert len(points) == number
    assert len({tuple(value.flatten().tolist()) for value in found.values()}) == number, "a point is there twice"


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg16", "vgg16-hydra", "smallcnn", "lenet"])
def test_hidden_activations_are_after_the_relu(name: str) -> None:
    model = narrow(name).train()  # in training, as HSIC sees them
    with torch.no_grad(), recording(model, hidden_points(model, images(name))) as found:
        model(images(name))
    assert all(float(value.min()) >= 0 for value in found.values())


@pytest.mark.parametrize("name", ["resnet18", "preactresnet18", "wrn-28-4", "vgg16-hydra"])
def test_other_sizes_of_images_fit(name: str) -> None:
    model = narrow(name, channels=1).eval()
    with torch.no_grad():
        assert model(torch.rand(1, 1, 28, 28)).shape == (1, 7)
        assert model(torch.rand(1, 1, 64, 64)).shape == (1, 7)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradients_reach_every_weight_and_the_image(name: str) -> None:
    model, x = narrow(name).train(), images(name).requires_grad_()
    nn.functional.cross_entropy(model(x), torch.tensor([0, 1])).backward()
    assert x.grad is not None
    assert bool(x.grad.any())
    without = [key for key, weight in model.named_parameters() if weight.grad is None]
    assert not without


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_can_be_traced_and_folded(name: str) -> None:
    model, x = narrow(name).double().eval(), images(name).double()
    light = fold(model)
    assert isinstance(light, fx.GraphModule)
    with torch.no_grad():
        for copy in (light, fuse(light)):
            assert torch.allclose(copy(x), model(x), atol=1e-9)
    left = {"preactresnet18": 9, "wrn-28-4": 12, "wrn-28-10": 12, "wrn-34-10": 15}
    assert len(norms(light)) == left.get(name, 0), "only normalisations of a block's sum stay"


@pytest.mark.parametrize("name", ["preactresnet18", "wrn-28-4"])
def test_a_pre_activation_block_keeps_its_input_or_convolves_the_activated_one(name: str) -> None:
    model = narrow(name).eval()
    groups = {"preactresnet18": ("layer1.1", "layer2.0"), "wrn-28-4": ("block1.layer.1", "block2.layer.0")}
    same, other = (model.get_submodule(path) for path in groups[name])
    with torch.no_grad():
        for block in (same, other):
            nn.init.zeros_(block.get_parameter("conv2.weight"))
        x = torch.randn(2, len(same.get_parameter("bn1.weight")), 8, 8)
        assert torch.equal(same(x), x)
        shortcut = other.get_submodule("shortcut" if name == "preactresnet18" else "convShortcut")
        active = torch.relu(other.get_submodule("bn1")(x))
        assert torch.equal(other(x), shortcut(active))


def test_wide_and_vgg_networks_begin_with_he_s_weights() -> None:
    torch.manual_seed(0)
    for name, layer in (("wrn-28-4", "block3.layer.0.conv1"), ("vgg16", "features.17")):
        weight = build(name, 10, 3).get_parameter(f"{layer}.weight")
        assert float(weight.detach().std()) == pytest.approx((2 / (9 * len(weight))) ** 0.5, rel=0.02)


def test_the_trades_network_begins_with_equal_logits() -> None:
    assert not build("smallcnn", 10, 1).eval()(images("smallcnn", 1)).any()


def test_filters_are_rounded_half_up_and_never_none() -> None:
    assert [scaled(64, width) for width in (0.5, 0.0078, 0.0234375, 0.0001, 1.0, 2.0)] == [32, 1, 2, 1, 64, 128]
    lite = build("resnet50", 10, 3, width=0.25)
    assert lite.get_parameter("layer4.0.conv3.weight").shape == (512, 128, 1, 1)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_narrowest_network_still_works(name: str) -> None:
    with torch.no_grad():
        assert build(name, 3, 2, 1e-6).eval()(images(name, 2)).shape == (2, 3)


@pytest.mark.parametrize("name", ["resnet18", "wrn-28-4", "vgg16", "smallcnn", "lenet"])
def test_a_lite_width_matches_the_rate_and_falls_with_it(name: str) -> None:
    full, rates = parameters(on_meta(name)), (2.0, 4.0, 16.0)
    widths = [lite_width(name, 10, 3, rate) for rate in rates]
    assert widths == sorted(widths, reverse=True)
    for rate, width in zip(rates, widths, strict=True):
        assert parameters(on_meta(name, width=width)) == pytest.approx(full / rate, rel=0.02)


def test_a_lite_width_is_the_nearest_and_roundest() -> None:
    assert lite_width("lenet", 10, 1, 1) == 1.0
    assert lite_width("resnet18", 10, 3, 4) == 0.5
    sizes = [parameters(on_meta("smallcnn", 10, 1, step / 100)) for step in range(1, 101)]
    found = parameters(on_meta("smallcnn", 10, 1, lite_width("smallcnn", 10, 1, 7)))
    assert abs(found - sizes[-1] / 7) <= min(abs(size - sizes[-1] / 7) for size in sizes)
    assert parameters(on_meta("lenet", 10, 1, lite_width("lenet", 10, 1, 1e9))) == parameters(
        on_meta("lenet", 10, 1, 1e-6)
    )


def test_the_rate_of_a_lite_network_is_relative_to_the_one_named() -> None:
    target = parameters(on_meta("smallcnn@0.5", 10, 1)) / 2
    width = lite_width("smallcnn@0.5", 10, 1, 2)
    assert width < 0.5
    assert parameters(on_meta("smallcnn", 10, 1, width)) == pytest.approx(target, rel=0.03)


@pytest.mark.parametrize("rate", [0.5, 0, -1, float("nan"), float("inf")])
def test_a_lite_width_needs_a_rate_of_at_least_1(rate: float) -> None:
    with pytest.raises(InputError, match="rate of a lite network must be a number of at least 1, not"):
        lite_width("lenet", 10, 1, rate)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"unknown architecture 'resnet-18' \(did you mean 'resnet18'\?\)"):
        build("resnet-18", 10, 3)
    with pytest.raises(InputError, match=r"unknown architecture 'WRN_34_10' \(did you mean 'wrn-34-10'\?\)"):
        build("WRN_34_10@0.5", 10, 3)
    with pytest.raises(InputError, match=r"^'nets\.py' names a file and no network in it; give nets\.py:CLASS$"):
        build("nets.py", 10, 3)
    with pytest.raises(InputError, match=r"unknown architecture 'mlp' \(known: lenet, resnet18"):
        build("mlp", 10, 3)


@pytest.mark.parametrize("width", [0, -0.5, float("nan"), float("inf"), 50, "half"])
def test_a_width_must_be_a_number_above_0(width: float) -> None:
    with pytest.raises(InputError, match="width of resnet18 must be a number above 0 and up to 10, not"):
        build("resnet18", 10, 3, width=width)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18@", "width in 'resnet18@' is not a number; write for example resnet18@0.5"),
        ("resnet18@half", "width in 'resnet18@half' is not a number"),
        ("resnet18@0", "width of resnet18 must be a number above 0"),
    ],
)
def test_a_width_in_a_name_must_be_a_number_too(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, 10, 3)


def test_a_width_is_said_once() -> None:
    with pytest.raises(InputError, match=r"'resnet18@0.5' says its width; leave out width=0.25"):
        build("resnet18@0.5", 10, 3, width=0.25)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_network_knows_the_name_it_can_be_built_by(name: str) -> None:
    assert architecture_name(on_meta(name)) == name
    assert architecture_name(on_meta(f"{name}@1")) == name
    assert architecture_name(on_meta(f"{name}@0.5")) == f"{name}@0.5"
    third = on_meta(name, width=1 / 3)
    assert shapes(architecture_name(third)) == {key: tuple(value.shape) for key, value in third.state_dict().items()}


def test_names_of_other_networks() -> None:
    class Mine(LeNet):
        pass

    assert architecture_name(Mine()).endswith("Mine")
    assert architecture_name(nn.Linear(1, 1)) == "torch.nn.modules.linear:Linear"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_run_gives_its_lite_network_back(name: str, tmp_path: Path, write_run: Callable[..., Path]) -> None:
    model = narrow(name).eval()
    assert describe_model(model, 7, 3)["architecture"] == f"{name}@{NARROW}"
    again = load_model(write_run(tmp_path / "run", model, 7, 3))
    with torch.no_grad():
        assert torch.equal(again(images(name)), model(images(name)))


def test_a_checkpoint_of_another_width_is_refused() -> None:
    with pytest.raises(InputError, match=r"half does not fit ResNet18: .*conv1.weight is"):
        load_state(build("resnet18", 10, 3, 0.05), build("resnet18", 10, 3, 0.1).state_dict(), "half")
