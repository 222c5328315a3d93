"""From a network to its operators: what torch.fx traces, fused on the way. What is not known is named in one line."""

import copy
import math
import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from pwoa.deploy.graph import Graph, Operator, Pair
from pwoa.errors import InputError, first_line
from pwoa.models.border import is_finite


def trace(model: nn.Module, sample: Tensor) -> Graph:
    """Return the operators of a model in eval mode, for images like those of `sample`, which has one image or more.

    Example: `trace(model, torch.zeros(1, 3, 32, 32)).operators`.
    """
    if sample.dim() != 4 or not len(sample):
        raise InputError(f"a sample is a batch of images [N, channels, height, width], not {list(sample.shape)}")
    for name, value in model.state_dict().items():
        if not is_finite(value):
            raise InputError(f"the model holds NaN or infinite weights in {name}")
    plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    image = sample[:1].detach().cpu().float()
    try:
        traced = fx.symbolic_trace(nn.Sequential(plain))  # so that a network of one layer is a layer, too
    except Exception as error:  # control flow on values, or anything else that cannot be traced
        raise InputError(f"the network cannot be traced, so it has no list of operators: {first_line(error)}") from None
    graph = _Tracer(traced, image).graph
    for op in graph.operators:
        for name in ("weight", "scale", "shift"):
            if isinstance(value := getattr(op, name), Tensor):
                setattr(op, name, value.float())  # folded in double precision
    with torch.no_grad():
        expected, got = plain(image), graph.run(image)
    if not torch.allclose(expected, got, rtol=0, atol=1e-3 * float(expected.abs().max())):
        raise InputError("the traced network computes something else than the network itself; is there a hook in it?")
    return graph


class _Record(fx.Interpreter):
    """Keeps the shape of every tensor in the graph, and the value of those that no image goes into."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["of_image"] = n.op == "placeholder" or any(node.meta["of_image"] for node in n.all_input_nodes)
        n.meta["shape"] = tuple(result.shape) if isinstance(result, Tensor) else None
        n.meta["value"] = None if n.meta["of_image"] else result
        return result


class _Tracer:
    """Walks through a traced network once and fuses on the way."""

    def __init__(self, traced: fx.GraphModule, image: Tensor) -> None:
        self.traced, self.graph = traced, Graph(shapes=[tuple(image.shape[1:])])
        self.values: dict[fx.Node, int] = {}
        self.makers: dict[int, int] = {}  # value → place of its operator
        try:
            with torch.no_grad():
                _Record(traced).run(image)
        except Exception as error:  # a user's own forward can raise anything
            shape = "×".join(map(str, image.shape[1:]))
            raise InputError(f"the model cannot take images of {shape}: {first_line(error)}") from None
        for node in traced.graph.nodes:
            self.visit(node)

    def visit(self, node: fx.Node) -> None:
        """Add what a node does to the graph."""
        if node.op == "placeholder":
            if self.values and node.users:
                raise InputError("the network takes more than images")
            self.values[node] = 0
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node) or len(node.args[0].meta["shape"] or ()) != 2:
                raise InputError("the network does not return one row of logits an image; wrap it so that it does")
            self.graph.output = self.values[node.args[0]]
        elif node.meta["of_image"] and node.meta["shape"] is not None:
            self.values[node] = self.operate(node)

    def operate(self, node: fx.Node) -> int:
        """Return the value that a node computes."""
        name, arguments = self.called(node)
        if name in _PASSED and self.same_shape(node):
            return self.values[node.all_input_nodes[0]]
        rule = _RULES.get(name)
        result = None if rule is None else rule(self, node, arguments)
        if result is None:
            where = f" ({str(node.target)[2:]})" if node.op == "call_module" and node.target != "0" else ""
            raise InputError(
                f"the operator {name}{where} cannot be written as C; docs/deployment-c.md lists those that can"
            )
        return result

    def called(self, node: fx.Node) -> tuple[str, Any]:
        """Return the name of what a node calls, and its module, or its arguments."""
        if node.op == "call_module":
            module = self.traced.get_submodule(str(node.target))
            return type(module).__name__, module
        return _name(node.target), (node.args, node.kwargs)

    def same_shape(self, node: fx.Node) -> bool:
        """Tell whether a node leaves the shape of its input as it is."""
        return bool(node.meta["shape"] == node.all_input_nodes[0].meta["shape"])

    def add(self, kind: str, node: fx.Node, input: int, **parts: Any) -> int:
        """Append an operator, and return its value."""
        self.graph.shapes.append(node.meta["shape"][1:])
        value = len(self.graph.shapes) - 1
        self.makers[value] = len(self.graph.operators)
        self.graph.operators.append(Operator(kind, input, value, **parts))
        return value

    def open_maker(self, node: fx.Node, kinds: tuple[str, ...]) -> Operator | None:
        """Return the operator that computes a node's value, if it can take in what follows: nobody else reads it."""
        value = self.values[node]
        place = self.makers.get(value)
        readers = {user for other, same in self.values.items() if same == value for user in other.users}
        others = [user for user in readers if user.meta["shape"] is not None and self.values.get(user) != value]
        if place is None or len(others) > 1:
            return None
        op = self.graph.operators[place]
        return op if op.kind in kinds and not op.relu else None


