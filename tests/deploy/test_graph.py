"""A traced network: what is fused, what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.deploy.graph import trace
from pwoa.errors import InputError
from pwoa.models.architectures.registry import build
from tests.deploy.networks import random_network


class Plain(nn.Module):
    """A forward that is given as a function of a convolution and the image."""

    def __init__(self, forward: Callable[[nn.Conv2d, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.given = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.given(self.conv, x)


IMAGE = torch.rand(1, 2, 4, 4)


def test_a_resnet_is_a_convolution_each_with_all_that_follows_it() -> None:
    graph = trace(build("resnet18@0.1", 10, 3), torch.rand(1, 3, 32, 32))
    kinds = [op.kind for op in graph.operators]
    assert kinds == ["convolution"] * 20 + ["mean", "flatten", "linear"]
    assert sum(op.residual is not None for op in graph.operators) == 8
    assert sum(op.relu for op in graph.operators) == 17  # all but the shortcuts, or the convolutions beside them


def test_a_normalisation_before_its_convolution_is_scaled_once_for_all_that_read_it() -> None:
    graph = trace(build("wrn-28-4@0.1", 10, 3), torch.rand(1, 3, 32, 32))
    affine = [op for op in graph.operators if op.kind == "affine"]
    assert len(affine) == 12  # the first is taken into the first convolution
    assert all(op.relu for op in affine)


@pytest.mark.parametrize("seed", range(30))
def test_the_operators_mean_what_the_network_computes(seed: int) -> None:
    model, images = random_network(seed)
    with torch.no_grad():
        expected = model(images)
    assert torch.allclose(
        trace(model, images).run(images), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max())
    )


def test_a_value_that_two_read_is_not_fused_into() -> None:
    model = Plain(lambda conv, x: (F.relu(y := conv(x)) + y).flatten(1))
    assert torch.allclose(trace(model, IMAGE).run(IMAGE), model(IMAGE), atol=1e-6)
    later = Plain(lambda conv, x: (2 * (y := conv(x)) + F.relu(y)).flatten(1))
    assert torch.allclose(trace(later, IMAGE).run(IMAGE), later(IMAGE), atol=1e-6)
    twice = Plain(lambda conv, x: ((y := conv(x)) + y).relu_().flatten(1))
    assert torch.allclose(trace(twice, IMAGE).run(IMAGE), twice(IMAGE), atol=1e-6)


def test_multiply_adds_are_of_weights_that_are_not_zero() -> None:
    conv, linear = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(32, 3)
    with torch.no_grad():
        conv.weight[:, :, 1:] = 0
        linear.weight[0] = 0
    assert trace(nn.Sequential(conv, nn.Flatten(), linear), torch.rand(1, 1, 4, 4)).multiply_adds() == 6 * 16 + 64


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "sigmoid": (
        Plain(lambda conv, x: torch.sigmoid(conv(x)).flatten(1)),
        "the operator sigmoid cannot be written as C",
    ),
    "module": (nn.Sequential(nn.Conv2d(2, 2, 3), nn.GELU(), nn.Flatten()), r"the operator GELU \(1\) cannot"),
    "cat": (Plain(lambda conv, x: torch.cat([conv(x), x], 1).flatten(1)), "the operator cat cannot"),
    "padding": (
        nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten()),
        r"Conv2d \(0\) cannot",
    ),
    "ceil": (nn.Sequential(nn.MaxPool2d(3, ceil_mode=True), nn.Flatten()), r"MaxPool2d \(0\) cannot"),
    "adaptive": (nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten()), r"AdaptiveAvgPool2d \(0\) cannot"),
    "transposed": (Plain(lambda conv, x: conv(x).transpose(2, 3).flatten(1)), "the operator transpose cannot"),
    "product": (Plain(lambda conv, x: (conv(x) * x).flatten(1)), "the operator mul cannot"),
    "control": (Plain(lambda conv, x: x.flatten(1) if x.sum() > 0 else conv(x).flatten(1)), "cannot be traced"),
    "planes": (nn.Conv2d(2, 2, 3), "does not return one row of logits an image"),
    "shape": (nn.Sequential(nn.Flatten(), nn.Linear(5, 2)), "the model cannot take images of 2×4×4: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_named_in_one_line(name: str) -> None:
    model, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as raised:
        trace(model, IMAGE)
    assert "\n" not in str(raised.value)


def test_weights_that_are_no_numbers_are_refused() -> None:
    linear = nn.Linear(32, 2)
    linear.weight.data[0, 0] = float("nan")
    with pytest.raises(InputError, match=r"NaN or infinite weights in 1\.weight"):
        trace(nn.Sequential(nn.Flatten(), linear), IMAGE)


def test_a_hook_that_changes_the_result_is_noticed() -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten()))
    model[0].register_forward_hook(lambda module, args, output: output * random.random())
    with pytest.raises(InputError, match="computes something else than the network itself"):
        trace(model, IMAGE)


def test_a_sample_is_a_batch_of_images() -> None:
    with pytest.raises(InputError, match=r"a batch of images \[N, channels, height, width\], not \[2, 4, 4\]"):
        trace(nn.Flatten(), IMAGE[0])
