"""A rewritten network computes the same, with fewer weights and fewer steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pwoa.deploy.c.blob import pack
from pwoa.deploy.c.layout import KINDS
from pwoa.deploy.c.rewriting import rewrite
from pwoa.deploy.tracing import trace
from pwoa.models.architectures.registry import build
from tests.deploy.networks import random_network


@pytest.mark.parametrize("seed", range(40))
def test_it_computes_the_same(seed: int) -> None:
    model, images = random_network(seed)
    graph = trace(model, images)
    again = rewrite(graph)
    torch.testing.assert_close(again.run(images), graph.run(images), rtol=1e-4, atol=1e-5)
    assert again.multiply_adds() <= graph.multiply_adds()


def pruned_lenet() -> nn.Module:
    torch.manual_seed(0)
    model = build("lenet@0.25", 10, 1).eval()
    with torch.no_grad():
        for weight in (parameter for parameter in model.parameters() if parameter.dim() > 1):
            weight.mul_(torch.rand_like(weight) < 1 / 16)
    return model


def test_weights_of_units_that_nobody_reads_are_left_out() -> None:
    model = pruned_lenet()
    first, last = rewrite(trace(model, torch.rand(1, 1, 28, 28))).operators[-2:]
    assert first.weight is not None
    assert last.weight is not None
    read = model.get_parameter("fc2.weight").any(0)
    kept = model.get_parameter("fc1.weight")[read].count_nonzero()
    assert 0 < int(kept) == int(first.weight.count_nonzero()) < int(model.get_parameter("fc1.weight").count_nonzero())
    assert last.weight.count_nonzero() == model.get_parameter("fc2.weight").count_nonzero()


def test_channels_that_a_residual_sum_or_a_later_layer_reads_are_kept() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            logits: Tensor = self.last((y + self.second(y)).mean((2, 3)))
            return logits

    model = Twice().eval()
    with torch.no_grad():
        model.second.weight.zero_()  # nothing reads the first layer but the sum
        model.last.weight[:, 1] = 0  # and of that, nothing the second channel
    kept = rewrite(trace(model, torch.rand(1, 1, 2, 2))).operators[0].weight
    assert kept is not None
    assert kept.flatten().ne(0).tolist() == [True, False]


def test_units_with_most_weights_come_first() -> None:
    operators = rewrite(trace(pruned_lenet(), torch.rand(1, 1, 28, 28))).operators
    weight = next(op.weight for op in operators if op.kind == "linear")
    assert weight is not None
    counts = weight.count_nonzero(1)
    assert bool((counts[:-1] >= counts[1:]).all())
    assert counts[0] > counts[-1]


def kinds(*layers: nn.Module, size: int = 8) -> list[str]:
    image, model = torch.rand(1, 2, size, size), nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3)).eval()
    model(image)
    graph = rewrite(trace(model, image))
    return [op.kind + ("+pooling" if op.pooled else "") for op in graph.operators][:-2]


def test_pooling_becomes_part_of_the_convolution_before_it() -> None:
    convolution, pool = nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d(2)
    assert kinds(convolution, pool, nn.ReLU()) == ["convolution+pooling"]
    assert kinds(convolution, nn.ReLU(), pool) == ["convolution+pooling"]
    apart = ["convolution", "maximum"]
    assert kinds(convolution, pool, size=7) == apart
    assert kinds(convolution, nn.MaxPool2d(3, 2)) == apart
    assert kinds(convolution, nn.MaxPool2d(2, 1)) == apart
    assert kinds(nn.Conv2d(2, 4, 3, 2, 1), pool) == apart
    assert kinds(convolution, nn.AvgPool2d(2)) == ["convolution", "average"]


@pytest.mark.parametrize(("channels", "steps"), [(8, {"convolution"}), (200, {"convolution", "maximum"})])
def test_a_large_convolution_is_not_pooled_at_once(channels: int, steps: set[str]) -> None:
    """Its input would not stay in the cache."""
    model = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 3)).eval()
    words = np.frombuffer(pack(trace(model, torch.rand(1, channels, 16, 16))), "<u4")
    start = int(words[11]) * 16
    found = set(words[start : start + 20 * int(words[7]) : 20].tolist())
    slides = {name for name, kind in KINDS.items() if kind in found and name in ("convolution", "maximum")}
    assert slides == steps
