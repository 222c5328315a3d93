"""Hidden activations Z_l of any nn.Module, by forward hooks: the model needs no edit."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.errors import InputError, did_you_mean
from pwoa.models.border import evaluating

LAYER_TYPES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""The layers with weights: what can be pruned, and what hidden activations come from."""
_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Hardswish, nn.Hardtanh, nn.Softplus, nn.Tanh, nn.Sigmoid),
)
_BETWEEN = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm, nn.Identity),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
"""What may stand between a layer and its activation."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def hidden_points(model: nn.Module, x: Tensor, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the modules whose outputs are the hidden activations Z_1 … Z_L.

    Those `chosen` are checked and taken; else a known architecture declares them itself; else they are all
    convolutions and linear layers, in the order in which a forward pass on `x` reaches them, but the last; of each the
    activation that comes after it, where that is a module of its own.
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
    order = _execution_order(model, x, layers)[:-1]
    return tuple(dict.fromkeys(_activated(model, x, order)))


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
def multiply_adds(model: nn.Module, x: Tensor, weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the multiply-adds that each entry of the named weights takes part in, for one image like those of `x`.

    Example: `multiply_adds(net, x, dict(net.named_parameters()))["conv1.weight"]`. A weight of a convolution is used at
    each place of its output (a transposed one at each of its input), one of a linear layer once for each row; one that
    no layer with a known meaning holds, and one that is not used, counts once.
    """
    uses = dict.fromkeys((id(weight) for weight in weights.values()), 0)

    def note(layer: nn.Module, args: Any, output: Any) -> None:
        first = output if isinstance(output, Tensor) else output[0]
        places = args[0] if isinstance(layer, _TRANSPOSED) else first
        channels = places.shape[1] if isinstance(layer, (*_CONVOLUTIONS, *_TRANSPOSED)) else places.shape[-1]
        for weight in layer.parameters(recurse=isinstance(layer, nn.MultiheadAttention)):
            if id(weight) in uses:
                uses[id(weight)] += places.numel() // (channels * len(x))

    kinds = (*LAYER_TYPES, *_TRANSPOSED, nn.MultiheadAttention)
    handles = [layer.register_forward_hook(note) for layer in model.modules() if isinstance(layer, kinds)]
    try:
        with evaluating(model):
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return {name: max(uses[id(weight)], 1) for name, weight in weights.items()}


@torch.no_grad()
def _execution_order(model: nn.Module, x: Tensor, names: list[str]) -> list[str]:
    with evaluating(model), recording(model, names) as activations:
        model(x)
    return list(activations)


@torch.no_grad()
def _activated(model: nn.Module, x: Tensor, layers: Sequence[str]) -> list[str]:
    """Return for each layer the module of the activation that its output goes into, else the layer itself.

    An activation that is called for several layers cannot be told apart by its name, and is left alone.
    """
    calls: list[tuple[str, nn.Module, Any, Any]] = []
    handles = [
        module.register_forward_hook(
            lambda module, args, output, name=name: calls.append((name, module, args[0] if args else None, output))
        )
        for name, module in model.named_modules()
        if isinstance(module, (*LAYER_TYPES, *_ACTIVATIONS, *_BETWEEN))
    ]
    try:
        with evaluating(model):
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, *_ in calls]
    found = []
    for layer in layers:
        last = len(names) - 1 - names[::-1].index(layer)
        tensor, point = calls[last][3], layer
        for name, module, given, output in calls[last + 1 :]:
            if given is not tensor:
                continue
            if isinstance(module, _ACTIVATIONS):
                point = name if names.count(name) == 1 else layer
            if not isinstance(module, _BETWEEN):
                break
            tensor = output
        found.append(point)
    return found
