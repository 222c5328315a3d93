"""The code in docs/models.md runs as it stands there, with stand-ins for the libraries it comes from."""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pwoa
from pwoa.data.images import Data
from pwoa.data.load import load_data
from pwoa.models.architectures.registry import build
from pwoa.models.border import Normalised, as_logits
from pwoa.models.checkpoints.folder import fingerprint
from pwoa.recipe.sections import Recipe

Make = Callable[..., Recipe]
PAGE = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
MEAN, STD = (0.2, 0.4, 0.6), (0.1, 0.2, 0.4)


def blocks(heading: str) -> list[str]:
    """The Python code under a heading of the page."""
    section = re.split(r"^## ", PAGE.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.hidden, self.out = nn.Linear(8 * 36, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.relu(self.hidden(torch.relu(self.conv(x)).flatten(1))))
        return logits


class ModelOutput(OrderedDict[str, Tensor]):
    """As transformers has it: a dict that is no tensor, with its values as attributes."""

    def __getattr__(self, name: str) -> Tensor:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class ForImageClassification(nn.Module):
    """As transformers has it: named inputs, a config, and an output that holds more than logits."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config, self.net = config, Net()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ModelOutput:
        assert labels is None
        return ModelOutput(logits=self.net(pixel_values), hidden_states=pixel_values)


def images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ten classes: a bright bar at one of ten places."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 10
    pixels = torch.rand(n, 3, 6, 6, generator=generator) * 0.2
    rows, columns = labels % 3, labels // 3
    for image, row, column in zip(pixels, rows.tolist(), columns.tolist(), strict=True):
        image[:, 2 * row : 2 * row + 2, min(2 * column, 5)] += 0.7
    return pixels, labels


@pytest.fixture(scope="module")
def data() -> Data:
    return load_data((images(240, 0), images(60, 1)))


@pytest.fixture(scope="module")
def trained(data: Data) -> Normalised:
    """A network behind its normalisation that knows the classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Normalised(Net(), MEAN, STD)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    x, y = data.train.batch(torch.arange(240))
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture
def small(data: Data, quick: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 and its recipe are small, and runs/ is in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pwoa, "load_data", lambda name: {"cifar10": data}[name], raising=False)
    recipe = quick(training__optimizer="adam", search__learning_rate=0.005, finetune__learning_rate=0.005)
    monkeypatch.setattr("pwoa.runs.prune.recipe_for", lambda name: recipe)


def library(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Put a stand-in where `import name` finds it."""
    module = ModuleType(name)
    for key, value in content.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)


def run(code: str, **names: Any) -> dict[str, Any]:
    exec(compile(code, "docs/models.md", "exec"), names)
    return names


def check(done: dict[str, Any], data: Data, trained: Normalised) -> None:
    """The teacher computes what was trained, so its normalisation is right; a quarter of it knows most images."""
    x, y = data.test.batch(torch.arange(60))
    with torch.no_grad():
        assert torch.equal(as_logits(done["teacher"], 10)(x), trained(x))
        assert (as_logits(done["result"].model, 10)(x).argmax(1) == y).float().mean() > 0.7
    assert done["result"].summary["rate"] == pytest.approx(4, rel=0.01)


@pytest.mark.usefixtures("small")
def test_robustbench(data: Data, trained: Normalised, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_model(
        model_name: str, model_dir: str = "./models", dataset: str = "", threat_model: str = ""
    ) -> nn.Module:
        assert (model_name, dataset, threat_model) == ("Sehwag2021Proxy_R18", "cifar10", "Linf")
        return trained

    library(monkeypatch, "robustbench")
    library(monkeypatch, "robustbench.utils", load_model=load_model)
    (code,) = blocks("RobustBench")
    check(run(code), data, trained)


@pytest.mark.usefixtures("small")
def test_timm(data: Data, trained: Normalised, monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(model_name: str, pretrained: bool = False, checkpoint_path: str = "", **options: Any) -> nn.Module:
        assert options == {"num_classes": 10}
        net = trained.model
        net.pretrained_cfg = {"mean": MEAN, "std": STD, "input_size": (3, 6, 6)}  # type: ignore[assignment]
        return net

    library(monkeypatch, "timm", create_model=create_model)
    (code,) = blocks("timm")
    check(run(code), data, trained)


@pytest.mark.usefixtures("small")
def test_transformers(data: Data, trained: Normalised, monkeypatch: pytest.MonkeyPatch) -> None:
    def from_pretrained(name: str) -> nn.Module:
        model = ForImageClassification(SimpleNamespace(num_labels=10))
        model.net.load_state_dict(trained.model.state_dict())
        return model.eval()

    processor = SimpleNamespace(image_mean=list(MEAN), image_std=list(STD))
    library(
        monkeypatch,
        "transformers",
        AutoModelForImageClassification=SimpleNamespace(
            from_pretrained=from_pretrained, from_config=ForImageClassification
        ),
        AutoImageProcessor=SimpleNamespace(from_pretrained=lambda name: processor),
    )
    (code,) = blocks("Hugging Face transformers")
    done = run(code)
    check(done, data, trained)
    assert isinstance(done["teacher"](data.test.batch(torch.arange(2))[0]), ModelOutput)
    assert fingerprint(done["model"]) == fingerprint(done["result"].model)


def test_a_model_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here, there = blocks("A model for others")
    result = build("lenet@0.02", 10, 1)
    done = run(here, pwoa=pwoa, result=result)
    assert fingerprint(done["model"]) == fingerprint(result)
    assert sorted(path.name for path in Path("net-x4").iterdir()) == ["README.md", "config.json", "model.safetensors"]
    asked = []

    def push(files: dict[str, Path | bytes], repo: str, **options: Any) -> str:
        asked.append(repo)
        return repo

    def fetch(name: str, revision: str | None, files: list[str]) -> Path:
        asked.append((name, revision))
        return tmp_path / "net-x4"

    monkeypatch.setattr("pwoa.models.checkpoints.hub.push", push)
    monkeypatch.setattr("pwoa.models.checkpoints.folder.fetch", fetch)
    done = run(there, pwoa=pwoa, result=result)
    assert asked == ["owner/net-x4", ("owner/net-x4", "main")]
    assert fingerprint(done["model"]) == fingerprint(result)


def test_every_piece_of_python_on_the_page_is_run() -> None:
    headings = ("RobustBench", "timm", "Hugging Face transformers", "A model for others")
    assert sum(len(blocks(heading)) for heading in headings) == PAGE.count("```python")
