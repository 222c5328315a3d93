"""The demo: the paper's claim on the embedded robust LeNet, in a few minutes on a CPU."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pwoa.data.load import load_data
from pwoa.deploy.bench import TEACHER, bench
from pwoa.deploy.routes import ROUTES
from pwoa.evaluation.folder import OF_TEACHER
from pwoa.progress import Progress, choose_progress
from pwoa.recipe import load_recipe
from pwoa.recipe.sections import Recipe
from pwoa.runs.folder import Result, Run
from pwoa.runs.prune import prune

NAIVE = {
    "objective.distillation": 0.0,
    "objective.hsic_x": 0.0,
    "objective.hsic_y": 0.0,
    "objective.classification": 1.0,
}
"""The settings that turn a recipe of PwoA into naive pruning: cross-entropy and nothing else."""
ROBUST = {
    "sparsity.allocation": "lamp",
    "objective.hsic_x": 0.0,
    "objective.hsic_y": 0.0,
    "objective.hidden": 0.1,
    "search.learning_rate": 0.003,
    "finetune.learning_rate": 0.003,
    "training.momentum": 0.9,
    "training.average": 0.99,
    "training.batch": 32,
}
"""The settings that turn the demo's recipe into what the presets `robust` do, with as many epochs."""


def demo(
    folder: str | Path = "runs/demo", recipe: str | Path | Recipe = "demo", progress: Progress | bool | None = None
) -> dict[str, Any]:
    """Prune one teacher naively, by PwoA and beyond it; the table is returned and lies in FOLDER/result.json."""
    progress = choose_progress(progress)
    recipe = load_recipe(recipe)
    start, place = time.perf_counter(), Path(folder)
    rate = recipe.sparsity.rate_text
    progress.say(f"\n1 of 3: naive pruning, {rate}, with cross-entropy")
    progress.runs_after = 2
    naive = prune(recipe=recipe, settings=NAIVE, folder=place / "naive", progress=progress)
    measured = naive.folder / OF_TEACHER
    progress.say(f"\n2 of 3: PwoA, {rate}, with distillation and the HSIC bottleneck")
    progress.runs_after = 1
    ours = prune(recipe=recipe, folder=place / "pwoa", teacher_evaluation=measured, progress=progress)
    progress.say(f"\n3 of 3: beyond the paper, {rate}, with hidden layers matched and the rates of layers by LAMP")
    progress.runs_after = 0
    beyond = prune(
        recipe=recipe, settings=ROBUST, folder=place / "robust", teacher_evaluation=measured, progress=progress
    )
    runs = {"naive": naive, "pwoa": ours, "robust": beyond}
    result = {
        "teacher": naive.summary["teacher"],
        **{name: run.summary["pruned"] for name, run in runs.items()},
        "rate": ours.summary["rate"],
        "overall_rate": ours.summary["overall_rate"],
        "images": naive.summary["images"],
        "fewer": naive.summary["fewer"],
        "warnings": [
            {"model": name, **finding}
            for name, run in runs.items()
            for finding in run.summary["warnings"]
            if name == "naive" or "model" not in finding
        ],
        "seconds": _seconds(runs.values(), time.perf_counter() - start),
        "device": ours.summary["device"],
        "deployment": _deployment(recipe, ours, progress),
    }
    Run(folder).write_json("result.json", result)
    return result


def _deployment(recipe: Recipe, ours: Result, progress: Progress) -> dict[str, Any]:
    """Return the size and the speed of the pruned network as C and of the dense one in torch; or what it takes to see.

    Both are for one image on one thread, timed in turns.
    """
    if missing := ROUTES["c"].missing():
        return {"missing": missing}
    progress.say("\nthe pruned network as C, and the dense one in torch")
    data = load_data(recipe.data.name, data_folder=recipe.data.folder or None)
    options: dict[str, Any] = {"routes": ("torch", "c"), "threads": 1, "batch": 1, "seconds": 2.0, "memory": False}
    found = bench({"pwoa": ours.model}, data, teacher=recipe.teacher.checkpoint, **options)
    rows = {(row["model"], row["route"]): row for row in found.rows}
    dense, pruned = rows[TEACHER, "torch"], rows["pwoa", "c"]
    if error := dense.get("error") or pruned.get("error"):
        return {"missing": error}
    kept = ("bytes", "milliseconds", "macs", "max_difference")
    shown = {"dense": dense, "c": pruned}
    return {name: {key: row[key] for key in kept} for name, row in shown.items()} | {"processor": found.about["device"]}


def _seconds(runs: Iterable[Result], elapsed: float) -> float:
    """Return what the demo took; where finished parts were found, what they took when they were made."""
    parts = [run.summary[f"{part}_seconds"] for run in runs for part in ("training", "evaluation")]
    return round(float(max(elapsed, sum(parts))), 1)
