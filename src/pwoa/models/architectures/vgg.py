"""VGG-16 with batch normalisation for 32×32 images (Simonyan & Zisserman 2015), in the two forms public files have.

Both number the layers of `features` alike; they differ in the convolutions' biases and in the classifier.
"""

from torch import Tensor, nn

from pwoa.models.architectures.resnet import scaled, start_as_he

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""The filters of each convolution, by the size of the image."""

_POOLS = ("features.6", "features.13", "features.23", "features.33")


class VGG16(nn.Module):
    """As in pytorch-cifar: convolutions with biases, five max-poolings, and `classifier` one linear layer.

    The hidden activations are the first convolution's ReLU, the first four max-poolings, and the pooled features,
    which for 32×32 images are the fifth max-pooling's.
    """

    hidden_points = ("features.2", *_POOLS, "pooled")

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        self.features = nn.Sequential(*_features(channels, width, bias=True), nn.MaxPool2d(2))
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(scaled(512, width), classes)
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pooled(self.features(x)))
        return logits


class HydraVGG16(nn.Module):
    """As in HYDRA, HARP and the Adversarial Pruning Benchmark: no biases before a normalisation, four max-poolings,
    2×2 features, and two hidden layers of 256 in `classifier`.

    The hidden activations are the four max-poolings and the classifier's two hidden layers, as in PwoA's VGG.
    """

    hidden_points = (*_POOLS, "classifier.1", "classifier.3")

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        self.width = width
        filters, hidden = scaled(512, width), scaled(256, width)
        self.features = nn.Sequential(*_features(channels, width, bias=False))
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(4 * filters, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pooled(self.features(x)))
        return logits


def _features(channels: int, width: float, *, bias: bool) -> list[nn.Module]:
    """Return convolution, normalisation and ReLU thirteen times, with a max-pooling between two stages."""
    layers: list[nn.Module] = []
    inputs = channels
    for stage in STAGES:
        if layers:
            layers.append(nn.MaxPool2d(2))
        for count in stage:
            filters = scaled(count, width)
            layers += [nn.Conv2d(inputs, filters, 3, padding=1, bias=bias), nn.BatchNorm2d(filters), nn.ReLU()]
            inputs = filters
    return layers


def _start(model: nn.Module) -> None:
    """Draw the initial weights as HYDRA does, and torchvision too."""
    start_as_he(model)
    for module in model.modules():
        if isinstance(module, nn.Linear) and not module.weight.is_meta:
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)
