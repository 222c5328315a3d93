"""What result.json says of an evaluation: RobustBench's fields for a model, then everything else."""

import dataclasses
from typing import Any

from torch import Tensor, nn

from pwoa.errors import InputError
from pwoa.evaluation.scores import Scores, percent, wilson
from pwoa.sparsity.constraint import count, count_all

_THREATS = {"linf": "Linf", "l2": "L2"}


def result_of(scores: Scores, model: nn.Module, about: dict[str, Any]) -> dict[str, Any]:
    """Return the record of an evaluation. `about` needs `dataset`, `architecture` and `images_of` (all test images)."""
    return {
        "link": "",
        "name": about.get("name", ""),
        "authors": "",
        "additional_data": None,
        "number_forward_passes": 1,
        "dataset": about["dataset"],
        "venue": "",
        "architecture": about["architecture"],
        "threat_model": _THREATS[scores.threat.norm],
        "eps": scores.threat.radius_text,
        "clean_acc": _text(scores.get("natural")),
        "reported": "",
        "autoattack_acc": _text(scores.get("autoattack")),
        "footnote": _footnote(
            len(scores.right.get("autoattack", next(iter(scores.right.values())))), about["images_of"]
        ),
        "unreliable": bool(scores.findings),
        "images": scores.images,
        "attacks": [_row(name, right, scores.seconds.get(name)) for name, right in _all(scores)],
        "worst_case": _row("worst", scores.worst, None),
        "curve": [
            {"radius": point.threat.radius, **_row(name, right, point.seconds.get(name))}
            for point in scores.curve
            for name, right in _all(point)
        ],
        "agreement": [dataclasses.asdict(one) for one in scores.agreement],
        **({"distances": _distances(scores)} if scores.distances else {}),
        "warnings": [dataclasses.asdict(finding) for finding in scores.findings],
        "size": _size(model),
        **{key: value for key, value in about.items() if key not in ("name", "dataset", "architecture")},
    }


def _all(scores: Scores) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []
    for name, right in scores.right.items():
        if name == "autoattack":
            found += [(f"{name}:{part}", after) for part, after in scores.after.items()]
        found.append((name, right))
    return found


def _row(attack: str, right: Tensor, seconds: float | None) -> dict[str, Any]:
    low, high = wilson(int(right.sum()), len(right))
    return {
        "attack": attack,
        "accuracy": percent(right),
        "low": round(low, 3),
        "high": round(high, 3),
        "right": int(right.sum()),
        "images": len(right),
        "seconds": None if seconds is None else round(seconds, 3),
    }


def _distances(scores: Scores) -> dict[str, Any]:
    """Return how far the nearest broken images are in the middle, and how many images have none, by attack."""
    found = {}
    for name, far in scores.distances.items():
        median = float(far.median())
        found[name] = {
            "median": round(median, 6) if median < float("inf") else None,
            "unbroken": int(far.isinf().sum()),
        }
    return found


def _size(model: nn.Module) -> dict[str, Any]:
    """Count parameters, their bytes, and how much is left: of all of them, and of the prunable weights."""
    everything = count_all(model)
    size: dict[str, Any] = {
        "parameters": everything.total,
        "nonzero": everything.kept,
        "bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "overall_rate": everything.rate if everything.kept else None,
    }
    try:
        rows = count(model)
    except InputError:  # nothing there that could be pruned
        return size
    layers = [{"layer": row.layer, "total": row.total, "kept": row.kept} for row in rows]
    return size | {"rate": rows[-1].rate if rows[-1].kept else None, "sparsity": layers}


def _footnote(images: int, images_of: int) -> str:
    return "" if images == images_of else f"the first {images:,} of {images_of:,} test images"


def _text(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.2f}"
