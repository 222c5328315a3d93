"""An ONNX graph computed in torch, so that it has gradients: what an int8 file computes, with its own scales.

Rounding passes gradients straight through (Bengio et al. 2013, "Estimating or propagating gradients …").
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.errors import InputError
from pwoa.models.onnx import OnnxModel

Values = list[Any]
"""Tensors, and None for an input that is left out."""
Attributes = dict[str, Any]
_PLAIN = b"NOTSET"
_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255), torch.int16: (-32768, 32767)}


class Replica(nn.Module):
    """The graph of an .onnx file as a network; constants are its buffers. An operator it does not know is an error.

    Example: `Replica("net-int8.onnx")(x)` are the logits of the file up to rounding, with a gradient.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        import onnx
        from onnx import numpy_helper

        graph = onnx.load(str(path)).graph
        self._homes: dict[str, str] = {}
        for tensor in graph.initializer:
            self._keep(tensor.name, torch.from_numpy(numpy_helper.to_array(tensor).copy()))
        self._steps: list[tuple[str, Attributes, list[str], str]] = []
        for node in graph.node:
            about = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
            if node.op_type == "Constant" and "value" in about:
                self._keep(node.output[0], torch.from_numpy(numpy_helper.to_array(about["value"]).copy()))
            elif node.op_type not in OPERATORS or about.get("auto_pad", _PLAIN) != _PLAIN or about.get("ceil_mode"):
                raise InputError(f"{path} has the operator {node.op_type} in a form that is not computed in torch here")
            else:
                self._steps.append((node.op_type, about, list(node.input), node.output[0]))
        self._input = next(value.name for value in graph.input if value.name not in self._homes)
        self._output = graph.output[0].name

    def _keep(self, name: str, value: Tensor) -> None:
        home = f"constant_{len(self._homes)}"
        self.register_buffer(home, value)
        self._homes[name] = home

    def forward(self, x: Tensor) -> Tensor:
        values: dict[str, Tensor] = {name: getattr(self, home) for name, home in self._homes.items()}
        values[self._input] = x
        for operator, about, inputs, output in self._steps:
            values[output] = OPERATORS[operator](about, [values.get(name) for name in inputs])
        return values[self._output]


def replica_of(model: nn.Module) -> Replica | None:
    """Return the replica of a model that is an int8 .onnx file; None for all others, and where torch cannot compute it.

    For a float32 file there is no need: its twin has the same gradients, and it is for the user to give it.
    """
    if not isinstance(model, OnnxModel) or model.normalisation is not None or not find_spec("onnx"):
        return None
    try:
        replica = Replica(model.path)
    except InputError:
        return None
    return replica if any(operator == "QuantizeLinear" for operator, *_ in replica._steps) else None


def _quantise(about: Attributes, given: Values) -> Tensor:
    """Round to whole numbers of scales, and let the gradient through where nothing is cut off."""
    x, scale, zero = _three(given)
    low, high = _RANGES[zero.dtype]
    axis = about.get("axis", 1)
    exact = x / _along(scale, x, axis)
    rounded = exact + (exact.round() - exact).detach()
    return (rounded + _along(zero, x, axis).float()).clamp(low, high)


def _dequantise(about: Attributes, given: Values) -> Tensor:
    x, scale, zero = _three(given)
    axis = about.get("axis", 1)
    return (x.float() - _along(zero, x, axis).float()) * _along(scale, x, axis)


def _three(given: Values) -> tuple[Tensor, Tensor, Tensor]:
    x, scale = given[0], given[1]
    zero = given[2] if len(given) > 2 else None
    return x, scale, torch.zeros_like(scale, dtype=torch.uint8) if zero is None else zero


def _along(numbers: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return a number for all, or one for each place along an axis, in a shape that fits x."""
    shape = [1] * x.dim()
    if numbers.numel() > 1:
        shape[axis] = -1
    return numbers.view(shape)


def _padded(about: Attributes, x: Tensor, filled: float = 0.0) -> Tensor:
    pads = about.get("pads", [0, 0, 0, 0])
    top, left, bottom, right = pads
    return F.pad(x, (left, right, top, bottom), value=filled) if any(pads) else x


def _conv(about: Attributes, given: Values) -> Tensor:
    x, weight, *rest = given
    bias = rest[0] if rest else None
    stride, dilation = about.get("strides", [1, 1]), about.get("dilations", [1, 1])
    return F.conv2d(_padded(about, x), weight, bias, stride, 0, dilation, about.get("group", 1))


def _gemm(about: Attributes, given: Values) -> Tensor:
    a, b, *rest = given
    product = about.get("alpha", 1.0) * (a.T if about.get("transA") else a) @ (b.T if about.get("transB") else b)
    scaled: Tensor = product if not rest or rest[0] is None else product + about.get("beta", 1.0) * rest[0]
    return scaled


def _max_pool(about: Attributes, given: Values) -> Tensor:
    x = _padded(about, _one(given), -torch.inf)
    return F.max_pool2d(x, about["kernel_shape"], about.get("strides", [1, 1]), 0, about.get("dilations", [1, 1]))


def _average_pool(about: Attributes, given: Values) -> Tensor:
    x, pads = _one(given), about.get("pads", [0, 0, 0, 0])
    counts_padding = bool(about.get("count_include_pad", 0))
    return F.avg_pool2d(
        x, about["kernel_shape"], about.get("strides", [1, 1]), pads[:2], count_include_pad=counts_padding
    )


def _batch_norm(about: Attributes, given: Values) -> Tensor:
    x, weight, bias, mean, variance = given
    return F.batch_norm(x, mean, variance, weight, bias, eps=about.get("epsilon", 1e-5))


def _clip(about: Attributes, given: Values) -> Tensor:
    x, low, high = [*given, None, None][:3]
    return torch.clamp(x, low, high)


def _reduce_mean(about: Attributes, given: Values) -> Tensor:
    axes = about.get("axes") or (given[1].tolist() if len(given) > 1 and given[1] is not None else None)
    return _one(given).mean(axes, keepdim=bool(about.get("keepdims", 1)))


def _reshape(about: Attributes, given: Values) -> Tensor:
    sizes = [_one(given).shape[place] if size == 0 else size for place, size in enumerate(given[1].tolist())]
    return _one(given).reshape(sizes)


def _one(given: Values) -> Tensor:
    x: Tensor = given[0]
    return x


def _pairs(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Attributes, Values], Tensor]:
    def run(about: Attributes, given: Values) -> Tensor:
        a, b = given
        return function(a, b)

    return run


OPERATORS: dict[str, Callable[[Attributes, Values], Tensor]] = {
    "QuantizeLinear": _quantise,
    "DequantizeLinear": _dequantise,
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _pairs(torch.matmul),
    "Add": _pairs(torch.add),
    "Sub": _pairs(torch.sub),
    "Mul": _pairs(torch.mul),
    "Div": _pairs(torch.div),
    "Relu": lambda about, given: _one(given).relu(),
    "Identity": lambda about, given: _one(given),
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda about, given: _one(given).mean((2, 3), keepdim=True),
    "ReduceMean": _reduce_mean,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Flatten": lambda about, given: _one(given).flatten(about.get("axis", 1)),
    "Reshape": _reshape,
}
"""By name, what an operator makes of its attributes and inputs."""
