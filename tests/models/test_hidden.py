from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.models.architectures.mnist import LeNet
from pwoa.models.architectures.resnet import ResNet18
from pwoa.models.hidden import hidden_points, multiply_adds, recording

X = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Odd(nn.Module):
    """Layers are written down in another order than they run, one is used twice and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)
        self.unused = nn.Linear(3, 3)
        self.middle = nn.Linear(8, 8)
        self.body = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        logits: Tensor = self.head(self.middle(torch.relu(self.middle(z))))
        return logits


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_known_architectures_say_them_themselves() -> None:
    assert hidden_points(LeNet(), X) == ("relu1", "relu2", "relu3")
    points = hidden_points(ResNet18(), X)
    assert points == ("stem", *(f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)), "pooled")


@pytest.mark.parametrize(("model", "size"), [(LeNet(), (1, 28, 28)), (ResNet18(), (3, 32, 32))])
def test_the_declared_points_exist_and_follow_the_order_of_execution(model: nn.Module, size: tuple[int, ...]) -> None:
    points = hidden_points(model, X)
    with recording(model.eval(), points) as found, torch.no_grad():
        model(torch.rand(2, *size))
    assert list(found) == list(points)


def test_an_unknown_architecture_has_its_layers_in_order_of_execution_without_the_last() -> None:
    assert hidden_points(Odd(), X) == ("body.0", "middle")


def test_finding_them_leaves_the_model_as_it_was() -> None:
    model = Odd().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hidden_points(model, X)
    assert model.training
    assert model.body.training
    assert hooks(model) == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_chosen_ones_are_taken_in_their_order() -> None:
    assert hidden_points(LeNet(), X, ["relu3", "conv1"]) == ("relu3", "conv1")
    assert hidden_points(Odd(), X, ("body.1",)) == ("body.1",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("relu_2", r"no module 'relu_2' .*\(did you mean 'relu2'\?\)"),
        ("layer1.0", r"no module 'layer1\.0' to take hidden activations from \("),
        ("", "no module ''"),
    ],
)
def test_a_wrong_name_gets_a_suggestion(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hidden_points(LeNet(), X, ["relu1", name])


def test_recording_keeps_the_activations_with_their_graph() -> None:
    model = Odd()
    with recording(model, ["middle", "body"]) as found:
        logits = model(X)
    assert torch.equal(found["body"], model.body(X))
    assert found["body"].shape == (2, 8)
    assert torch.equal(model.head(found["middle"]), logits)
    found["body"].sum().backward()
    assert model.body[0].weight.grad is not None


def test_each_pass_replaces_the_activations_of_the_last() -> None:
    model = Odd().eval()
    with recording(model, ["body.0"]) as found:
        model(X)
        first = found["body.0"]
        model(X + 1)
    assert not torch.equal(found["body.0"], first)


def test_the_first_of_several_outputs_is_taken() -> None:
    model = nn.Sequential(nn.LSTM(4, 6, batch_first=True))
    with recording(model, ["0"]) as found:
        outputs, _ = model(X[:, 0])
    assert torch.equal(found["0"], outputs)


def test_recording_leaves_no_hooks_behind() -> None:
    model = Odd()
    with recording(model, ["middle", "body.0"]):
        assert hooks(model) == 2
    assert hooks(model) == 0
    with pytest.raises(RuntimeError), recording(model, ["middle", "body.0"]):
        model(X[:, :1])
    assert hooks(model) == 0


def test_a_model_that_fails_is_left_in_its_mode_and_without_hooks() -> None:
    model = Odd().train()
    with pytest.raises(RuntimeError):
        hidden_points(model, X[:, :1])
    assert hooks(model) == 0
    assert model.training


def test_multiply_adds_of_every_kind_of_layer() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1)
            self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
            self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.twice = nn.Linear(8, 8)
            self.raw = nn.Parameter(torch.ones(3, 3))
            self.unused = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.up(self.depthwise(self.conv(x)))  # 8×8, then 4×4, 4×4 and 8×8 with 2 channels
            rows = x.flatten(1).view(len(x), 16, 8)
            rows, _ = self.attention(rows, rows, rows)
            out: Tensor = self.twice(self.twice(rows))
            return out

    net = Net()
    costs = multiply_adds(net, torch.zeros(3, 1, 8, 8), {name: p for name, p in net.named_parameters() if p.dim() > 1})
    assert costs == {
        "raw": 1,
        "conv.weight": 16,
        "depthwise.weight": 16,
        "up.weight": 16,
        "attention.in_proj_weight": 16,
        "attention.out_proj.weight": 16,
        "twice.weight": 32,
        "unused.weight": 1,
    }
    assert not any(layer._forward_hooks for layer in net.modules())


def test_of_an_unknown_architecture_the_activations_are_taken_where_they_are_modules() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU(True))
            self.second, self.third, self.fourth = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
            self.twice, self.gelu = nn.ReLU(), nn.GELU()
            self.head = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.twice(self.second(self.first(x)))
            x = self.twice(x + self.third(x))  # a sum is no module
            logits: Tensor = self.head(self.gelu(self.fourth(x)).flatten(1))
            return logits

    net = Net()
    points = hidden_points(net, X)
    assert points == ("first.3", "second", "third", "gelu")
    assert hooks(net) == 0
    with recording(net.eval(), points) as found, torch.no_grad():
        net(X)
    assert list(found) == list(points)
    assert bool((found["first.3"] >= 0).all())
