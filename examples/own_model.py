"""Prune a network of your own on images of your own: a class, two pairs of tensors, three calls.

python examples/own_model.py
"""

from pathlib import Path

import torch
from torch import Tensor, nn

import pwoa

# Who the attacker is: no pixel may be moved by more than 0.05. Every number below is for this attacker.
ATTACKER = pwoa.Threat("linf", radius=0.05, step=0.0125)
THREAT = {"threat.norm": ATTACKER.norm, "threat.radius": ATTACKER.radius, "threat.step": ATTACKER.step}

# A quick look at the end of each run. Leave this out for numbers to believe: then stronger attacks and checks come too.
QUICK = {"evaluation.attacks": "natural,pgd20", "evaluation.strong": 0, "evaluation.checks": False}


class Net(nn.Module):
    """Any network will do that takes images in [0, 1] and returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, stride=2), nn.Conv2d(16, 32, 3, stride=2)
        self.hidden, self.out = nn.Linear(32 * 9, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(x)))).flatten(1)
        logits: Tensor = self.out(torch.relu(self.hidden(x)))
        return logits


def make_images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images [n, 1, 16, 16] of a bright stripe in one of four quarters, and labels. Put your own here."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=generator)
    pixels = torch.rand(n, 1, 16, 16, generator=generator) * 0.4
    rows, columns = torch.arange(16).view(16, 1), torch.arange(16).view(1, 16)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        image[:, (rows // 8 == label // 2) & (columns // 8 == label % 2) & ((rows + columns) % 3 == 0)] += 0.5
    return pixels, labels


def main(folder: str = "runs/examples/own_model", images: int = 3000, epochs: int = 8) -> dict[str, float]:
    """Train, prune and measure; `images` and `epochs` say how long that takes."""
    data = pwoa.load_data((make_images(images, 0), make_images(500, 1)))

    # Only a robust network is worth pruning by PwoA. If you have robust weights, load them instead of this.
    training = THREAT | QUICK | {"pretrain.epochs": epochs, "pretrain.steps": 5, "pretrain.learning_rate": 0.005}
    training |= {"training.optimizer": "adam"}
    teacher = pwoa.pretrain(Net(), data, method="pgd-at", settings=training, folder=Path(folder) / "teacher")

    # Prune it: a quarter of the weights stays, all of the small first layer among them. From here on training sees
    # natural images only.
    pruning = THREAT | QUICK | {"search.epochs": epochs, "finetune.epochs": epochs, "training.optimizer": "adam"}
    pruning |= {"search.learning_rate": 0.001, "finetune.learning_rate": 0.001, "training.weight_decay": 0.0}
    pruning |= {"sparsity.exclude": ["conv1.weight"]}
    result = pwoa.prune(teacher.model, data, rate=4, settings=pruning, folder=Path(folder) / "pruned")
    print("teacher:", result.summary["teacher"])
    print("pruned: ", result.summary["pruned"])

    # Later, or on another machine: the run folder and the class are all that is needed.
    model = pwoa.load_model(Path(folder) / "pruned", architecture=Net())
    scores = pwoa.evaluate(model, data, attacks="natural,pgd20", threat=ATTACKER, images=200)
    print(scores)
    return dict(scores)


if __name__ == "__main__":
    main()
