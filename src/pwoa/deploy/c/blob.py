"""The file weights.bin: what model.c reads of a network, with the weights in the order in which they are used.

A header, a table of tensors, a table of operators, and arrays, each at a multiple of 64 bytes; words are little-endian.
"""

import math
import struct

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pwoa.deploy.c.layout import KINDS, LANES, MOST, SCATTER, Place, Step, plan
from pwoa.deploy.c.rewriting import rewrite
from pwoa.deploy.graph import Graph, Operator, Pair

NONE = 0xFFFFFFFF
MAGIC, VERSION = 0x4F575043, 2
CACHE = 48 << 10
"""Bytes that the input of a segment of channels may have: about those of the fastest cache."""
MOST_POOLED = 3 * CACHE
"""Bytes that the input of a convolution with pooling may have, which is not cut into segments."""
FEWEST = 40
"""A segment has at least so many weights for an output channel, on average: to begin with one costs time, too."""
EIGHT, FEWEST_OF_EIGHT = 8, 3
"""Outputs of a linear layer that lie side by side are stored together, with zeros, if so many of them have a weight."""
FIRST, LAST = 1, 2
Array = NDArray[np.generic]


def _numbers(values: Tensor | None) -> NDArray[np.float32]:
    assert values is not None
    return np.ascontiguousarray(values.numpy(), dtype=np.float32)


def pack(graph: Graph) -> bytes:
    """Return a network as model.c reads it."""
    steps = _steps(graph)
    tensors = [steps[0].input] if steps else []
    for one in steps:
        one.output.index = len(tensors)
        tensors.append(one.output)
    workspace = _place(tensors[1:-1])
    blob = _Blob()
    shapes = blob.append(np.array([word for place in tensors for word in place.words()], np.uint32))
    records = [word for one in steps for word in _record(one, blob)]
    operators = blob.append(np.array(records, np.uint32))
    header = (len(tensors), len(steps), len(tensors) - 1, workspace, shapes, operators, 0, 0, 0, 0)
    return blob.sealed(header)


def _steps(graph: Graph) -> list[Step]:
    """Lay the network out, with pooling in those convolutions that are small enough for it."""
    large = set[int]()
    while True:
        steps = plan(rewrite(graph, without_pooling=large)).steps
        found = {one.of.output for one in steps if one.of is not None and _too_large(one)}
        if not found:
            return steps
        large |= found


