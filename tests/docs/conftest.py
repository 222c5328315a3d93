"""Stand-ins for what the documents speak of: small data sets, checkpoints, runs, other libraries and the hub."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file
from torch import Tensor, nn

import pwoa
from pwoa.attacks.apgd import apgd_ce, apgd_t_rounds, strong_rounds
from pwoa.attacks.fab import fab_t_rounds
from pwoa.attacks.registry import ATTACKS
from pwoa.attacks.square import square_rounds
from pwoa.data.catalog import Dataset
from pwoa.data.formats import Split
from pwoa.data.store import find, load_official
from pwoa.deploy import bench
from pwoa.deploy.routes import ROUTES
from pwoa.methods import METHODS
from pwoa.models.architectures.registry import ARCHITECTURES, build
from pwoa.models.border import Normalised
from pwoa.recipe import load_recipe, presets, to_toml
from pwoa.sparsity.patterns import PATTERNS
from pwoa.sweep import Point, expand
from pwoa.sweep.child import carry_out

ROOT = Path(__file__).parents[2]
REGISTRIES: tuple[dict[str, Any], ...] = (METHODS, PATTERNS, ATTACKS, ARCHITECTURES)
"""What a document may add to."""
MEAN, STD = (0.2, 0.4, 0.6), (0.1, 0.2, 0.4)
QUICK = {
    "search.epochs": 1,
    "search.learning_rate": 0.005,
    "finetune.epochs": 1,
    "finetune.learning_rate": 0.005,
    "pretrain.epochs": 1,
    "pretrain.steps": 1,
    "pretrain.warmup": 0,
    "pretrain.growing": 0,
    "training.optimizer": "adam",
    "training.batch": 32,
    "training.group": 32,
    "data.validation": 32,
    "teacher.minimum": 0,
    "evaluation.images": 6,
    "evaluation.attacks": "natural,pgd2",
    "evaluation.precision": "float32",
    "evaluation.checks": False,
    "evaluation.strong": 4,
}
"""Of every preset, so that a run ends in a second."""


class Net(nn.Module):
    """A network that learns the stand-in for CIFAR-10 in a second."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, stride=4)
        self.hidden, self.out = nn.Linear(8 * 64, 64), nn.Linear(64, 10)

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


class Workshop(NamedTuple):
    """A folder with every file that the documents name, and the network that the other libraries return."""

    folder: Path
    trained: Normalised
    pushed: list[str]


