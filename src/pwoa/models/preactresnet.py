"""Pre-activation ResNet for 32×32 images (He et al. 2016b); keys as in the robust-overfitting and AWP checkpoints."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.models.parts import scaled


class PreActBlock(nn.Module):
    """Two 3×3 convolutions, each after normalisation and ReLU, and a shortcut: the input as it is, or a 1×1 convolution
    of the input after the first normalisation and ReLU where the shape changes."""

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, padding=1, bias=False)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, filters, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        skipped = self.shortcut(active) if len(self.shortcut) else x
        hidden: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return hidden + skipped


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
        self.layer1 = _layer(filters[0], filters[0], 1)
        self.layer2 = _layer(filters[0], filters[1], 2)
        self.layer3 = _layer(filters[1], filters[2], 2)
        self.layer4 = _layer(filters[2], filters[3], 2)
        self.bn = nn.BatchNorm2d(filters[3])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.linear = nn.Linear(filters[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        logits: Tensor = self.linear(self.pooled(F.relu(self.bn(x))))
        return logits


def _layer(inputs: int, filters: int, stride: int) -> nn.Sequential:
    return nn.Sequential(PreActBlock(inputs, filters, stride), PreActBlock(filters, filters, 1))
