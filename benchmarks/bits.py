"""Hash what small seeded runs of every method end with, on the CPU, to compare two commits bit by bit.

    python -m benchmarks.bits --out before.json     # at one commit
    python -m benchmarks.bits --out after.json      # at the other; then compare the files

A row for each run: hashes of its weights and of its metrics without seconds, and its accuracies.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import pwoa
from benchmarks.rows import Row, keep_rows, one_line, option_parser
from pwoa.methods import METHODS

SHARED = {
    "evaluation.images": 60,
    "training.device": "cpu",
    "training.batch": 64,
    "training.group": 32,
    "training.average": 0.9,
}
PRUNING = SHARED | {"search.epochs": 1, "search.interval": 0.4, "finetune.epochs": 1, "data.validation": 8000}
TRAINING = SHARED | {
    "data.name": "mnist-mini",
    "data.validation": 9700,
    "teacher.architecture": "lenet@0.2",
    "pretrain.epochs": 2,
    "pretrain.steps": 2,
}


def runs() -> dict[str, Callable[..., object]]:
    """Return by name the runs that are compared; each still wants its folder."""
    chosen: dict[str, Callable[..., object]] = {}
    for method in (name for name, kind in METHODS.items() if kind.prunes):
        for mix in (0.0, 0.5, 1.0):
            settings = {**PRUNING, "training.mix": mix, "training.seed": 3}
            chosen[f"{method}-{mix}"] = partial(pwoa.prune, rate=8, method=method, recipe="demo", settings=settings)
    for allocation in ("erk", "lamp"):
        settings = {**PRUNING, "sparsity.allocation": allocation, "objective.balance": "auto"}
        chosen[allocation] = partial(pwoa.prune, rate=16, recipe="demo", settings=settings)
    for method in (name for name, kind in METHODS.items() if not kind.prunes):
        fewer = {"data.validation": 9850} if method == "lbgat" else {}  # it trains two networks
        settings = {**TRAINING, **fewer}
        chosen[method] = partial(pwoa.pretrain, method=method, recipe="teacher-mnist", settings=settings)
    return chosen


def row_of(name: str, folder: Path) -> Row:
    """Return the row of a run that has ended in a folder."""
    weights = hashlib.sha256()
    for key, tensor in sorted(load_file(folder / "model.safetensors").items()):
        weights.update(key.encode())
        weights.update(tensor.contiguous().numpy().tobytes())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    metrics = hashlib.sha256(json.dumps(without_seconds(lines), sort_keys=True).encode())
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    accuracies = {key: result[key] for key in ("teacher", "pruned", "accuracy") if key in result}
    return {"name": name, "weights": weights.hexdigest()[:16], "metrics": metrics.hexdigest()[:16], **accuracies}


def without_seconds(value: Any) -> Any:
    """Return a value of JSON without what a clock says."""
    if isinstance(value, dict):
        return {key: without_seconds(inner) for key, inner in value.items() if "seconds" not in key}
    return [without_seconds(inner) for inner in value] if isinstance(value, list) else value


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each run asked for."""
    torch.set_num_threads(options.threads)  # the order of sums depends on it
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # without it a run takes as many as there are free cores
    with tempfile.TemporaryDirectory() as scratch:
        for name, run in runs().items():
            if name in (options.only or [name]):
                run(folder=Path(scratch) / name)
                yield row_of(name, Path(scratch) / name)


@one_line()
def main() -> None:
    """Run and hash."""
    parser = option_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(runs()), metavar="NAME", help="these runs, such as pwoa-0.5")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    keep_rows(rows(options), options.out)


if __name__ == "__main__":
    main()
