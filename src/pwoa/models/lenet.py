"""The LeNet of the paper's MNIST experiments (keys as in HBaR's and PwoA's checkpoints)."""

from __future__ import annotations

from torch import Tensor, nn

from pwoa.models.parts import scaled


class LeNet(nn.Module):
    """Two 5×5 convolutions (32, 64), each with 2×2 max-pooling, then 1024 hidden units; for 28×28 images.

    Pooling comes before the ReLU: the two commute, and the hidden activations are a quarter of the size.
    """

    hidden_points = ("relu1", "relu2", "relu3")

    def __init__(self, classes: int = 10, channels: int = 1, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        first, second, hidden = scaled(32, width), scaled(64, width), scaled(1024, width)
        self.conv1 = nn.Conv2d(channels, first, 5, padding=2)
        self.conv2 = nn.Conv2d(first, second, 5, padding=2)
        self.fc1 = nn.Linear(second * 7 * 7, hidden)
        self.fc2 = nn.Linear(hidden, classes)
        self.pool = nn.MaxPool2d(2)
        self.relu1, self.relu2, self.relu3 = nn.ReLU(), nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.pool(self.conv1(x)))
        x = self.relu2(self.pool(self.conv2(x)))
        x = self.relu3(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits
