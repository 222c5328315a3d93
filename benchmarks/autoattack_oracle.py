"""Our AutoAttack against pyautoattack 0.2.0, an independent one: robust accuracy and time, on the same images.

    python benchmarks/autoattack_oracle.py --models MODELS --mnist MNIST --cifar10 CIFAR10 --n 1000 --out rows.json

MODELS is a folder with the checkpoints named in MODELS below; those that are not there are left out. `ours` and
`oracle` are percent robust accuracy, of each component alone and of the whole; lower is the stronger attack.
The other one is not a dependency: pip install --no-deps pyautoattack==0.2.0

Its Square is that of the reference AutoAttack, and so is our `square`. They depart from the paper on Square twice. They
never change the last row and column of an image: corners are from 0 to one less than in the paper. And windows shrink
by the schedule for 10,000 queries, of which there are 5,000, so that they never become single pixels.
`--square corners` mends the first in the other's, `--square paper` both, to be compared with our `square-paper`. With
`paper` that is the same attack in l∞; in l2 ours also makes up for what the box cuts off.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from mnist_networks import kwsmall, lenet5
from pyautoattack import AutoAttack
from torch import Tensor, nn

import pwoa
from pwoa.attacks.autoattack import autoattack
from pwoa.attacks.gradient import fgsm
from pwoa.attacks.problem import is_broken
from pwoa.attacks.registry import ROUNDS, STANDARD
from pwoa.attacks.square import square_rounds
from pwoa.devices import choose_device, device_name, exact_float32
from pwoa.errors import one_line
from pwoa.models.architectures.registry import build
from pwoa.models.checkpoints.files import float32, load_state, open_checkpoint
from pwoa.models.inference import search_model
from pwoa.storage import save_rows
from pwoa.threat import Threat

WHOLE = "standard"
MNIST_THREAT = Threat("linf", 0.3, 0.01)
CIFAR_THREAT = Threat("linf", 8 / 255, 2 / 255)


MODELS: dict[str, tuple[Callable[[], nn.Module], str, str, Threat]] = {
    "smallcnn": (partial(build, "smallcnn", 10, 1), "mnist_smallcnn_TRADES_official_linf0.3.pt", "mnist", MNIST_THREAT),
    "lenet5": (lenet5, "mnist_lenet5_advertorch_pgd_linf0.3.pt", "mnist", MNIST_THREAT),
    "kwsmall": (kwsmall, "mnist_kwsmall_fastadv_pgd_linf0.3.pt", "mnist", MNIST_THREAT),
    "lenet": (partial(build, "lenet", 10, 1), "embedded", "mnist", MNIST_THREAT),
    "resnet18": (partial(build, "resnet18", 10, 3), "cifar10_resnet18_trades_fp16.pt", "cifar10", CIFAR_THREAT),
}
"""Name → factory, checkpoint, data set, threat."""


def oracle(model: nn.Module, x: Tensor, labels: Tensor, threat: Threat, attack: str, options: Options) -> Tensor:
    """Which images it leaves unbroken, run as it comes: with what torch takes for float32."""
    norm = {"linf": "Linf", "l2": "L2"}[threat.norm]
    runner = AutoAttack(model, device=x.device, eps=threat.radius, norm=norm, seed=options.seed)
    runner.square.n_queries = options.queries
    if options.square != "as-is":
        pick = runner.square.random_int
        runner.square.random_int = lambda low, high: pick(low, high + 1)
    runner.square.rescale_schedule = options.square == "paper"
    runner.attacks_to_run = list(STANDARD) if attack == WHOLE else [attack]
    found: Tensor = runner.run_standard_evaluation(x, labels, batch_size=options.batch)[0]
    wrong = [is_broken(model, *part) for part in zip(found.split(500), labels.split(500), strict=True)]
    return ~torch.cat(wrong)


def ours(model: nn.Module, x: Tensor, labels: Tensor, threat: Threat, attack: str, options: Options) -> Tensor:
    """Which images ours leaves unbroken, as `pwoa evaluate` runs it; making the search model is a part of it."""
    names = STANDARD if attack == WHOLE else (attack,)
    if options.square != "as-is":
        names = tuple("square-paper" if name == "square" else name for name in names)
    with exact_float32():
        search = search_model(model, x, batch=options.batch) if options.search == "auto" else None
        settings = {"attacks": names, "batch": options.batch, "seed": options.seed, "search_model": search}
        return autoattack(model, x, labels, threat, **settings).robust


def timed(
    run: Callable[..., Tensor], model: nn.Module, x: Tensor, labels: Tensor, *rest: object
) -> tuple[float, float]:
    """Percent robust accuracy, and seconds."""
    wait = torch.cuda.synchronize if x.is_cuda else lambda: None
    wait()
    start = time.perf_counter()
    robust = run(model, x, labels, *rest)
    wait()
    return 100 * float(robust.float().mean()), time.perf_counter() - start


class Options(argparse.Namespace):
    models: Path
    mnist: str | None
    cifar10: str | None
    only: list[str]
    attacks: list[str]
    norm: str
    radius: float | None
    n: int
    skip: int
    batch: int
    queries: int
    square: str
    seed: int
    search: str
    device: str
    limit_seconds: float
    out: Path | None


def options() -> Options:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path(), help="the folder with the checkpoints")
    parser.add_argument("--mnist", help="the folder with the official MNIST files")
    parser.add_argument("--cifar10", help="the folder with the official CIFAR-10 files")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), help="these models")
    parser.add_argument("--attacks", nargs="+", choices=[*STANDARD, "apgd-dlr", WHOLE], default=[*STANDARD, WHOLE])
    parser.add_argument("--norm", choices=["linf", "l2"], default="linf")
    parser.add_argument("--radius", type=float, help="instead of each model's own; needed for l2")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--skip", type=int, default=0, help="start at this test image")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--square", choices=["as-is", "corners", "paper"], default="as-is", help="the other's Square")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--search", choices=["auto", "float32"], default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="start no row after this time")
    parser.add_argument("--out", type=Path, help="a file that holds the rows so far, as a JSON list")
    given = parser.parse_args(namespace=Options())
    if given.norm == "l2" and given.radius is None:
        parser.error("--norm l2 needs --radius: the models have radii of their own in linf only")
    return given


def rows(given: Options) -> Iterator[dict[str, object]]:
    device = choose_device(given.device)
    for name in given.only:
        factory, file, data_name, threat = MODELS[name]
        checkpoint = file if file == "embedded" else str(given.models / file)
        if checkpoint != "embedded" and not Path(checkpoint).is_file():
            continue
        if given.radius is not None:
            threat = Threat(given.norm, given.radius, given.radius / 4)
        model = factory()
        load_state(model, float32(open_checkpoint(checkpoint).tensors), checkpoint)
        model.eval().to(device)
        test = pwoa.load_data(data_name, folder=getattr(given, data_name)).test.to(device)
        x, labels = test.batch(torch.arange(given.skip, given.skip + given.n, device=device))
        fgsm(model, x[: given.batch], labels[: given.batch], threat)  # the first pass, and its backward, are slow
        for attack in given.attacks:
            mine, my_seconds = timed(ours, model, x, labels, threat, attack, given)
            its, its_seconds = timed(oracle, model, x, labels, threat, attack, given)
            yield {
                "model": name,
                "attack": attack,
                "norm": threat.norm,
                "radius": round(threat.radius, 6),
                "n": given.n,
                "ours": round(mine, 3),
                "oracle": round(its, 3),
                "seconds_ours": round(my_seconds, 2),
                "seconds_oracle": round(its_seconds, 2),
                "queries": given.queries,
                "batch": given.batch,
                "square": given.square,
                "seed": given.seed,
                "search": given.search,
                "device": device_name(device),
            }


@one_line()
def main() -> None:
    given = options()
    ROUNDS["square"] = partial(square_rounds, queries=given.queries)
    ROUNDS["square-paper"] = partial(square_rounds, queries=given.queries, paper=True)
    start, done = time.perf_counter(), []
    for row in rows(given):
        print(json.dumps(row), flush=True)
        done.append(row)
        if given.out:
            save_rows(given.out, done)
        if time.perf_counter() - start > given.limit_seconds:
            break


if __name__ == "__main__":
    main()
