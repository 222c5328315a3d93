"""Many runs from one file: a grid of settings, a run folder for each point of it.

    recipe = "mnist"                          # a preset or a file; the settings below change it
    [set]
    "finetune.epochs" = 10
    [grid]
    method = ["pwoa", "advprune", "hydra"]
    "sparsity.rate" = [4, 16]
    "training.mix" = [0.0, 0.2, 1.0]
    "training.seed" = [0, 1, 2]

Finished runs are skipped, broken ones resumed, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pwoa.errors import InputError, did_you_mean
from pwoa.files import naming, replacing
from pwoa.progress import Progress
from pwoa.recipe import Recipe, load_recipe, to_toml

ROWS = "rows.json"
_PARTS = ("recipe", "set", "grid")
_COLUMNS = ("natural", "pgd20", "cw", "autoattack")


@dataclass(frozen=True)
class Point:
    """One run of a sweep: the values it has of the grid, as a name for its folder, and its whole recipe."""

    name: str
    recipe: Recipe


def expand(path: str | Path) -> list[Point]:
    """All points of the grid in a file, the last setting changing fastest."""
    try:
        tree = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    if unknown := [key for key in tree if key not in _PARTS]:
        raise InputError(f"{path}: unknown key {unknown[0]!r} ({did_you_mean(unknown[0], _PARTS)})")
    base = load_recipe(tree.get("recipe")).with_settings(_flat(tree.get("set", {})))
    grid = _flat(tree.get("grid", {}))
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{path}: grid.{key} = {values!r} is not a list of values")
    points = []
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        name = "-".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items()) or "run"
        points.append(Point(re.sub(r"[^\w.=+-]+", "_", name), base.with_settings(chosen)))
    return points


def sweep(
    path: str | Path,
    folder: str | Path,
    *,
    jobs: int = 0,
    retries: int = 1,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Run all points, each in a process of its own; a row for each that ended, also in FOLDER/rows.json.

    jobs: how many at a time (0: one a GPU, or one). A run that fails is tried again `retries` times, then left out.
    """
    progress = progress or Progress()
    points, folder = expand(path), Path(folder)
    devices = _devices(jobs)
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    free: SimpleQueue[str | None] = SimpleQueue()
    for device in devices:
        free.put(device)
    progress.say(f"{len(points)} runs, {len(devices)} at a time; sweep folder: {folder}")
    progress.start("sweep", len(points))

    def work(point: Point) -> dict[str, Any] | None:
        device = free.get()
        try:
            found = _run(point, folder / point.name, device, retries, progress)
        finally:
            free.put(device)
        progress.advance()
        return found

    try:
        with ThreadPoolExecutor(len(devices)) as pool:
            rows = [row for row in pool.map(work, points) if row is not None]
    finally:
        progress.close()
    with replacing(folder / ROWS) as file:
        file.write(("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode())
    return rows


def spread(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """By method, rate and mix ratio: mean ± standard deviation over the other settings, for a table."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(f"{row['method']}, rate {row['rate']:.4g}, mix {row['mix']:g}", []).append(row)
    return {
        name: {column: _mean([row[column] for row in group]) for column in _COLUMNS} for name, group in groups.items()
    }


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    deviation = f" ± {statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.2f}{deviation}"


def _run(point: Point, folder: Path, device: str | None, retries: int, progress: Progress) -> dict[str, Any] | None:
    recipe = folder.with_name(f"{folder.name}.toml")
    with replacing(recipe) as file:
        file.write(to_toml(point.recipe).encode())
    command = [sys.executable, "-m", "pwoa", "prune", "--recipe", str(recipe), "--out", str(folder)]
    environment = os.environ | ({} if device is None else {"CUDA_VISIBLE_DEVICES": device})
    for _ in range(1 + retries):
        if not (folder / "result.json").is_file():
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            folder.with_name(f"{folder.name}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
                progress.say(f"{point.name} failed: {reason}")
                continue
        return _row(point.recipe, json.loads((folder / "result.json").read_text(encoding="utf-8")))
    return None


def _row(recipe: Recipe, result: Mapping[str, Any]) -> dict[str, Any]:
    accuracy = result["pruned"]
    return {
        "dataset": recipe.data.name,
        "architecture": recipe.teacher.architecture,
        "teacher": recipe.teacher.checkpoint,
        "method": recipe.method,
        "rate": recipe.sparsity.rate,
        "mix": recipe.training.mix,
        "seed": recipe.training.seed,
        **{column: accuracy.get(column) for column in _COLUMNS},
        "n": result["images"],
        "seconds": round(result["training_seconds"], 1),
        "device": result["device"],
    }


def _devices(jobs: int) -> list[str | None]:
    """For each run at a time the GPU it sees; None where there is none."""
    import torch

    gpus = torch.cuda.device_count()
    count = jobs or max(gpus, 1)
    return [str(number % gpus) if gpus else None for number in range(count)]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings as `section.key`, whether they were written so or as tables."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found
