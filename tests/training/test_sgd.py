"""SGD of our own against torch's."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pwoa.training.sgd import Sgd

OPTIONS: list[dict[str, Any]] = [
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0},
    {"lr": 0.1, "momentum": 0.0, "weight_decay": 5e-4},
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 4 * 4, 5))


def go_on(model: nn.Module, optimizer: Sgd | torch.optim.SGD, steps: range) -> list[Tensor]:
    """Take some steps, each on images of its own, and return the weights."""
    for step in steps:
        torch.manual_seed(100 + step)
        model(torch.rand(4, 1, 6, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return [value.detach().clone() for value in model.parameters()]


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("options", OPTIONS)
def test_steps_are_those_of_torch_to_the_bit(options: dict[str, Any]) -> None:
    ours, theirs = network(), network()
    start = [value.detach().clone() for value in ours.parameters()]
    moved = go_on(ours, Sgd(list(ours.parameters()), **options), range(5))
    assert_same(moved, go_on(theirs, torch.optim.SGD(theirs.parameters(), fused=True, **options), range(5)))
    assert not any(torch.equal(*pair) for pair in zip(start, moved, strict=True))


def test_what_has_no_gradient_does_not_move() -> None:
    model = network()
    optimizer = Sgd(list(model.parameters()), 0.1, 0.9)
    optimizer.step()
    first = next(model.parameters())
    still = first.detach().clone()
    model[0].requires_grad_(False)
    go_on(model, optimizer, range(2))
    assert torch.equal(first, still)
    assert set(optimizer.state_dict()["state"]) == {2, 3}


def test_a_layer_that_is_used_later_than_others_is_moved_from_then_on() -> None:
    """As torch's steps do where they are not fused; the fused ones fail."""
    weights = []
    for optimizer_of in (Sgd, torch.optim.SGD):
        values: list[Tensor] = [nn.Parameter(torch.tensor([1.0, -2.0])), nn.Parameter(torch.tensor([3.0]))]
        optimizer = optimizer_of(values, 0.1, 0.9, weight_decay=0.01)
        for used in (values[:1], values, values[1:], values):
            torch.cat(used).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        weights.append(values)
    torch.testing.assert_close(weights[0], weights[1])


@pytest.mark.parametrize("first", ["ours", "torch"])
def test_either_goes_on_from_the_state_of_the_other(first: str) -> None:
    def of_torch(model: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), fused=True, **OPTIONS[0])

    def own(model: nn.Module) -> Sgd:
        return Sgd(list(model.parameters()), **OPTIONS[0])

    begin: Callable[[nn.Module], Sgd | torch.optim.SGD] = own if first == "ours" else of_torch
    end: Callable[[nn.Module], Sgd | torch.optim.SGD] = of_torch if first == "ours" else own
    through, changed = network(), network()
    wanted = go_on(through, of_torch(through), range(6))
    before = begin(changed)
    go_on(changed, before, range(3))
    after = end(changed)
    state = after.state_dict()
    state["state"] = before.state_dict()["state"]
    after.load_state_dict(state)
    assert_same(go_on(changed, after, range(3, 6)), wanted)


def test_a_state_that_is_taken_over_is_a_copy() -> None:
    model = network()
    optimizer = Sgd(list(model.parameters()), **OPTIONS[0])
    go_on(model, optimizer, range(1))
    state = optimizer.state_dict()
    kept = state["state"][0]["momentum_buffer"].clone()
    other = Sgd(list(model.parameters()), **OPTIONS[0])
    other.load_state_dict(state)
    go_on(model, other, range(1))
    assert torch.equal(state["state"][0]["momentum_buffer"], kept)


def test_a_state_of_another_network_is_refused() -> None:
    model = network()
    small = Sgd(list(model.parameters())[:2], **OPTIONS[0])
    with pytest.raises(ValueError, match="another number of parameters"):
        Sgd(list(model.parameters()), **OPTIONS[0]).load_state_dict(small.state_dict())


def test_a_run_does_not_load_the_compiler(tmp_path: Path) -> None:
    """Of a checkpoint, whose architecture is recognised by its shapes, to the saved model."""
    script = f"""
import json, sys, torch, pwoa
from pwoa.models.architectures.registry import build
torch.manual_seed(0)
torch.save(build("resnet18@0.1", 10, 1).state_dict(), {str(tmp_path / "net.pt")!r})
images, labels = torch.rand(120, 1, 28, 28), torch.arange(120) % 10
result = pwoa.prune(
    {str(tmp_path / "net.pt")!r}, ((images, labels), (images, labels)), recipe="mnist-robust", rate=4, force=True,
    folder={str(tmp_path / "run")!r}, progress=False,
    settings={{"search.epochs": 1, "finetune.epochs": 1, "training.optimizer": "sgd", "data.validation": 20,
              "training.batch": 50, "training.group": 50, "evaluation.attacks": "natural", "evaluation.strong": 0,
              "evaluation.checks": False}},
)
print(json.dumps([result.summary["method"], "torch._dynamo" in sys.modules, "torch._inductor" in sys.modules]))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == ["pwoa", False, False]
