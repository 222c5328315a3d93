"""Hidden activations Z_l of any nn.Module, by forward hooks: the model needs no edit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.errors import InputError, did_you_mean
from pwoa.models.border import evaluating

LAYER_TYPES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""The layers with weights: what can be pruned, and what hidden activations come from."""


def hidden_points(model: nn.Module, x: Tensor, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the modules whose outputs are the hidden activations Z_1 … Z_L.

    Those `chosen` are checked and taken; else a known architecture declares them itself; else they are all
    convolutions and linear layers, in the order in which a forward pass on `x` reaches them, but the last.
    """
    modules = dict(model.named_modules())
    for name in chosen:
        if name not in modules or not name:
            hint = did_you_mean(name, [known for known in modules if known])
            raise InputError(f"the model has no module {name!r} to take hidden activations from ({hint})")
    if chosen:
        return tuple(chosen)
    declared = getattr(model, "hidden_points", None)
    if declared:
        return tuple(declared)
    layers = [name for name, module in modules.items() if isinstance(module, LAYER_TYPES)]
    return tuple(_execution_order(model, x, layers)[:-1])


@contextmanager
def recording(model: nn.Module, points: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Keep the hidden activations of each forward pass while inside in the dict that is given."""
    activations: dict[str, Tensor] = {}
    modules = dict(model.named_modules())

    def keep(name: str, module: nn.Module, args: Any, output: Any) -> None:
        activations[name] = output if isinstance(output, Tensor) else output[0]

    handles = [modules[name].register_forward_hook(partial(keep, name)) for name in points]
    try:
        yield activations
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _execution_order(model: nn.Module, x: Tensor, names: list[str]) -> list[str]:
    with evaluating(model), recording(model, names) as activations:
        model(x)
    return list(activations)
