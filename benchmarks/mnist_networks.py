"""The networks of public robust MNIST checkpoints, with the key names that those files have."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def smallcnn() -> nn.Module:
    """The MNIST network of TRADES."""

    def conv(i: int, into: int, out: int) -> list[tuple[str, nn.Module]]:
        return [(f"conv{i}", nn.Conv2d(into, out, 3)), (f"relu{i}", nn.ReLU())]

    def full(i: int, into: int) -> list[tuple[str, nn.Module]]:
        return [(f"fc{i}", nn.Linear(into, 200)), (f"relu{i}", nn.ReLU())]

    first = [*conv(1, 1, 32), *conv(2, 32, 32), ("pool1", nn.MaxPool2d(2))]
    second = [*conv(3, 32, 64), *conv(4, 64, 64), ("pool2", nn.MaxPool2d(2)), ("flat", nn.Flatten())]
    layers = OrderedDict(
        feature_extractor=nn.Sequential(OrderedDict(first + second)),
        classifier=nn.Sequential(OrderedDict([*full(1, 1024), *full(2, 200), ("fc3", nn.Linear(200, 10))])),
    )
    return nn.Sequential(layers)


def lenet5() -> nn.Module:
    """The MNIST network of advertorch."""
    layers = OrderedDict(
        conv1=nn.Conv2d(1, 32, 3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flat=nn.Flatten(),
        linear1=nn.Linear(3136, 200),
        relu3=nn.ReLU(),
        linear2=nn.Linear(200, 10),
    )
    return nn.Sequential(layers)


def kwsmall() -> nn.Module:
    """The small MNIST network of Wong & Kolter."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1568, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )
