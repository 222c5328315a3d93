"""Compare our AutoAttack with pyautoattack 0.2.0, an independent one: robust accuracy and time, on the same images.

    python -m benchmarks.autoattack_oracle --models MODELS --mnist MNIST --cifar10 CIFAR10 --n 1000 --out rows.json

MODELS is a folder with the checkpoints named in MODELS below; those that are not there are left out. `ours` and
`oracle` are robust accuracies in percent, of each component alone and of AutoAttack as a whole (`standard` in the
rows); the stronger attack leaves the lower one. pyautoattack is no dependency of the package:
pip install --no-deps pyautoattack==0.2.0

Its Square is that of the reference AutoAttack, and so is our `square`. Both differ from the paper on Square in two
ways. They never change the last row and column of an image: corners are from 0 to one less than in the paper. And
windows shrink by the schedule for 10,000 queries, of which there are 5,000, so that they never become single pixels.
`--square corners` changes the first in pyautoattack, `--square paper` both; they are compared with our `square-paper`.
With `paper` the two attacks are the same in l∞; in l2 ours also makes up for what the box cuts off.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from pyautoattack import AutoAttack
from torch import Tensor, nn

import pwoa
from benchmarks.mnist_networks import kwsmall, lenet5
from benchmarks.rows import Row, keep_rows, one_line, option_parser
from pwoa.attacks.autoattack import autoattack
from pwoa.attacks.gradient import fgsm
from pwoa.attacks.problem import is_broken
from pwoa.attacks.registry import ATTACKS, find_attack
from pwoa.attacks.square import square_rounds
from pwoa.devices import choose_device, device_name, exact_float32
from pwoa.models.inference import attack_copy
from pwoa.threat import Threat

WHOLE = "standard"
PARTS = find_attack("autoattack").parts
MNIST_THREAT = Threat("linf", 0.3, 0.01)
CIFAR_THREAT = Threat("linf", 8 / 255, 2 / 255)
MODELS: dict[str, tuple[str | Callable[[], nn.Module], str, str, Threat]] = {
    "smallcnn": ("smallcnn", "mnist_smallcnn_TRADES_official_linf0.3.pt", "mnist", MNIST_THREAT),
    "lenet5": (lenet5, "mnist_lenet5_advertorch_pgd_linf0.3.pt", "mnist", MNIST_THREAT),
    "kwsmall": (kwsmall, "mnist_kwsmall_fastadv_pgd_linf0.3.pt", "mnist", MNIST_THREAT),
    "lenet": ("lenet", "embedded", "mnist", MNIST_THREAT),
    "resnet18": ("resnet18", "cifar10_resnet18_trades_fp16.pt", "cifar10", CIFAR_THREAT),
}
"""Name → architecture, checkpoint, data set, threat."""


def oracle(model: nn.Module, x: Tensor, labels: Tensor, threat: Threat, attack: str, options: Options) -> Tensor:
    """Tell which images pyautoattack leaves unbroken, as it comes: with what torch takes for float32."""
    norm = {"linf": "Linf", "l2": "L2"}[threat.norm]
    runner = AutoAttack(model, device=x.device, eps=threat.radius, norm=norm, seed=options.seed)
    runner.square.n_queries = options.queries
    if options.square != "as-is":
        pick = runner.square.random_int
        runner.square.random_int = lambda low, high: pick(low, high + 1)
    runner.square.rescale_schedule = options.square == "paper"
    runner.attacks_to_run = list(PARTS) if attack == WHOLE else [attack]
    adversarial: Tensor = runner.run_standard_evaluation(x, labels, batch_size=options.batch)[0]
    broken = [
        is_broken(model, *part) for part in zip(torch.split(adversarial, 500), torch.split(labels, 500), strict=True)
    ]
    return ~torch.cat(broken)


def ours(model: nn.Module, x: Tensor, labels: Tensor, threat: Threat, attack: str, options: Options) -> Tensor:
    """Tell which images ours leaves unbroken, as `pwoa evaluate` runs it, from making the search model on."""
    names = PARTS if attack == WHOLE else (attack,)
    if options.square != "as-is":
        names = tuple("square-paper" if name == "square" else name for name in names)
    with exact_float32():
        search = attack_copy(model, x, batch=options.batch) if options.search == "auto" else None
        verdicts = autoattack(
            model, x, labels, threat, attacks=names, batch=options.batch, seed=options.seed, search_model=search
        )
        return verdicts.robust


def timed(
    run: Callable[..., Tensor], model: nn.Module, x: Tensor, labels: Tensor, *rest: object
) -> tuple[float, float]:
    """Return robust accuracy in percent, and seconds."""
    if x.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    robust = run(model, x, labels, *rest)
    if x.is_cuda:
        torch.cuda.synchronize()
    return 100 * float(robust.float().mean()), time.perf_counter() - start


class Options(argparse.Namespace):
    """What the command line says."""

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


def parse_options() -> Options:
    """Read the command line."""
    parser = option_parser(__doc__)
    parser.add_argument("--models", type=Path, default=Path(), help="the folder with the checkpoints")
    parser.add_argument("--mnist", help="the folder with the official MNIST files")
    parser.add_argument("--cifar10", help="the folder with the official CIFAR-10 files")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), help="these models")
    parser.add_argument("--attacks", nargs="+", choices=[*PARTS, "apgd-dlr", WHOLE], default=[*PARTS, WHOLE])
    parser.add_argument("--norm", choices=["linf", "l2"], default="linf")
    parser.add_argument("--radius", type=float, help="instead of that of each model; needed for l2")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--skip", type=int, default=0, help="start at this test image")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--square", choices=["as-is", "corners", "paper"], default="as-is", help="the other's Square")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--search", choices=["auto", "float32"], default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="start no row after this time")
    given = parser.parse_args(namespace=Options())
    if given.norm == "l2" and given.radius is None:
        parser.error("--norm l2 needs --radius: the models have a radius in linf only")
    return given


def rows(given: Options) -> Iterator[Row]:
    """Yield a row for each model and attack."""
    device, end = choose_device(given.device), time.perf_counter() + given.limit_seconds
    for name in given.only:
        architecture, file, data_name, threat = MODELS[name]
        checkpoint = file if file == "embedded" else str(given.models / file)
        if checkpoint != "embedded" and not Path(checkpoint).is_file():
            continue
        if given.radius is not None:
            threat = Threat(given.norm, given.radius, given.radius / 4)
        data = pwoa.load_data(data_name, data_folder=getattr(given, data_name))
        network = architecture if isinstance(architecture, str) else architecture()
        model = pwoa.load_model(checkpoint, data, architecture=network).to(device)
        x, labels = data.test.to(device).batch(torch.arange(given.skip, given.skip + given.n, device=device))
        fgsm(model, x[: given.batch], labels[: given.batch], threat)  # the first passes are slow
        for attack in given.attacks:
            if time.perf_counter() > end:
                return
            our_accuracy, our_seconds = timed(ours, model, x, labels, threat, attack, given)
            oracle_accuracy, oracle_seconds = timed(oracle, model, x, labels, threat, attack, given)
            yield {
                "model": name,
                "attack": attack,
                "norm": threat.norm,
                "radius": round(threat.radius, 6),
                "n": given.n,
                "ours": round(our_accuracy, 3),
                "oracle": round(oracle_accuracy, 3),
                "seconds_ours": round(our_seconds, 2),
                "seconds_oracle": round(oracle_seconds, 2),
                "queries": given.queries,
                "batch": given.batch,
                "square": given.square,
                "seed": given.seed,
                "search": given.search,
                "device": device_name(device),
            }


@one_line()
def main() -> None:
    """Compare on every model that is there."""
    given = parse_options()
    for name, paper in (("square", False), ("square-paper", True)):
        rounds = partial(square_rounds, queries=given.queries, paper=paper)
        ATTACKS[name] = replace(ATTACKS[name], rounds=rounds)
    keep_rows(rows(given), given.out)


if __name__ == "__main__":
    main()
