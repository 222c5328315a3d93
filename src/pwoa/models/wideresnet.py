"""Wide ResNets for 32×32 images (Zagoruyko & Komodakis 2016); keys as in the TRADES, MART, AWP and LBGAT checkpoints.

Those files also hold `sub_block1.*`, weights that no forward pass uses; they are no part of the network.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.models.parts import scaled, start_as_he


class WideBlock(nn.Module):
    """Two 3×3 convolutions, each after normalisation and ReLU, and a shortcut: the input as it is, or a 1×1 convolution
    of the input after the first normalisation and ReLU where the shape changes."""

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, padding=1, bias=False)
        self.convShortcut = None
        if stride != 1 or inputs != filters:
            self.convShortcut = nn.Conv2d(inputs, filters, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        skipped = x if self.convShortcut is None else self.convShortcut(active)
        hidden: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return hidden + skipped


class WideGroup(nn.Module):
    """Blocks of one size, of which the first changes the number of filters and the stride."""

    def __init__(self, depth: int, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        first = WideBlock(inputs, filters, stride)
        self.layer = nn.Sequential(first, *(WideBlock(filters, filters, 1) for _ in range(depth - 1)))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layer(x)
        return features


class WideResNet(nn.Module):
    """Three groups of blocks, then a last normalisation and ReLU.

    The hidden activations are the first convolution, every block, and the pooled features; all but the last are the
    sums that blocks add to, as in PwoA's code, and the ReLU that follows is in the next block.
    """

    block = WideBlock
    depth: ClassVar[int]
    factor: ClassVar[int]

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        blocks = (self.depth - 4) // 6
        stem, *filters = (scaled(count, width) for count in (16, *(self.factor * n for n in (16, 32, 64))))
        self.conv1 = nn.Conv2d(channels, stem, 3, padding=1, bias=False)
        self.block1 = WideGroup(blocks, stem, filters[0], 1)
        self.block2 = WideGroup(blocks, filters[0], filters[1], 2)
        self.block3 = WideGroup(blocks, filters[1], filters[2], 2)
        self.bn1 = nn.BatchNorm2d(filters[2])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(filters[2], classes)
        self.hidden_points = ("conv1", *(f"block{i}.layer.{j}" for i in (1, 2, 3) for j in range(blocks)), "pooled")
        start_as_he(self)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        logits: Tensor = self.fc(self.pooled(F.relu(self.bn1(x))))
        return logits


class WideResNet28x4(WideResNet):
    depth, factor = 28, 4


class WideResNet28x10(WideResNet):
    depth, factor = 28, 10


class WideResNet34x10(WideResNet):
    depth, factor = 34, 10
