"""Time pruned networks by every route, one image on one core, in turns with their teacher.

    python -m benchmarks.deployment --teacher trades.pt --data-folder CIFAR10 --mnist MNIST --out ROWS.json

ResNet-18 at several rates, allocations and budgets, and the embedded LeNet at rate 16. Masks are by magnitude, of the
teacher's own weights, without any training: the speed does not depend on what the weights are, only on where they are
zero. `same_verdicts` is the share of the test images on which a route has the class of the pruned network in torch.
`milliseconds_teacher_best` is the teacher's fastest float32 route in the same run. Milliseconds are the processor's, so
that they hold on a busy machine too; `busyness` is how many times as long the clock took. Networks that the file has
already are not timed again.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

import pwoa
from benchmarks.rows import Row, keep_rows, load_rows, markdown, one_line, option_parser
from pwoa.data.images import Data
from pwoa.deploy.bench import TEACHER, compared
from pwoa.deploy.routes import ROUTES, Task, find_routes
from pwoa.errors import InputError
from pwoa.models.architectures.registry import architecture_name
from pwoa.progress import ConsoleProgress
from pwoa.recipe import SparsityRecipe
from pwoa.sparsity.constraint import Constraint

BATCH = 100
TIMED = 64
"""The first test images, which are timed one after the other."""
CHECKED = ("onnx", "int8", "c")
"""The routes whose verdicts are counted on all test images; OpenVINO runs the same file as onnxruntime."""


class Pruning(NamedTuple):
    """How a network is pruned."""

    rate: float
    allocation: str = "uniform"
    budget: str = "weights"

    def __str__(self) -> str:
        return f"rate {self.rate:g} of {self.budget}, {self.allocation}"


DENSE = Pruning(1, "dense")
CIFAR = (Pruning(4), Pruning(10), Pruning(16), Pruning(16, "lamp"), Pruning(10, "uniform", "macs"))
MNIST = (Pruning(16),)


def pruned(teacher: nn.Module, how: Pruning, x: torch.Tensor) -> nn.Module:
    """Return a copy with its smallest weights set to zero."""
    model = copy.deepcopy(teacher)
    constraint = Constraint.of(model, SparsityRecipe(rate=how.rate, allocation=how.allocation, budget=how.budget), x)
    with torch.no_grad():
        for name, weight in constraint.weights.items():
            weight.copy_(constraint.project(name, weight))
    return model


def rows(
    name: str, teacher: nn.Module, data: Data, prunings: tuple[Pruning, ...], given: argparse.Namespace
) -> Iterator[Row]:
    """Yield a row for each network and route that the file does not have, timed in one run."""
    present = {
        tuple(row[key] for key in ("network", *Pruning._fields)) for row in (load_rows(given.out) if given.out else ())
    }
    prunings = tuple(how for how in prunings if (name, *how) not in present)
    if not prunings:
        return
    x, _ = data.test.batch(torch.arange(2))
    networks = {how: pruned(teacher, how, x) for how in prunings}
    found = pwoa.bench(
        {str(how): network for how, network in networks.items()},
        data,
        teacher=teacher,
        routes=given.routes,
        threads=1,
        seconds=given.seconds,
        batch=1,
        images=TIMED,
        progress=ConsoleProgress(),
    )
    best = found.fastest(TEACHER, exact=True)
    for how in (*(() if (name, *DENSE) in present else (DENSE,)), *prunings):
        mine = [row for row in found.rows if row["model"] == (TEACHER if how is DENSE else str(how))]
        same = {} if how is DENSE else same_verdicts(networks[how], data, [row["route"] for row in mine], given.images)
        for row in mine:
            yield {
                "network": name,
                **how._asdict(),
                "route": row["route"],
                **({"error": row["error"]} if "error" in row else figures(row)),
                "milliseconds_teacher_best": None if best is None else best["milliseconds"],
                "same_verdicts": None,
                **same.get(row["route"], {}),
                "images": min(given.images, len(data.test)),
                "busyness": found.about["busyness"],
                "device": found.about["device"],
            }


def figures(row: Row) -> Row:
    """Return what is kept of a row of the benchmark."""
    kept = ("milliseconds", "milliseconds_95", "bytes", "memory", "macs", "macs_dense", "max_difference")
    return {key: row[key] for key in kept}


def same_verdicts(model: nn.Module, data: Data, routes: list[str], images: int) -> dict[str, Row]:
    """Return by route on which share of the test images it has the class of the network in torch; with all threads."""
    test = data.test.first(images)
    x, _ = test.batch(torch.arange(len(test)))
    calibration, _ = data.train.batch(torch.arange(min(256, len(data.train))))
    threads = torch.get_num_threads()
    found: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        task = Task(model, data.classes, x[:2], calibration, Path(folder))
        for route in find_routes([name for name in routes if name in CHECKED]):
            try:
                call = route.open(route.write(task), threads)
            except InputError:
                continue
            row = compared(call, model, x, BATCH)
            found[route.name] = {"same_verdicts": row["same_class"], "max_difference": row["max_difference"]}
    return found


def all_rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of ResNet-18 on CIFAR-10, and of the embedded LeNet."""
    if given.teacher:
        cifar10 = pwoa.load_data("cifar10", data_folder=given.data_folder)
        teacher = pwoa.load_model(given.teacher, cifar10)
        yield from rows(architecture_name(teacher), teacher, cifar10, CIFAR, given)
    mnist = pwoa.load_data("mnist", data_folder=given.mnist) if given.mnist else pwoa.load_data("mnist-mini")
    yield from rows("lenet", pwoa.load_model("embedded"), mnist, MNIST, given)


