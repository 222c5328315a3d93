"""A model for inference with less work: batch normalisation folded away, float16, convolution and ReLU in one kernel.

Works on what torch.fx can trace; any other model stays as it is. The result computes the same up to rounding.
"""

import copy
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

_FOLDED = ((nn.Conv2d, nn.BatchNorm2d), (nn.Linear, nn.BatchNorm1d))
_RELUS = [("call_function", F.relu), ("call_function", torch.relu), ("call_method", "relu"), ("call_method", "relu_")]
_SUMS = (operator.add, torch.add)


def fold(model: nn.Module, points: Sequence[str] = ()) -> nn.Module:
    """Return a frozen copy in eval mode, with batch normalisation folded into the layer before it where it can be.

    points: modules whose outputs it gives too, as (logits, *outputs); what it cannot be made to give is a ValueError.
    """
    plain = copy.deepcopy(model).eval().requires_grad_(False)
    try:
        traced = _trace(plain, points)
    except Exception as error:  # control flow on values, or anything else that cannot be traced
        if points:
            raise ValueError("the model could not be traced with its points") from error
        return plain
    for node in list(traced.graph.nodes):
        before = node.args[0] if node.args else None
        if not (isinstance(before, fx.Node) and _alone(traced, node) and _alone(traced, before)):
            continue
        merged = _merge(_module(traced, before), _module(traced, node))
        if merged is not None and len(before.users) == 1:
            traced.set_submodule(str(before.target), merged)
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    return _tidy(traced)


class _Tracer(fx.Tracer):
    """Notes what each module has returned, the last time that it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.returned: dict[str, fx.Node] = {}

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        output = super().call_module(m, forward, args, kwargs)
        self.returned.pop(name := self.path_of_module(m), None)
        if isinstance(output, fx.Proxy):
            self.returned[name] = output.node
        return output


def _trace(model: nn.Module, points: Sequence[str]) -> fx.GraphModule:
    tracer = _Tracer()
    if any(_hooked(module) and not tracer.is_leaf_module(module, "") for module in model.modules()):
        raise ValueError("tracing would run a hook once, and not again")
    model = copy.deepcopy(model)
    graph = tracer.trace(model)
    if points:
        (output,) = (node for node in graph.nodes if node.op == "output")
        if not isinstance(output.args[0], fx.Node):
            raise ValueError("the model returns more than logits")
        output.args = ((output.args[0], *(tracer.returned[point] for point in points)),)
    return fx.GraphModule(model, graph)


def halve(model: nn.Module) -> fx.GraphModule:
    """Return a copy of a folded model in float16, but for its last layer and what follows: the logits stay in float32.

    Rounded to float16, logits of 10 and more are steps of 0.008 apart, and what an attack gains is lost in them.
    """
    if not isinstance(model, fx.GraphModule):
        raise ValueError("the model could not be traced")
    traced = copy.deepcopy(model).half()
    layers = [node for node in traced.graph.nodes if node.op == "call_module"]
    last = next((node for node in reversed(layers) if isinstance(_module(traced, node), (nn.Linear, nn.Conv2d))), None)
    if last is None or not _alone(traced, last):
        raise ValueError("there is no last layer, or it is used more than once")
    traced.set_submodule(str(last.target), copy.deepcopy(_module(model, last)))
    with traced.graph.inserting_before(last):
        last.update_arg(0, traced.graph.call_method("float", (last.args[0],)))
    return _tidy(traced)


def fuse(model: fx.GraphModule) -> fx.GraphModule:
    """Return a copy for forward passes alone, where a convolution, what is added to it and its ReLU are one kernel."""
    traced = copy.deepcopy(model)
    for relu in list(traced.graph.nodes):
        if not _is_relu(traced, relu):
            continue
        source = relu.args[0]
        conv, added = _conv_and_added(traced, source)
        if conv is None:
            continue
        traced.set_submodule(str(conv.target), _ConvRelu(cast(nn.Conv2d, _module(traced, conv))))
        with traced.graph.inserting_before(relu):
            one = traced.graph.call_module(str(conv.target), (conv.args[0], *([] if added is None else [added])))
        relu.replace_all_uses_with(one)
        for gone in dict.fromkeys((relu, source, conv)):
            traced.graph.erase_node(gone)
    return _tidy(traced)


class _ConvRelu(nn.Module):
    """ReLU of a convolution, or of its sum with something else."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        if conv.bias is None:
            conv.bias = nn.Parameter(conv.weight.new_zeros(conv.out_channels), requires_grad=False)

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        conv = self.conv
        if not x.is_cuda:
            return F.relu(conv(x) if added is None else conv(x) + added)
        padding = [int(side) for side in conv.padding]
        where = conv.stride, padding, conv.dilation, conv.groups
        if added is None:
            return torch.cudnn_convolution_relu(x, conv.weight, conv.bias, *where)
        return torch.cudnn_convolution_add_relu(x, conv.weight, added, 1, conv.bias, *where)


def _merge(layer: nn.Module, norm: nn.Module) -> nn.Module | None:
    if (type(layer), type(norm)) not in _FOLDED or norm.running_mean is None or _hooked(layer) or _hooked(norm):
        return None
    layer, norm = cast(nn.Conv2d, layer), cast(nn.BatchNorm2d, norm)  # or linear: the weights' first axis is the same
    return fuse_conv_bn_eval(layer, norm) if len(layer.weight) == norm.num_features else None


def _conv_and_added(traced: fx.GraphModule, source: object) -> tuple[fx.Node | None, fx.Node | None]:
    """Return the convolution that a ReLU's input is, and what is added to it; None where that is not so."""
    if not isinstance(source, fx.Node) or len(source.users) != 1:
        return None, None
    if _is_conv(traced, source):
        return source, None
    if source.op == "call_function" and source.target in _SUMS and len(source.args) == 2 and not source.kwargs:
        a, b = source.args
        if not isinstance(a, fx.Node) or not isinstance(b, fx.Node) or a is b:
            return None, None
        for conv, added in ((a, b), (b, a)):
            if len(conv.users) == 1 and _is_conv(traced, conv):
                return conv, added
    return None, None


def _is_conv(traced: fx.GraphModule, node: fx.Node) -> bool:
    module = _module(traced, node) if _alone(traced, node) else None
    if type(module) is not nn.Conv2d or _hooked(module):
        return False
    return module.padding_mode == "zeros" and not isinstance(module.padding, str)


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return type(_module(traced, node)) is nn.ReLU and not _hooked(_module(traced, node))
    return (node.op, node.target) in _RELUS


def _alone(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Tell whether the node calls a module that no other node calls, or takes the weights of."""
    nodes = traced.graph.nodes
    calls = Counter(other.target for other in nodes if other.op == "call_module")
    taken = {str(other.target).rpartition(".")[0] for other in nodes if other.op == "get_attr"}
    return node.op == "call_module" and calls[node.target] == 1 and node.target not in taken


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _module(traced: fx.GraphModule, node: fx.Node) -> nn.Module:
    return traced.get_submodule(str(node.target))


def _tidy(traced: fx.GraphModule) -> fx.GraphModule:
    traced.delete_all_unused_submodules()
    traced.graph.lint()
    traced.recompile()
    return traced
