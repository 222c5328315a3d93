"""ResNets for 32×32 images: plain, with pre-activation, and wide; and what all architectures share.

- ResNets (He et al. 2016): keys as in the TRADES, MART, HBaR and PwoA checkpoints.
- Pre-activation ResNet (He et al. 2016b): keys as in the robust-overfitting and AWP checkpoints.
- Wide ResNets (Zagoruyko & Komodakis 2016): keys as in the TRADES, MART, AWP and LBGAT checkpoints. Those files also
  hold `sub_block1.*`, weights that no forward pass uses; they are no part of the network.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F


def scaled(filters: int, width: float) -> int:
    """Return how many filters a network `width` times as wide has: rounded half up, at least one."""
    return max(1, math.floor(filters * width + 0.5))


def start_as_he(model: nn.Module, fan: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Draw the weights of every convolution from He et al.'s normal distribution; biases begin at 0.

    Those of a mere skeleton are left: torch loads its compiler to draw nothing, which takes seconds.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


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


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class PreActBlock(nn.Module):
    """Two 3×3 convolutions, each after normalisation and ReLU, and a shortcut: the input as it is, or a 1×1 convolution
    of the input after the first normalisation and ReLU where the shape changes."""

    expansion = 1
    shortcut_key: ClassVar[Literal["shortcut", "convShortcut"]] = "shortcut"

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, padding=1, bias=False)
        if stride != 1 or inputs != filters:
            conv = nn.Conv2d(inputs, filters, 1, stride, bias=False)
            self.add_module(self.shortcut_key, nn.Sequential(conv) if self.shortcut_key == "shortcut" else conv)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        shortcut = getattr(self, self.shortcut_key, None)
        skipped = x if shortcut is None else shortcut(active)
        hidden: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return hidden + skipped


class WideBlock(PreActBlock):
    shortcut_key = "convShortcut"


Block = BasicBlock | Bottleneck | PreActBlock


def _layers(block: type[Block], depths: Sequence[int], inputs: int, filters: Sequence[int]) -> list[nn.Sequential]:
    """Return a layer of blocks for each depth and number of filters; every layer but the first halves the image."""
    layers: list[nn.Sequential] = []
    for depth, count in zip(depths, filters, strict=True):
        outputs = block.expansion * count
        first = block(inputs, count, 2 if layers else 1)
        layers.append(nn.Sequential(first, *(block(outputs, count, 1) for _ in range(depth - 1))))
        inputs = outputs
    return layers


class ResNet(nn.Module):
    """Blocks in four layers; the hidden activations are the stem, every block, and the pooled features."""

    block: ClassVar[type[Block]]
    depths: ClassVar[tuple[int, int, int, int]]

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        filters = [scaled(count, width) for count in (64, 128, 256, 512)]
        self.conv1 = nn.Conv2d(channels, filters[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters[0])
        self.stem = nn.ReLU()
        self.layer1, self.layer2, self.layer3, self.layer4 = _layers(self.block, self.depths, filters[0], filters)
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.linear = nn.Linear(self.block.expansion * filters[3], classes)
        blocks = (f"layer{i}.{j}" for i, depth in enumerate(self.depths, 1) for j in range(depth))
        self.hidden_points = ("stem", *blocks, "pooled")

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.linear(self.pooled(x))
        return logits


class ResNet18(ResNet):
    block, depths = BasicBlock, (2, 2, 2, 2)


class ResNet34(ResNet):
    block, depths = BasicBlock, (3, 4, 6, 3)


class ResNet50(ResNet):
    block, depths = Bottleneck, (3, 4, 6, 3)


class PreActResNet18(nn.Module):
    """Eight blocks in four layers, then a last normalisation `bn` and ReLU.

    The hidden activations are the first convolution, every block, and the pooled features; all but the last are the
    sums that blocks add to, and the ReLU that follows is in the next block.
    The network of pytorch-cifar and of fast adversarial training has no `bn`, and their files do not fit.
    """

    block = PreActBlock
    hidden_points = ("conv1", *(f"layer{i}.{j}" for i in range(1, 5) for j in range(2)), "pooled")

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        filters = [scaled(count, width) for count in (64, 128, 256, 512)]
        self.conv1 = nn.Conv2d(channels, filters[0], 3, padding=1, bias=False)
        self.layer1, self.layer2, self.layer3, self.layer4 = _layers(self.block, [2] * 4, filters[0], filters)
        self.bn = nn.BatchNorm2d(filters[3])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.linear = nn.Linear(filters[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        logits: Tensor = self.linear(self.pooled(F.relu(self.bn(x))))
        return logits


class WideResNet(nn.Module):
    """Three groups of blocks, then a last normalisation and ReLU.

    The hidden activations are as in PreActResNet18, and as in PwoA's code.
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
        groups = _layers(self.block, [blocks] * 3, stem, filters)
        self.block1, self.block2, self.block3 = (nn.Sequential(OrderedDict(layer=group)) for group in groups)
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
