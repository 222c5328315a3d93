"""Networks for 28×28 images of MNIST: the paper's LeNet (keys as in HBaR's and PwoA's checkpoints), and the network of
TRADES' experiments (Zhang et al. 2019), with the keys of its checkpoint.
"""

from collections import OrderedDict

from torch import Tensor, nn

from pwoa.models.architectures.resnet import scaled, start_as_he


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