def bars(images: int, seed: int) -> Split:
    """Make colour images of ten classes: a bright block at one of ten places."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % 10
    pixels = torch.randint(0, 60, (images, 3, 32, 32), generator=generator)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        row, column = 10 * (label % 3), 8 * (label // 3)
        image[:, row : row + 10, column : column + 6] += 180
    return Split(pixels.to(torch.uint8).numpy(), labels.numpy())


def small_data() -> Callable[..., tuple[Split, Split]]:
    """Return what stands in for official files: digits of the embedded data, and bars for CIFAR."""
    digits = load_official(find("mnist-mini"))
    few = [Split(split.pixels[:n].copy(), split.labels[:n]) for split, n in zip(digits, (96, 6), strict=True)]

    def load(spec: Dataset, data_folder: Path | None = None, progress: object = None) -> tuple[Split, Split]:
        assert data_folder is None or data_folder.is_dir()
        return (few[0], few[1]) if spec.shape[0] == 1 else (bars(160, 0), bars(20, 1))

    return load


def short_attacks(patch: pytest.MonkeyPatch) -> None:
    """Cut AutoAttack and the defence checks short."""
    short: dict[str, dict[str, Any]] = {
        "apgd-ce": {"run": partial(apgd_ce, steps=2)},
        "apgd-t": {"rounds": partial(apgd_t_rounds, targets=1, steps=2)},
        "strong": {"rounds": partial(strong_rounds, ce_steps=2, steps=2)},
        "fab-t": {"rounds": partial(fab_t_rounds, targets=1, steps=2)},
        "square": {"rounds": partial(square_rounds, queries=10)},
        "square-paper": {"rounds": partial(square_rounds, queries=10, paper=True)},
    }
    for name, change in short.items():
        patch.setitem(ATTACKS, name, dataclasses.replace(ATTACKS[name], **change))
    for name, number in {"LONGER": 1, "QUERIES": 10, "WIDE_STEPS": 2, "APGD_STEPS": 2, "STRONG_CE_STEPS": 2}.items():
        patch.setattr(f"pwoa.evaluation.checks.{name}", number)


def quick_presets(folder: Path) -> Path:
    """Write all presets, changed so that a run ends in a second, and with networks of few filters."""
    for name in presets():
        recipe = load_recipe(name)
        architecture = recipe.teacher.architecture
        narrow = architecture if architecture == "lenet" else f"{architecture}@0.0625"
        text = to_toml(recipe.with_settings({**QUICK, "teacher.architecture": narrow}))
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


def train(data: pwoa.data.images.Data) -> Normalised:
    """Return a network behind its normalisation that knows the classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Normalised(Net(), MEAN, STD)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    x, y = data.train.batch(torch.arange(160))
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def libraries(patch: pytest.MonkeyPatch, trained: Normalised) -> None:
    """Put stand-ins where `import robustbench`, `timm` and `transformers` find them."""

    def install(name: str, **content: Any) -> None:
        module = ModuleType(name)
        vars(module).update(content)
        patch.setitem(sys.modules, name, module)

    def load_model(model_name: str, model_dir: str = "", dataset: str = "", threat_model: str = "") -> nn.Module:
        assert (model_name, dataset, threat_model) == ("Sehwag2021Proxy_R18", "cifar10", "Linf")
        return trained

    def create_model(model_name: str, pretrained: bool = False, checkpoint_path: str = "", **options: Any) -> nn.Module:
        assert options == {"num_classes": 10}
        net = Net()
        net.load_state_dict(trained.model.state_dict())
        net.pretrained_cfg = {"mean": MEAN, "std": STD, "input_size": (3, 32, 32)}  # type: ignore[assignment]
        return net

    def from_pretrained(name: str) -> nn.Module:
        model = ForImageClassification(SimpleNamespace(num_labels=10))
        model.net.load_state_dict(trained.model.state_dict())
        return model.eval()

    processor = SimpleNamespace(image_mean=list(MEAN), image_std=list(STD))
    install("robustbench")
    install("robustbench.utils", load_model=load_model)
    install("timm", create_model=create_model)
    install(
        "transformers",
        AutoModelForImageClassification=SimpleNamespace(
            from_pretrained=from_pretrained, from_config=ForImageClassification
        ),
        AutoImageProcessor=SimpleNamespace(from_pretrained=lambda name: processor),
    )


