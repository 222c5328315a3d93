"""Time an epoch of distillation with ADMM: this engine against a loop as the released code has it, in one run.

    python -m benchmarks.speed --data-folder CIFAR10 --networks resnet18 wrn-34-10 --batches 128 512 --out rows.json

The baseline is written anew from a description of how the code released with the paper works: float32, batches of 128
from a loader, the teacher a part of the graph (so that the backward pass goes through it too), the ADMM penalty through
autograd, HSIC on the CPU with four inverses a layer, a synchronisation each step. Its epoch is extrapolated from
`--baseline-steps` steps. Ours are whole epochs of `pwoa.prune` after a first one that compiles; with `--images` both
are scaled up from an epoch of that many. `peak_fraction` is the share of the measured bfloat16 matrix product.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import pwoa
from benchmarks.rows import Row, cifar10_parser, keep_rows, one_line
from pwoa.data.images import Data, Images
from pwoa.devices import choose_device, device_name
from pwoa.models.architectures.registry import build
from pwoa.models.hidden import hidden_points, recording
from pwoa.sparsity.selection import prunable


class Augmented(Dataset[tuple[Tensor, int]]):
    """One image at a time, cropped and flipped on the CPU, as a loader of images does it."""

    def __init__(self, images: Images) -> None:
        self.pixels, self.labels = images.pixels.cpu(), images.labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        top, left, mirror = torch.randint(9, (3,)).tolist()
        image = F.pad(self.pixels[number].float() / 255, (4,) * 4)[:, top : top + 32, left : left + 32]
        return (image.flip(2) if mirror > 4 else image), self.labels[number]


def hsic_on_the_cpu(a: Tensor, b: Tensor) -> Tensor:
    """Return the normalised estimate of two kernels, each inverted anew."""
    n = len(a)
    centring = torch.eye(n) - 1 / n
    ratios = [(k @ centring) @ torch.inverse(k @ centring + 1e-5 * n * torch.eye(n)) for k in (a, b)]
    return (ratios[0] * ratios[1].T).sum()


def kernel_on_the_cpu(z: Tensor) -> Tensor:
    """Return the Gaussian kernel of a batch."""
    z = z.flatten(1).float().cpu()
    norms = (z * z).sum(1)
    return torch.exp(-(norms[:, None] + norms[None] - 2 * z @ z.T).abs() / (2 * 25 * z.shape[1]))


def baseline(network: str, data: Data, hsic: bool, steps: int, device: torch.device) -> float:
    """Return the seconds for an epoch, from `steps` steps after three."""
    student, teacher = (build(network, data.classes, 3).to(device) for _ in range(2))
    teacher.eval()
    weights = prunable(student)
    auxiliary = {name: weight.detach().clone() for name, weight in weights.items()}
    optimizer = torch.optim.SGD(student.parameters(), 0.01, momentum=0.9, weight_decay=1e-4, foreach=False)
    loader = DataLoader(Augmented(data.train), batch_size=128, shuffle=True, num_workers=4, drop_last=True)
    points = hidden_points(student, torch.zeros(2, 3, 32, 32, device=device)) if hsic else ()
    start = 0.0
    for number, (x, y) in enumerate(loader):
        if number == 3:
            start = time.perf_counter()
        if number == 3 + steps:
            break
        x, y = x.to(device), y.to(device)
        with recording(student, points) as hidden:
            logits = student(x)
        ours, theirs = F.log_softmax(logits / 30, 1), F.softmax(teacher(x) / 30, 1)
        loss = F.kl_div(ours, theirs, reduction="none").mean() * 900 * 10
        for name, weight in weights.items():
            loss = loss + 0.005 * (weight - auxiliary[name]).norm() ** 2
        for z in hidden.values():
            kz, label = kernel_on_the_cpu(z), F.one_hot(y.cpu(), data.classes).float()
            loss = loss + 2e-5 * hsic_on_the_cpu(kernel_on_the_cpu(x), kz).to(device)
            loss = loss - 1e-4 * hsic_on_the_cpu(label @ label.T, kz).to(device)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        (logits.argmax(1) == y).float().mean().item()
    return (time.perf_counter() - start) / steps * (len(data.train) // 128)


def ours(network: str, data: Data, hsic: bool, batch: int, mode: str, epochs: int, device: torch.device) -> float:
    """Return the seconds for an epoch of the search, after one that compiles."""
    settings: dict[str, Any] = {
        "search.epochs": epochs,
        "finetune.epochs": 1,
        "data.validation": 512,
        "training.batch": batch,
        "training.mode": mode,
        "training.device": str(device),
        "training.checkpoint_seconds": 1e9,
        "evaluation.images": 128,
        "evaluation.attacks": ["natural"],
    }
    if not hsic:
        settings |= {"objective.hsic_x": 0.0, "objective.hsic_y": 0.0}
    teacher = build(network, data.classes, 3)
    with tempfile.TemporaryDirectory() as folder:
        result = pwoa.prune(teacher, data, recipe="cifar10", settings=settings, folder=f"{folder}/run", force=True)
    seconds = [line["seconds"] for line in result.metrics if line["stage"] == "search"][1:]
    return float(min(seconds)) * len(data.train) / (len(data.train) - 512)


def flops(network: str, classes: int) -> float:
    """Count the operations of a distillation step for an image: teacher forward, student forward and backward."""
    model, operations = build(network, classes, 3).eval(), [0.0]

    def count(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        weight = layer.get_parameter("weight")
        operations[0] += 2.0 * weight.numel() * output[0].numel() / weight.shape[0]

    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    return 4 * operations[0]


def peak(device: torch.device) -> float:
    """Measure floating-point operations per second of a large matrix product."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each network, loop, mode and batch, without and with HSIC."""
    device = choose_device(given.device)
    whole = pwoa.load_data("cifar10", data_folder=given.data_folder)
    data = Data("cifar10", whole.train.first(given.images or len(whole.train)), whole.test, whole.classes)
    top = peak(device)
    for network in given.networks:
        work, scale = flops(network, data.classes) * len(whole.train), len(whole.train) / len(data.train)
        shared = {"network": network, "device": device_name(device)}
        for hsic in (False, True):
            seconds = scale * baseline(network, data, hsic, given.baseline_steps, device)
            yield {**shared, "loop": "baseline", "batch": 128, "hsic": hsic} | _figures(seconds, work, top)
        for mode in given.modes:
            for batch in given.batches:
                for hsic in (False, True):
                    seconds = scale * ours(network, data, hsic, batch, mode, given.epochs, device)
                    row = {**shared, "loop": "ours", "mode": mode, "batch": batch, "hsic": hsic}
                    yield row | _figures(seconds, work, top)


def _figures(seconds: float, work: float, top: float) -> dict[str, float]:
    return {"seconds_per_epoch": round(seconds, 3), "peak_fraction": round(work / seconds / top, 4)}


@one_line()
def main() -> None:
    """Time every network."""
    parser = cifar10_parser(__doc__)
    parser.add_argument("--networks", nargs="+", default=["resnet18", "wrn-34-10"])
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 512, 1024])
    parser.add_argument("--modes", nargs="+", default=["fast"])
    parser.add_argument("--epochs", type=int, default=3, help="of ours, of which the first compiles")
    parser.add_argument("--baseline-steps", type=int, default=40)
    parser.add_argument("--images", type=int, default=0, help="only the first training images, as many as this")
    given = parser.parse_args()
    keep_rows(rows(given), given.out)


if __name__ == "__main__":
    main()
