"""A run as a flat row, and many of them as a table."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pwoa.methods import find_method
from pwoa.recipe.sections import Recipe

COLUMNS = ("natural", "pgd20", "cw", "autoattack")
"""The attacks that every row has a column for; others have one in the rows of runs that measured them."""


TEACHER = "teacher"
"""The method of a row of a network that was not pruned."""


def row_of(recipe: Recipe, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run's recipe and result.json say, as published tables are built from it; None where not measured.

    `n` are the test images, `n_autoattack` and the like those of an attack that saw fewer. A Lite network has
    no teacher, and all of its training examples are adversarial; its row has its size.
    """
    lite = "pruned" not in result
    return {
        "dataset": recipe.data.name,
        "architecture": result["architecture"] if lite else recipe.teacher.architecture,
        **({"parameters": result["parameters"]} if lite else {}),
        "teacher": None if lite else recipe.teacher.checkpoint,
        "method": recipe.method,
        "rate": recipe.sparsity.rate,
        "budget": "weights" if lite else recipe.sparsity.budget,
        "overall_rate": result.get("overall_rate"),
        "macs_rate": result.get("macs_rate"),
        "mix": 1.0 if lite else recipe.training.mix,
        "seed": recipe.training.seed,
        "epochs": epochs_of(recipe),
        **dict.fromkeys(COLUMNS),
        **accuracies(result),
        "n": result["images"],
        **{f"n_{attack}": images for attack, images in result.get("fewer", {}).items()},
        "seconds": round(result["training_seconds"], 1),
        "device": result["device"],
    }


def teacher_row(recipe: Recipe, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the dense network that a run pruned, as the run measured it."""
    dense = row_of(recipe, {**result, "pruned": result["teacher"], "training_seconds": 0.0})
    return {**dense, "method": TEACHER, "rate": 1.0, "overall_rate": 1.0, "macs_rate": 1.0, "mix": 0.0, "epochs": "0"}


def epochs_of(recipe: Recipe) -> str:
    """Return how long a run trains: `5+15` where a search comes before the fine-tuning, else one number."""
    method = find_method(recipe.method)
    return "+".join(map(str, method.stage_epochs(method.complete(recipe))))


def accuracies(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the accuracy by attack of the network that a run ended with."""
    return {**result["pruned" if "pruned" in result else "accuracy"]}


def spread(
    rows: Iterable[tuple[str, Mapping[str, Any]]], columns: Sequence[str] = COLUMNS
) -> dict[str, dict[str, str]]:
    """Of rows with labels: by label, mean ± standard deviation of each accuracy."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for label, row in rows:
        groups.setdefault(label, []).append(row)
    return {
        label: {column: mean_and_deviation([row.get(column) for row in group]) for column in columns}
        for label, group in groups.items()
    }


def overall(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the rates over all parameters and of multiply-adds; where these rows differ, all that there are."""
    own, rates = list(rows), {}
    for key in ("overall_rate", "macs_rate"):
        known = [row[key] for row in own if row.get(key) is not None]
        rates[key] = ", ".join(dict.fromkeys(f"{rate:.4g}" for rate in known))
    return rates


def fewer_images(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return on how many images those attacks were run that all rows which have them ran on as many, and not on all."""
    own = list(rows)
    fewer: dict[str, int] = {}
    for key in dict.fromkeys(key for row in own for key in row if key.startswith("n_")):
        attack = key.removeprefix("n_")
        images = [row.get(key) for row in own if row.get(attack) is not None]
        if images and images[0] is not None and len(set(images)) == 1:
            fewer[attack] = images[0]
    return fewer


def mean_and_deviation(values: Sequence[float | None]) -> str:
    """Of the values that are known; the deviation if there is more than one."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    deviation = f" ± {statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.2f}{deviation}"
