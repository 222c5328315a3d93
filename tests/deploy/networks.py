"""Random small networks of every operator that can be written as C, with random masks."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.models.border import Normalised


class Residual(nn.Module):
    """A branch and its input, or another branch, added; with ReLU after the sum or not."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, relu: bool) -> None:
        super().__init__()
        self.branch, self.shortcut, self.relu = branch, shortcut, relu

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.branch(x) + self.shortcut(x)
        return F.relu(total) if self.relu else total


class PreActivation(nn.Module):
    """Normalisation and ReLU that two convolutions read, as in wide ResNets."""

    def __init__(self, norm: nn.Module, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.norm, self.first, self.second = norm, first, second

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm(x))
        return torch.add(self.first(active), self.second(active))


class Head(nn.Module):
    """From planes to logits: the mean, all pixels or those above zero, then linear layers."""

    def __init__(self, layers: nn.Module, how: str) -> None:
        super().__init__()
        self.layers, self.how = layers, how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "mean":
            x = x.mean((2, 3))
        elif self.how == "pool":
            x = F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1)
        else:
            x = torch.flatten(F.relu(x) if self.how == "active" else x, 1)
        logits: Tensor = self.layers(x)
        return logits


def random_network(seed: int) -> tuple[nn.Module, Tensor]:
    """Return a network in eval mode with random weights and masks, and three images for it."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    channels = draw.choice((1, 2, 3, 5))
    height, width = draw.randint(1, 36), draw.randint(1, 36)
    images = torch.randn(3, channels, height, width)
    layers: list[nn.Module] = []
    x = images[:1]
    for _ in range(draw.randint(1, 5)):
        layer = _layer(draw, x)
        layers.append(layer)
        x = layer.eval()(x).detach()
    how = draw.choice(("mean", "pool", "flatten", "active", "active"))
    features = x.shape[1] * (1 if how in ("mean", "pool") else x.shape[2] * x.shape[3])
    hidden, classes = draw.choice((1, 7, 40, 100, 200)), draw.randint(1, 11)
    body = [nn.Linear(features, hidden), *_maybe(draw, nn.BatchNorm1d(hidden)), nn.ReLU(), nn.Dropout()]
    head = Head(nn.Sequential(*(body if draw.random() < 0.5 else ()), nn.LazyLinear(classes)), how)
    model: nn.Module = nn.Sequential(*layers, head)
    model(images)
    _settle(draw, model)
    if draw.random() < 0.3:
        model = Normalised(
            model, [draw.random() for _ in range(channels)], [0.5 + draw.random() for _ in range(channels)]
        )
    return model.eval(), images


def _maybe(draw: random.Random, *layers: nn.Module) -> list[nn.Module]:
    return [layer for layer in layers if draw.random() < 0.5]


def _layer(draw: random.Random, x: Tensor) -> nn.Module:
    channels = x.shape[1]
    kind = draw.choice(("conv", "conv", "conv", "pool", "pooled", "residual", "preactivation", "norm"))
    if kind == "conv":
        outputs = channels * draw.randint(1, 3)
        conv = _conv(draw, x, outputs, draw.choice((1, 1, 2, 3)))
        return nn.Sequential(conv, *_maybe(draw, nn.BatchNorm2d(outputs), nn.ReLU()))
    if kind == "pool":
        kernel = (draw.randint(1, min(3, x.shape[2])), draw.randint(1, min(3, x.shape[3])))
        padding = (draw.randint(0, kernel[0] // 2), draw.randint(0, kernel[1] // 2))
        pool = draw.choice((nn.MaxPool2d, nn.AvgPool2d))
        return nn.Sequential(pool(kernel, draw.randint(1, 3), padding), *_maybe(draw, nn.ReLU()))
    if kind == "pooled" and min(x.shape[2:]) > 1:
        conv = _conv(draw, x, channels * draw.randint(1, 3), 1)
        large = all(size > 1 for size in conv(x).shape[2:])
        return nn.Sequential(conv, *_maybe(draw, nn.ReLU()), *([nn.MaxPool2d(2)] if large else ()), nn.ReLU())
    if kind == "residual":
        outputs = draw.choice((channels, 4, 9))
        stride = 1 if outputs == channels else draw.choice((1, 2))
        branch = nn.Sequential(
            nn.Conv2d(channels, 6, 3, stride, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, outputs, 3, 1, 1)
        )
        shortcut = nn.Identity() if outputs == channels else nn.Conv2d(channels, outputs, 1, stride, bias=False)
        return Residual(branch, shortcut, draw.random() < 0.5)
    if kind == "preactivation":
        first, second = nn.Conv2d(channels, 5, 3, 2, 1), nn.Conv2d(channels, 5, 1, 2)
        return PreActivation(nn.BatchNorm2d(channels), first, second)
    return nn.Sequential(nn.BatchNorm2d(channels), *_maybe(draw, nn.ReLU()))


def _conv(draw: random.Random, x: Tensor, outputs: int, stride: int) -> nn.Conv2d:
    channels = x.shape[1]
    groups = draw.choice([1, 1, *(n for n in range(2, channels + 1) if channels % n == 0 and outputs % n == 0)])
    dilation = draw.choice((1, 1, 2))
    kernel = tuple(draw.randint(1, 5) for _ in range(2))
    padding = tuple(
        max(draw.randint(0, size // 2), -((side - 1 - dilation * (size - 1)) // 2))
        for size, side in zip(kernel, x.shape[2:], strict=True)
    )
    return nn.Conv2d(channels, outputs, kernel, stride, padding, dilation, groups, bias=draw.random() < 0.5)  # type: ignore[arg-type]


@torch.no_grad()
def _settle(draw: random.Random, model: nn.Module) -> None:
    """Give normalisations statistics, and every layer a mask: a few of them without any weight, or without a row."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            torch.nn.init.normal_(module.running_mean, 0, 0.3)  # type: ignore[arg-type]
            torch.nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias, 0, 0.3)
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            module.weight.mul_(torch.rand_like(module.weight) < draw.choice((0.0, 0.05, 0.1, 0.3, 0.7, 1.0)))
            module.weight[torch.rand(len(module.weight)) < draw.choice((0.0, 0.3))] = 0