def deployment_table(path: Path) -> str:
    """Return milliseconds for an image by route, a line for each network and pruning, and what C gains."""
    rows = load_rows(path)
    if not rows:
        return "Nothing is measured yet: `python -m benchmarks.deployment` does it."
    routes = list(dict.fromkeys(row["route"] for row in rows))
    head = ["network", "rate", "multiply-adds", *(ROUTES[route].label for route in routes), "C, MB", "C gains"]
    keys = dict.fromkeys((row["network"], row["rate"], row["allocation"], row["budget"]) for row in rows)
    lines = [_line(network, Pruning(*how), rows, routes) for network, *how in keys]
    checked = [row for row in rows if row["route"] == "c" and row.get("same_verdicts") is not None]
    agree = ""
    if checked:
        same, far = min(row["same_verdicts"] for row in checked), max(row["max_difference"] for row in checked)
        share = "all" if same == 1 else f"at least {100 * same:.2f} %"
        agree = (
            f" C gives torch's class on {share} of the test images that "
            f"were compared, up to {max(row['images'] for row in checked):,}; its logits are within {far:.0e} of the "
            "largest one."
        )
    return (
        f"One image on one core of {rows[0]['device']}, milliseconds, medians of runs in turns; masks by magnitude. "
        "The last column is how many times as fast C is as the teacher's fastest float32 route:\n\n"
        + markdown(head, lines)
        + f"\n\nMultiply-adds are those of the weights that are not zero, in millions.{agree}"
    )


def _line(network: str, how: Pruning, rows: list[Row], routes: list[str]) -> list[str]:
    """Return the cells of a network that is pruned in one way."""
    mine = {r["route"]: r for r in rows if (r["network"], r["rate"], r["allocation"], r["budget"]) == (network, *how)}
    macs = next((f"{row['macs'] / 1e6:.4g}" for row in mine.values() if row.get("macs")), "")
    times = [f"{mine[route]['milliseconds']:.3g}" if _runs(mine.get(route)) else "–" for route in routes]
    ours, gains = mine.get("c"), ["–", "–"]
    if ours is not None and _runs(ours):
        best = ours["milliseconds_teacher_best"]
        gains = [f"{ours['bytes'] / 1e6:.2f}", f"{best / ours['milliseconds']:.3g}×"]
    return [network, "dense" if how.rate == 1 else str(how).removeprefix("rate "), macs, *times, *gains]


def _runs(row: Row | None) -> bool:
    return row is not None and "milliseconds" in row


@one_line()
def main() -> None:
    """Time every network."""
    parser = option_parser(__doc__)
    parser.add_argument("--teacher", help="the robust ResNet-18, as pwoa.load_model takes it; without it LeNet alone")
    parser.add_argument("--data-folder", help="the official CIFAR-10 files")
    parser.add_argument("--mnist", help="the official MNIST files; the embedded part without it")
    parser.add_argument("--routes", help="of those that pwoa bench has; all by default")
    parser.add_argument("--seconds", type=float, default=120.0, help="to time each network with all its prunings")
    parser.add_argument("--images", type=int, default=10_000, help="test images for same_verdicts")
    given = parser.parse_args()
    keep_rows(all_rows(given), given.out)


if __name__ == "__main__":
    main()