def _name(target: Any) -> str:
    names = {F.max_pool2d: "max_pool2d", operator.iadd: "add", operator.truediv: "div", operator.isub: "sub"}
    return names.get(target) or str(getattr(target, "__name__", target)).rstrip("_")


_Rule = Callable[[_Tracer, fx.Node, Any], int | None]
_PASSED = ("Identity", "Dropout", "Dropout2d", "dropout", "contiguous", "clone", "float", "view", "reshape", "flatten")
_WITH_WEIGHTS = ("convolution", "linear", "affine")


def _pair(value: Any) -> Pair:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _convolution(tracer: _Tracer, node: fx.Node, conv: Any) -> int | None:
    padding = conv.padding
    if padding == "same":
        spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        if any(span % 2 for span in spans):
            return None
        padding = tuple(span // 2 for span in spans)
    padding = (0, 0) if padding == "valid" else padding
    if conv.padding_mode != "zeros":
        return None
    bias = torch.zeros(conv.out_channels, dtype=torch.double) if conv.bias is None else conv.bias.double()
    parts = {"kernel": conv.kernel_size, "stride": conv.stride, "dilation": conv.dilation, "groups": conv.groups}
    source = tracer.values[node.all_input_nodes[0]]
    return tracer.add("convolution", node, source, weight=conv.weight.double(), shift=bias, padding=padding, **parts)


def _linear(tracer: _Tracer, node: fx.Node, layer: Any) -> int | None:
    if len(node.meta["shape"]) != 2:
        return None
    bias = torch.zeros(layer.out_features, dtype=torch.double) if layer.bias is None else layer.bias.double()
    return tracer.add("linear", node, tracer.values[node.all_input_nodes[0]], weight=layer.weight.double(), shift=bias)


def _normalisation(tracer: _Tracer, node: fx.Node, norm: Any) -> int | None:
    if norm.running_mean is None or norm.running_var is None:
        return None
    scale = (norm.running_var.double() + norm.eps).rsqrt() * (1 if norm.weight is None else norm.weight)
    shift = (0 if norm.bias is None else norm.bias) - norm.running_mean * scale
    return _scaled(tracer, node, node.all_input_nodes[0], scale, shift)


def _scaled(tracer: _Tracer, node: fx.Node, source: fx.Node, scale: Tensor, shift: Tensor) -> int:
    """Scale and shift each channel: in the operator that computes it, or as one of its own."""
    op = tracer.open_maker(source, _WITH_WEIGHTS)
    if op is None or op.residual is not None or op.shift is None:
        return tracer.add("affine", node, tracer.values[source], scale=scale, shift=shift)
    if op.weight is None:
        op.scale = cast(Tensor, op.scale) * scale
    else:
        op.weight = op.weight * scale.view(-1, *(1,) * (op.weight.dim() - 1))
    op.shift = op.shift * scale + shift
    return op.output


def _relu(tracer: _Tracer, node: fx.Node, _: Any) -> int | None:
    source = node.all_input_nodes[0]
    op = tracer.open_maker(source, (*_WITH_WEIGHTS, "maximum", "average", "mean"))
    if op is None:
        ones = torch.ones(node.meta["shape"][1], dtype=torch.double)
        return tracer.add("affine", node, tracer.values[source], relu=True, scale=ones, shift=0 * ones)
    op.relu = True
    return op.output


def _arithmetic(tracer: _Tracer, node: fx.Node, arguments: Any) -> int | None:
    (a, b), keywords = (arguments[0] + (None, None))[:2], arguments[1]
    kind, channels = _name(node.target), node.meta["shape"][1]
    if keywords or len(arguments[0]) != 2:
        return None
    if all(isinstance(side, fx.Node) and side.meta["of_image"] for side in (a, b)):
        return _sum(tracer, node, a, b) if kind == "add" else None
    if not (isinstance(a, fx.Node) and a.meta["of_image"]):
        if kind not in ("add", "mul"):
            return None
        a, b = b, a
    constant = torch.as_tensor(b.meta["value"] if isinstance(b, fx.Node) else b, dtype=torch.double)
    shape = node.meta["shape"]
    if shape != a.meta["shape"]:
        return None
    if constant.numel() != 1:
        aligned = constant.reshape((1,) * (len(shape) - constant.dim()) + tuple(constant.shape))
        if aligned.shape[1] != channels or aligned.numel() != channels:
            return None
    each = constant.flatten().expand(channels)
    scale, shift = {
        "add": (torch.ones_like(each), each),
        "sub": (torch.ones_like(each), -each),
        "mul": (each, torch.zeros_like(each)),
        "div": (1 / each, torch.zeros_like(each)),
    }[kind]
    return _scaled(tracer, node, a, scale, shift)


def _sum(tracer: _Tracer, node: fx.Node, a: fx.Node, b: fx.Node) -> int | None:
    """Add two values in the later of the operators that compute them, or in one of its own."""
    if a.meta["shape"] != b.meta["shape"]:
        return None
    by_age = sorted((a, b), key=lambda side: tracer.makers.get(tracer.values[side], -1))
    if tracer.values[a] != tracer.values[b]:
        op = tracer.open_maker(by_age[1], _WITH_WEIGHTS)
        if op is not None and op.residual is None:
            op.residual = tracer.values[by_age[0]]
            return op.output
    ones = torch.ones(node.meta["shape"][1], dtype=torch.double)
    return tracer.add(
        "affine", node, tracer.values[a], residual=tracer.values[b], scale=ones, shift=torch.zeros_like(ones)
    )


_POOL = ("kernel_size", "stride", "padding")


def _pool(kind: str, names: tuple[str, ...]) -> _Rule:
    """Return the rule for a kind of pooling, whose arguments have these names."""

    def rule(tracer: _Tracer, node: fx.Node, given: Any) -> int | None:
        if node.op == "call_module":
            settings = {name: getattr(given, name) for name in names}
        else:
            settings = {**dict(zip(names, given[0][1:], strict=False)), **given[1]}
            settings.pop("return_indices", None)
        kernel = _pair(settings["kernel_size"])
        stride, padding = _pair(settings.get("stride") or kernel), _pair(settings.get("padding", 0))
        height, width = node.all_input_nodes[0].meta["shape"][2:]
        sizes = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip((height, width), padding, kernel, stride, strict=True)]
        outside = kind == "average" and any(padding) and not settings.get("count_include_pad", True)
        if _pair(settings.get("dilation", 1)) != (1, 1) or outside or settings.get("divisor_override"):
            return None
        if tuple(sizes) != node.meta["shape"][2:]:  # ceil_mode, where it matters
            return None
        source = tracer.values[node.all_input_nodes[0]]
        return tracer.add(kind, node, source, kernel=kernel, stride=stride, padding=padding)

    return rule


