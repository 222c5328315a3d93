"""The Python source of a class that has the tensors of a checkpoint, for a person to write its forward pass.

Names and shapes tell the layers: `conv.weight` of 8×3×5×5 is a convolution, a `running_mean` batch normalisation. What
they do not tell (strides, padding, activations, the number of heads) is a guess, marked as one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from torch import Tensor, nn

from pwoa.models.checkpoints.files import COUNTER

_STATISTICS = {"running_mean", "running_var", COUNTER}
_HEAD = '''"""Every tensor of the checkpoint fits. Padding, strides and heads are guesses; forward is to be written."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
'''
_TAIL = """
    def forward(self, x):  # images in [0, 1]
        raise NotImplementedError("write how images become logits")
"""


_DEEPEST = 100
"""Modules in one another; real networks have a dozen."""
_TAKEN = {"", *dir(nn.Module())}
"""What nothing in a module can be called."""


@dataclass
class _Node:
    """A module: the tensors it holds itself, and the modules in it, by name."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    modules: dict[str, "_Node"] = field(default_factory=dict)


def write_skeleton(state: Mapping[str, Tensor]) -> str:
    """Return a Python file with a class `Net` whose tensors are exactly those of the state, but for counters.

    Names come from a file that nobody need trust: they are only ever identifiers or quoted text. Nothing is returned if
    they are names that a network cannot have.
    """
    root = _Node()
    for name, value in state.items():
        *path, last = name.split(".")
        if len(path) > _DEEPEST or any(part in _TAKEN for part in (*path, last)):
            return ""
        node = root
        for part in path:
            node = node.modules.setdefault(part, _Node())
        node.tensors[last] = value
    lines = _parameters("self", root)
    for name, child in root.modules.items():
        lines += _module("self", name, child, first=not any("nn.Conv" in line for line in lines))
    body = "".join(f"        {line}\n" for line in lines)
    return _HEAD + body + _TAIL


def _module(owner: str, name: str, node: _Node, first: bool) -> Iterator[str]:
    """Write the statements that make a module of its owner; `first`: no convolution came before."""
    plain = name.isidentifier() and not iskeyword(name)
    place = f"{owner}.{name}" if plain else f"{owner}.get_submodule({name!r})"
    layer = _layer(node, first)
    made = layer or "nn.Module()"
    yield f"{place} = {made}" if plain else f"{owner}.add_module({name!r}, {made})"
    if layer:
        return
    yield from _parameters(place, node)
    for child_name, child in node.modules.items():
        for line in _module(place, child_name, child, first):
            first = first and "nn.Conv" not in line
            yield line


def _parameters(place: str, node: _Node) -> list[str]:
    """Write the tensors of a module that is no known layer: parameters, or buffers of whole numbers."""
    lines = []
    for name, value in node.tensors.items():
        shape = tuple(value.shape)
        if value.is_floating_point() and name not in _STATISTICS:
            lines.append(f"{place}.register_parameter({name!r}, nn.Parameter(torch.zeros({shape})))")
        else:
            lines.append(f"{place}.register_buffer({name!r}, torch.zeros({shape}, dtype={value.dtype}))")
    return lines


def _layer(node: _Node, first: bool) -> str:
    """Write the layer that has exactly the tensors of a module; nothing if there is no such layer."""
    names, weight = set(node.tensors), node.tensors.get("weight")
    if names == {"in_proj_weight", "in_proj_bias"} and set(node.modules) == {"out_proj"}:
        width = node.tensors["in_proj_weight"].shape[1]
        return f"nn.MultiheadAttention({width}, 1, batch_first=True)"
    if node.modules:
        return ""
    if {"running_mean", "running_var"} <= names <= _STATISTICS | {"weight", "bias"}:
        affine = "" if {"weight", "bias"} <= names else ", affine=False"
        return (
            ""
            if len(names & {"weight", "bias"}) == 1
            else f"nn.BatchNorm2d({len(node.tensors['running_mean'])}{affine})"
        )
    if weight is None or not names <= {"weight", "bias"} or not weight.is_floating_point():
        return ""
    bias = "" if "bias" in names else ", bias=False"
    if weight.dim() == 1:
        return f"nn.LayerNorm({len(weight)}{bias})"
    if "bias" in names and node.tensors["bias"].shape != weight.shape[:1]:
        return ""
    return (
        f"nn.Linear({weight.shape[1]}, {weight.shape[0]}{bias})"
        if weight.dim() == 2
        else _convolution(weight, bias, first)
    )


def _convolution(weight: Tensor, bias: str, first: bool) -> str:
    out, inputs, *kernel = weight.shape
    if len(kernel) > 3 or not kernel:
        return ""
    depthwise = inputs == 1 and out > 1 and not first
    size: Any = kernel[0] if len(set(kernel)) == 1 else tuple(kernel)
    padding: Any = kernel[0] // 2 if len(set(kernel)) == 1 else tuple(side // 2 for side in kernel)
    shape = f"{out if depthwise else inputs}, {out}, {size}, padding={padding}{f', groups={out}' * depthwise}{bias}"
    return f"nn.Conv{len(kernel)}d({shape})"
