"""ResNets for 32×32 images (He et al. 2016); keys as in the TRADES, MART, HBaR and PwoA checkpoints."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.models.parts import scaled


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.shortcut = _shortcut(inputs, filters, stride)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(hidden)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 1×1, a 3×3 and a widening 1×1 convolution, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * filters
        self.conv1 = nn.Conv2d(inputs, filters, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.conv3 = nn.Conv2d(filters, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.bn1(self.conv1(x)))
        hidden = F.relu(self.bn2(self.conv2(hidden)))
        return F.relu(self.bn3(self.conv3(hidden)) + self.shortcut(x))


class ResNet(nn.Module):
    """Blocks in four layers; the hidden activations are the stem, every block, and the pooled features."""

    block: ClassVar[type[BasicBlock] | type[Bottleneck]]
    depths: ClassVar[tuple[int, int, int, int]]

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        filters = [scaled(count, width) for count in (64, 128, 256, 512)]
        outputs = [self.block.expansion * count for count in filters]
        self.conv1 = nn.Conv2d(channels, filters[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters[0])
        self.stem = nn.ReLU()
        self.layer1 = self._layer(0, filters[0], filters[0], 1)
        self.layer2 = self._layer(1, outputs[0], filters[1], 2)
        self.layer3 = self._layer(2, outputs[1], filters[2], 2)
        self.layer4 = self._layer(3, outputs[2], filters[3], 2)
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.linear = nn.Linear(outputs[3], classes)
        blocks = (f"layer{i}.{j}" for i, depth in enumerate(self.depths, 1) for j in range(depth))
        self.hidden_points = ("stem", *blocks, "pooled")

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.linear(self.pooled(x))
        return logits

    def _layer(self, index: int, inputs: int, filters: int, stride: int) -> nn.Sequential:
        first = self.block(inputs, filters, stride)
        more = (self.block(self.block.expansion * filters, filters, 1) for _ in range(self.depths[index] - 1))
        return nn.Sequential(first, *more)


class ResNet18(ResNet):
    block, depths = BasicBlock, (2, 2, 2, 2)


class ResNet34(ResNet):
    block, depths = BasicBlock, (3, 4, 6, 3)


class ResNet50(ResNet):
    block, depths = Bottleneck, (3, 4, 6, 3)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