def _adaptive(tracer: _Tracer, node: fx.Node, _: Any) -> int | None:
    sizes, made = node.all_input_nodes[0].meta["shape"][2:], node.meta["shape"][2:]
    source = tracer.values[node.all_input_nodes[0]]
    if tuple(made) == (1, 1):
        return tracer.add("mean", node, source)
    if any(size % part for size, part in zip(sizes, made, strict=True)):
        return None
    window = cast(Pair, tuple(size // part for size, part in zip(sizes, made, strict=True)))
    return source if window == (1, 1) else tracer.add("average", node, source, kernel=window, stride=window)


def _mean(tracer: _Tracer, node: fx.Node, arguments: Any) -> int | None:
    (_, *rest), keywords = arguments
    axes = rest[0] if rest else keywords.get("dim")
    before, after = node.all_input_nodes[0].meta["shape"], node.meta["shape"]
    if len(before) != 4 or not isinstance(axes, (tuple, list)) or sorted(axis % 4 for axis in axes) != [2, 3]:
        return None
    value = tracer.add("mean", node, tracer.values[node.all_input_nodes[0]])
    tracer.graph.shapes[value] = (before[1], 1, 1)
    if len(after) == 4:
        return value
    return tracer.add("flatten", node, value)


def _flatten(tracer: _Tracer, node: fx.Node, _: Any) -> int | None:
    before, after = node.all_input_nodes[0].meta["shape"], node.meta["shape"]
    if after != (1, math.prod(before[1:])):
        return None
    return tracer.add("flatten", node, tracer.values[node.all_input_nodes[0]])


_MAXIMUM = _pool("maximum", (*_POOL, "dilation", "ceil_mode"))
_AVERAGE = _pool("average", (*_POOL, "ceil_mode", "count_include_pad", "divisor_override"))
_RULES: dict[str, _Rule] = {
    "Conv2d": _convolution,
    "Linear": _linear,
    **dict.fromkeys(("BatchNorm2d", "BatchNorm1d"), _normalisation),
    **dict.fromkeys(("ReLU", "relu"), _relu),
    **dict.fromkeys(("add", "sub", "mul", "div"), _arithmetic),
    **dict.fromkeys(("MaxPool2d", "max_pool2d"), _MAXIMUM),
    **dict.fromkeys(("AvgPool2d", "avg_pool2d"), _AVERAGE),
    **dict.fromkeys(("AdaptiveAvgPool2d", "adaptive_avg_pool2d"), _adaptive),
    "mean": _mean,
    **dict.fromkeys(("Flatten", "flatten", "view", "reshape"), _flatten),
}
