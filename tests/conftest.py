"""What several tests share: a tiny data set, a tiny robust-enough network, and a quick recipe."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from PIL import Image
from torch import Tensor, nn

from pwoa.data.images import Data
from pwoa.data.load import load_data
from pwoa.progress import Progress
from pwoa.recipe.sections import Recipe

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job, and all it starts, ignores Ctrl-C
os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # runs choose no other number on a busy machine
settings.register_profile("repeatable", derandomize=True)  # a failure is the code's, not the day's
settings.load_profile("repeatable")


class Told(Progress):
    """Keeps the messages of a run."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)


class Killed(Progress):
    """Stops a run at step `at`, as a kill would; the check of the teacher is one step."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.steps: Iterator[int] | None = None

    def start(self, task: str, total: int, done: int = 0) -> None:
        self.steps = iter([1]) if task == "checking the teacher" else None

    def advance(self, units: int = 1) -> None:
        self.left -= next(self.steps, 0) if self.steps else 1
        if not self.left:
            raise KeyboardInterrupt


class TinyNet(nn.Module):
    """A convolution with batch-norm, a hidden layer, logits: every kind of tensor a run has to carry."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4 * 6 * 6, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        logits: Tensor = self.out(torch.relu(self.hidden(x)))
        return logits


def _images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three classes: a bright band at the top, in the middle or at the bottom, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=generator)
    pixels = torch.rand(n, 1, 6, 6, generator=generator) * 0.3
    rows = torch.arange(6).view(1, 1, 6, 1) // 2
    return pixels + 0.6 * (rows == labels.view(-1, 1, 1, 1)), labels


@pytest.fixture(scope="session")
def tiny_data() -> Data:
    return load_data((_images(96, 0), _images(48, 1)))


@pytest.fixture(scope="session")
def _trained(tiny_data: Data) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = TinyNet()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    x, y = tiny_data.train.batch(torch.arange(96))
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.state_dict()


@pytest.fixture
def tiny_teacher(_trained: dict[str, Tensor]) -> TinyNet:
    model = TinyNet()
    model.load_state_dict(_trained)
    return model.eval()


@pytest.fixture
def quick() -> Callable[..., Recipe]:
    """A recipe for the tiny data that ends in a second; settings as `section__key=value`."""

    def make(**settings: Any) -> Recipe:
        chosen = {
            "data.validation": 24,
            "threat.radius": 0.05,
            "threat.step": 0.0125,
            "search.epochs": 3,
            "search.interval": 1,
            "search.learning_rate": 0.05,
            "finetune.epochs": 3,
            "finetune.learning_rate": 0.05,
            "objective.hsic_x": 1e-4,
            "objective.hsic_y": 1e-4,
            "training.batch": 16,
            "training.average": 0.5,
            "training.device": "cpu",
            "training.checkpoint_seconds": 0.0,
            "evaluation.attacks": ["natural", "pgd2"],
            "evaluation.checks": False,
            "evaluation.strong": 0,
        }
        return Recipe().with_settings(chosen | {key.replace("__", "."): value for key, value in settings.items()})

    return make


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def killed() -> Callable[[int], Progress]:
    return Killed


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], Path]:
    """Writes a folder of so many images of digits to train and to test with."""

    def write(train: int, test: int) -> Path:
        folder, data = tmp_path_factory.mktemp("digits"), load_data("mnist-mini")
        for split, images, n in (("train", data.train, train), ("test", data.test, test)):
            for i in range(n):
                target = folder / split / str(int(images.labels[i]))
                target.mkdir(parents=True, exist_ok=True)
                Image.fromarray(images.pixels[i, 0].numpy()).save(target / f"{i:04}.png")
        return folder

    return write