class _Blob:
    """Arrays one after the other, each at a multiple of 64 bytes after the header."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 64

    def append(self, values: Array) -> int:
        """Add an array; return where it is, in units of 64 bytes."""
        where, content = self.size // 64, values.astype(values.dtype.newbyteorder("<")).tobytes()
        content += bytes(-len(content) % 64)
        self.parts.append(content)
        self.size += len(content)
        return where

    def sealed(self, header: tuple[int, ...]) -> bytes:
        """Return all, with the header and its checksum."""
        body = struct.pack("<10I", *header) + b"".join(self.parts)
        return struct.pack("<IIQQ", MAGIC, VERSION, self.size, checksum(body)) + body


def checksum(body: bytes) -> int:
    """Return what the header says of all after it: a sum of products, which notices any change of one word."""
    words = np.frombuffer(body, "<u4").astype(np.uint64)
    odd = np.arange(len(words), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
    with np.errstate(over="ignore"):
        return int((words * odd).sum(dtype=np.uint64))


def _place(tensors: list[Place]) -> int:
    """Give each tensor an offset, so that those that are needed at the same time do not overlap; return the total."""
    total = 0
    for i, tensor in enumerate(tensors):
        busy = sorted(
            (other.offset, other.offset + other.vectors)
            for other in tensors[:i]
            if other.dies >= tensor.born and other.born <= tensor.dies
        )
        tensor.offset = 0
        for start, end in busy:
            if tensor.offset + tensor.vectors <= start:
                break
            tensor.offset = max(tensor.offset, end)
        total = max(total, tensor.offset + tensor.vectors)
    return total


def _record(one: Step, blob: _Blob) -> tuple[int, ...]:
    op, residual = one.of, NONE if one.residual is None else one.residual.index
    head = (one.kind, one.input.index, one.output.index, residual, int(op.relu) if op else 0)
    if op is None:
        return (*head, *(0,) * 11, NONE, NONE, 0, 0)
    scale = NONE if op.scale is None else blob.append(_numbers(op.scale))
    shift = NONE if op.shift is None else blob.append(_numbers(op.shift))
    window, base = (*op.stride, *op.kernel), 0
    arrays: tuple[int, ...] = (0,) * 6
    if one.kind in (KINDS["convolution"], KINDS["maximum"], KINDS["average"]):
        before, size = one.input.before, one.input.size
        base = (before[0] - op.padding[0]) * size[1] + before[1] - op.padding[1]
    if one.kind == KINDS["dense"]:
        arrays = (0, 0, 0, 0, blob.append(_numbers(op.weight)), 0)
    elif one.kind == KINDS["convolution"]:
        arrays = _convolution(op, one, blob)
    elif one.kind == SCATTER:
        arrays = _columns(_numbers(op.weight), blob)
    elif one.kind == KINDS["linear"]:
        weight = _numbers(op.weight)
        arrays = _nonzeros(weight, np.arange(weight.shape[1]), 1, MOST, 1, blob)
    return (*head, *window, base, *arrays, scale, shift, int(op.pooled), 0)


def _columns(weight: NDArray[np.float32], blob: _Blob) -> tuple[int, ...]:
    """Store the weights [outputs, inputs] that are not zero, input after input: eights, which are eight outputs side by
    side with a few weights or more, and the other weights one by one.

    Returns the words from `segments` to `nonzeros`: `segments` are the eights' places, `nonzeros` counts the others.
    """
    columns = np.ascontiguousarray(np.pad(weight, ((0, -len(weight) % EIGHT), (0, 0))).T)
    eights = columns.reshape(len(columns), -1, EIGHT)
    full = np.count_nonzero(eights, 2) >= FEWEST_OF_EIGHT
    alone = (columns != 0) & ~full.repeat(EIGHT, 1)
    counts = np.stack([full.sum(1), alone.sum(1)], 1).astype(np.uint16)
    places, outputs = (np.nonzero(there)[1].astype(np.uint16) for there in (full, alone))
    weights = np.concatenate([eights[full].flatten(), columns[alone]])
    where = map(blob.append, (counts, outputs, weights))
    return (blob.append(places), len(places), *where, len(outputs))


def _convolution(op: Operator, one: Step, blob: _Blob) -> tuple[int, ...]:
    weight = _numbers(op.weight)
    outputs, channels, high, broad = weight.shape
    offsets = (np.arange(channels)[:, None] * one.input.plane + _taps(op, one)).flatten()
    width = channels if op.pooled else _segment(op, one)
    taps = high * broad
    return _nonzeros(weight.reshape(outputs, -1), offsets, op.groups, width * taps, taps, blob, one.input.plane)


def _taps(op: Operator, one: Step) -> NDArray[np.int64]:
    """Return where in an input plane the weights of a kernel read, in vectors from the first."""
    rows, columns = (np.arange(count) * apart for count, apart in zip(op.kernel, op.dilation, strict=True))
    return (rows[:, None] * one.input.size[1] + columns).flatten()


def _segment(op: Operator, one: Step) -> int:
    """Return how many channels a segment of a convolution has."""
    assert op.weight is not None
    channels, taps = op.weight.shape[1], math.prod(op.kernel)
    part = int(op.weight.count_nonzero()) / op.weight.numel()
    fewest = math.ceil(FEWEST / max(part * taps, 1e-9))
    return min(max(CACHE // _touched(op, one), fewest, 1), channels, _most(op, one))


def _most(op: Operator, one: Step) -> int:
    """Return how many channels a segment can have: places and counts have 16 bits."""
    return min((MOST - int(_taps(op, one)[-1])) // one.input.plane + 1, MOST // math.prod(op.kernel))


def _touched(op: Operator, one: Step) -> int:
    """Return how many bytes of an input channel are read for a block of places."""
    step, each = one.output.step or (1, 1), 2 if op.pooled else 1
    rows, columns = _block((each * step[0], each * step[1]))
    return ((rows - 1) * op.stride[0] + op.kernel[0]) * ((columns - 1) * op.stride[1] + op.kernel[1]) * LANES * 4


def _too_large(one: Step) -> bool:
    """Tell whether a convolution cannot pool, for which it must have one segment."""
    if one.of is None or not one.of.pooled or one.of.weight is None:
        return False
    channels = one.of.weight.shape[1]
    return channels > _most(one.of, one) or channels * _touched(one.of, one) > MOST_POOLED


def _block(step: Pair) -> Pair:
    """Return how many rows and columns of places are computed at a time with the widest vectors."""
    columns = min(step[1], 8)
    return max(rows for rows in (1, 2, 4) if rows == 1 or (rows <= step[0] and rows * columns <= 16)), columns


def _nonzeros(
    weight: NDArray[np.float32],
    offsets: NDArray[np.int64],
    groups: int,
    width: int,
    taps: int,
    blob: _Blob,
    plane: int = 1,
) -> tuple[int, ...]:
    """Store the weights [outputs, inputs] that are not zero, by segments of so many columns.

    offsets: where each column reads. Returns the words from `segments` to `nonzeros`.
    """
    outputs, columns = weight.shape
    each, segments = outputs // groups, list[tuple[int, int, int, int]]()
    counts, places, values = list[Array](), list[Array](), list[Array]()
    for group in range(groups):
        rows = weight[group * each : (group + 1) * each]
        for start in range(0, columns, width):
            part = rows[:, start : start + width]
            there = part != 0
            flags = (FIRST if start == 0 else 0) | (LAST if start + width >= columns else 0)
            channel = group * (columns // taps) + start // taps
            segments.append((channel * plane, group * each, each, flags))
            counts.append(there.sum(1).astype(np.uint16))
            own = offsets[start : start + width] - offsets[start]
            places.append(np.broadcast_to(own, part.shape)[there].astype(np.uint16))
            values.append(part[there])
    number = sum(map(len, values))
    where = [blob.append(np.concatenate(parts)) for parts in (counts, places, values)]
    return (blob.append(np.array(segments, np.uint32).flatten()), len(segments), *where, number)
