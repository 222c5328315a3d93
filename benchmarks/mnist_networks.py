"""Networks of public robust MNIST checkpoints that are no architecture of the package, with the keys of those files."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def lenet5() -> nn.Module:
    """Build the MNIST network of advertorch."""
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
    """Build the small MNIST network of Wong & Kolter."""
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
