"""The optimizer of a stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.recipe import TrainingRecipe
from pwoa.training.stage import Stage

_HOW = ("lr", "fused", "capturable")


def make_optimizer(stage: Stage, model: nn.Module, recipe: TrainingRecipe, recorded: bool) -> torch.optim.Optimizer:
    """SGD or Adam over what the stage changes; for steps that are `recorded`, all that it reads is on the device."""
    own = stage.parameters()
    parameters = [value for value in (model.parameters() if own is None else own) if value.requires_grad]
    device = parameters[0].device
    shared: dict[str, Any] = {
        "lr": torch.tensor(stage.learning_rate, device=device) if recorded else stage.learning_rate,
        "weight_decay": recipe.weight_decay,
        "fused": True,
    }
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, betas=(recipe.momentum, 0.999), capturable=recorded, **shared)
    return torch.optim.SGD(parameters, momentum=recipe.momentum, **shared)


def resume_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take back momentum and the like; how steps are computed here stays, whatever computed them before."""
    ways = [{key: group[key] for key in _HOW if key in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(dict(state))
    for group, way in zip(optimizer.param_groups, ways, strict=True):
        group.update(way)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value
