"""A network as another one that computes the same and runs faster as C."""

from collections.abc import Collection, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pwoa.deploy.graph import Graph, Operator


def rewrite(graph: Graph, without_pooling: Collection[int] = ()) -> Graph:
    """Return the network without weights that change nothing, with pooling in its convolutions, and with hidden outputs
    in an order that is fast to add to.

    without_pooling: values that a pooling writes which is to stay on its own.
    """
    return _with_full_outputs_first(_with_pooling_in_convolutions(_without_idle_weights(graph), without_pooling))


def _pairs(graph: Graph) -> Iterator[tuple[Operator, Operator]]:
    """Yield each operator that one other alone reads, as its input, and that other one."""
    for first in graph.operators:
        readers = [op for op in graph.operators if first.output in op.inputs]
        if len(readers) == 1 and first.output not in (graph.output, readers[0].residual):
            yield first, readers[0]


def _without_idle_weights(graph: Graph) -> Graph:
    """Set to zero the weights for channels that no weight reads. A pruned network has many: LeNet at rate 16 leaves two
    of three hidden units without a weight in the last layer.
    """
    read = {graph.output: torch.ones(graph.shapes[graph.output][0], dtype=torch.bool)}
    operators = []
    for op in reversed(graph.operators):
        wanted = read.get(op.output, torch.zeros(graph.shapes[op.output][0], dtype=torch.bool))
        if op.weight is not None:
            op = replace(op, weight=op.weight * wanted.view(-1, *(1,) * (op.weight.dim() - 1)))
        operators.append(op)
        for value, channels in zip(op.inputs, (_channels_read(op, wanted, graph), wanted), strict=False):
            read[value] = channels | read.get(value, torch.zeros_like(channels))
    return replace(graph, operators=operators[::-1])


def _channels_read(op: Operator, wanted: Tensor, graph: Graph) -> Tensor:
    """Tell which channels of its input an operator reads for the wanted ones of its output."""
    if op.weight is not None:
        outputs, inputs = op.weight.shape[:2]
        there = op.weight.reshape(op.groups, outputs // op.groups, inputs, -1) != 0
        return there.any(3).any(1).flatten()
    if op.kind == "flatten":
        return wanted.view(graph.shapes[op.input][0], -1).any(1)
    return wanted


def _with_pooling_in_convolutions(graph: Graph, without: Collection[int]) -> Graph:
    """Let a convolution keep the largest of each two by two places, where a pooling follows that would.

    A ReLU between them may as well come after.
    """
    operators = {op.output: op for op in graph.operators}
    for first, pooling in _pairs(graph):
        plain = first.kind == "convolution" and first.residual is None and first.stride == (1, 1)
        even = not any(size % 2 for size in graph.shapes[first.output][1:])
        two_by_two = pooling.kernel == pooling.stride == (2, 2) and pooling.padding == (0, 0)
        largest = pooling.kind == "maximum" and two_by_two and pooling.residual is None
        if plain and even and largest and pooling.output not in without:
            del operators[first.output]
            operators[pooling.output] = replace(
                first, output=pooling.output, relu=first.relu or pooling.relu, pooled=True
            )
    return replace(graph, operators=[operators[op.output] for op in graph.operators if op.output in operators])


def _with_full_outputs_first(graph: Graph) -> Graph:
    """Put the outputs of each hidden linear layer in another order: those with most weights first.

    Weights for outputs side by side are then more often for the same inputs.
    """
    operators = {op.output: op for op in graph.operators}
    for first, second in _pairs(graph):
        if (first.kind, second.kind) != ("linear", "linear") or first.residual is not None:
            continue
        first, second = operators[first.output], operators[second.output]
        assert first.weight is not None
        assert first.shift is not None
        assert second.weight is not None
        order = first.weight.count_nonzero(1).argsort(descending=True, stable=True)
        operators[first.output] = replace(first, weight=first.weight[order], shift=first.shift[order])
        operators[second.output] = replace(second, weight=second.weight[:, order])
    return replace(graph, operators=list(operators.values()))
