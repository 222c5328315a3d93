"""Robustness of any model on any data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pwoa.data import load_data
from pwoa.devices import choose_device
from pwoa.evaluation.gate import check_teacher
from pwoa.evaluation.robustness import STANDARD, Scores, parse_attacks, robustness, work
from pwoa.models import check_model
from pwoa.progress import Progress
from pwoa.recipe import Threat, recipe_for

__all__ = ["STANDARD", "Scores", "check_teacher", "evaluate", "parse_attacks", "robustness", "work"]


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    attacks: str | Sequence[str] = "standard",
    threat: Threat | None = None,
    images: int = 0,
    batch: int = 500,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> Scores:
    """Accuracy of a model on test images, natural and under attack; `scores["pgd20"]` is one of them.

    attacks: names (natural, fgsm, pgd20, cw, autoattack, …), or `standard`: natural, fgsm, pgd10, pgd20 and cw.
    threat: the attacker; None takes that of the preset named like the data.
    images: how many test images, from the first (0: all).
    """
    progress = progress or Progress()
    chosen = parse_attacks(attacks)
    loaded = load_data(data)
    where = choose_device(device)
    threat = threat or recipe_for(loaded.name).threat
    model = copy.deepcopy(model).to(where)
    test = loaded.test.first(images or len(loaded.test)).to(where)
    check_model(model, test.batch(torch.arange(min(2, len(test)), device=where))[0], loaded.classes)
    progress.start("evaluating", work(len(test), chosen))
    options: dict[str, Any] = {"batch": batch, "seed": seed, "advance": progress.advance}
    try:
        return robustness(model, test, threat, chosen, classes=loaded.classes, **options)
    finally:
        progress.close()