def hub(patch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Let the Hugging Face hub be a folder, and return the list of what is pushed to it."""
    pushed: list[str] = []

    def push(files: dict[str, Path | bytes], repo: str, **options: Any) -> str:
        assert sorted(files) == ["README.md", "config.json", "model.safetensors"]
        pushed.append(repo)
        return repo

    def fetch(name: str, revision: str | None, files: list[str]) -> Path:
        assert re.fullmatch(r"hf:owner/[\w-]+", name)
        return folder

    patch.setattr("pwoa.models.checkpoints.hub.push", push)
    patch.setattr("pwoa.models.checkpoints.folder.fetch", fetch)
    return pushed


def sweeps_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let a sweep have two of its runs, of few epochs, in this process."""

    def run(tasks: Sequence[Any], ended: Callable[[Any, str | None], None], *places: object) -> None:
        for task in tasks:
            ended(task, task.reason() if carry_out(task.recipe, task.folder, (), task.teacher) else None)

    def first_points(path: Path, settings: Sequence[str] = ()) -> list[Point]:
        points = expand(path, settings)[:2]
        return [dataclasses.replace(point, recipe=point.recipe.with_settings(QUICK)) for point in points]

    patch.setattr("pwoa.sweep.run_here", run)
    patch.setattr("pwoa.sweep.run_on_ray", run)
    patch.setattr("pwoa.sweep.expand", first_points)


def quick_benchmarks(patch: pytest.MonkeyPatch) -> None:
    """Let a benchmark time each route once, and leave out what takes long to prepare."""
    time_in_turns = bench._time_in_turns
    patch.setattr(bench, "ROUNDS", 1)
    patch.setattr(bench, "peak_memory", lambda *given: None)
    patch.setattr(bench, "_time_in_turns", lambda lanes, seconds, progress: time_in_turns(lanes, 0.01, progress))
    for name in ("torch-compiled", "openvino", "int8"):
        patch.setitem(ROUTES, name, dataclasses.replace(ROUTES[name], missing=lambda: "not in the tests of documents"))


def save_onnx(path: Path) -> None:
    """Write a linear classifier of digits."""
    with torch.random.fork_rng(devices=[]):
        layer = nn.Linear(784, 10)
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("Gemm", ["flat", "w", "b"], ["y"], transB=1)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(v.detach().numpy(), name) for name, v in (("w", layer.weight), ("b", layer.bias))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def furnish(folder: Path, written: dict[str, str]) -> None:
    """Make the files that the documents name: those they show themselves, checkpoints, and finished runs."""
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
        if name.endswith(".toml") and "[grid]" not in text:
            recipe = load_recipe(folder / name).with_settings(QUICK)
            (folder / name).write_text(to_toml(recipe), encoding="utf-8")
    names: dict[str, Any] = {}
    exec(written["mynet.py"], names)
    torch.save(names["Net"]().state_dict(), folder / "weights.pt")
    narrow = build("resnet18@0.0625", 10, 3)
    torch.save({"state_dict": narrow.state_dict()}, folder / "trades.pt")
    save_file(narrow.state_dict(), folder / "robust.safetensors")
    save_onnx(folder / "net.onnx")
    for name in ("downloads", "teachers"):
        (folder / name).mkdir()
    for name in ("benchmarks", "results", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    pwoa.save_pretrained(narrow, folder / "hub")
    measured = {"evaluation.attacks": "natural,pgd20"}
    pwoa.prune("embedded", "mnist-mini", settings=measured, folder=folder / "runs" / "mine")
    (folder / "runs" / "demo").mkdir()
    for name in ("naive", "pwoa"):
        (folder / "runs" / "demo" / name).symlink_to("../mine")
    pwoa.pretrain(recipe="teacher-cifar10", folder=folder / "runs" / "teacher")
    with chdir(folder):
        own = {"teacher.architecture": "smallnet.py:SmallNet"}
        pwoa.pretrain(data="mnist", settings=own, folder=Path("runs") / "small-teacher")


@pytest.fixture(scope="module")
def workshop(
    tmp_path_factory: pytest.TempPathFactory, digits: Callable[[int, int], Path], written: dict[str, str]
) -> Iterator[Workshop]:
    """Everything small and quick while the tests of the documents run."""
    folder, threads = tmp_path_factory.mktemp("workshop"), torch.get_num_threads()
    torch.set_num_threads(1)  # of work this small more threads only wait for each other
    shutil.copytree(digits(120, 20), folder / "digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pwoa.data.load.load_official", small_data())
        patch.setattr("pwoa.data.store.get", lambda name, progress=None: Path(find(name).name))
        patch.setattr("pwoa.recipe._PRESETS", quick_presets(tmp_path_factory.mktemp("presets")))
        patch.setattr("pwoa.report.serve.Server.serve_forever", lambda server: None)
        short_attacks(patch)
        sweeps_at_once(patch)
        quick_benchmarks(patch)
        trained = train(pwoa.load_data("cifar10"))
        libraries(patch, trained)
        pushed = hub(patch, folder / "hub")
        furnish(folder, written)
        yield Workshop(folder, trained, pushed)
    torch.set_num_threads(threads)


@pytest.fixture
def here(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh current folder with every file that the documents name; what is added to registries goes again."""
    folder = tmp_path / "here"
    shutil.copytree(workshop.folder, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    known = [(table, dict(table)) for table in REGISTRIES]
    yield folder
    for table, before in known:
        table.clear()
        table.update(before)
