"""The network of TRADES' MNIST experiments (Zhang et al. 2019), with the keys of its checkpoint."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from pwoa.models.parts import scaled, start_as_he


class SmallCNN(nn.Module):
    """Four 3×3 convolutions with a max-pooling after two, then two hidden layers of 200; for 28×28 images.

    The hidden activations are those of every layer but the last, after ReLU and max-pooling. As in TRADES, the
    first hidden layer has dropout in training, and the last layer's weights begin at 0.
    """

    hidden_points = (
        "feature_extractor.relu1",
        "feature_extractor.maxpool1",
        "feature_extractor.relu3",
        "feature_extractor.maxpool2",
        "classifier.relu1",
        "classifier.relu2",
    )

    def __init__(self, classes: int = 10, channels: int = 1, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        narrow, wide, hidden = scaled(32, width), scaled(64, width), scaled(200, width)
        last = nn.Linear(hidden, classes)
        self.feature_extractor = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, narrow, 3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(narrow, narrow, 3),
                relu2=nn.ReLU(),
                maxpool1=nn.MaxPool2d(2),
                conv3=nn.Conv2d(narrow, wide, 3),
                relu3=nn.ReLU(),
                conv4=nn.Conv2d(wide, wide, 3),
                relu4=nn.ReLU(),
                maxpool2=nn.MaxPool2d(2),
            )
        )
        self.classifier = nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(wide * 4 * 4, hidden),
                relu1=nn.ReLU(),
                drop=nn.Dropout(0.5),
                fc2=nn.Linear(hidden, hidden),
                relu2=nn.ReLU(),
                fc3=last,
            )
        )
        start_as_he(self, "fan_in")
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.feature_extractor(x).flatten(1))
        return logits
