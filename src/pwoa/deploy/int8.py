"""A model as an ONNX file in 8 bits: static quantisation by onnxruntime, calibrated on natural training images."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor

from pwoa.deploy.export import Draft
from pwoa.deploy.onnx_file import INPUT, opened, quiet, save, to_onnx
from pwoa.deploy.original import Original

IMAGES = 512
"""How many training images the ranges of activations are taken from."""
_BATCH = 64
_LAYERS = ("Conv", "Gemm", "MatMul")


def draft(original: Original) -> Draft:
    """Quantise a model: weights by a scale for each output channel, activations by their range on training images."""
    graph = quantise(to_onnx(original.model, original.sample, original.classes), original.calibration(IMAGES))
    return Draft(opened(graph, original.classes), lambda path, about: save(graph, path, about), exact=False)


def quantise(graph: Any, images: Tensor) -> Any:
    """Return a graph in 8 bits, as QuantizeLinear and DequantizeLinear around each operator; the same each time.

    The last layer stays in float32: logits in steps of 8 bits would be equal where the network's are not, and hide from
    an attack what it gains. images: natural ones, whose activations give the ranges.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    layers = [node.name for node in graph.graph.node if node.op_type in _LAYERS]
    with tempfile.TemporaryDirectory() as temporary, quiet():
        path = Path(temporary) / "model.onnx"
        quantize_static(
            graph,
            str(path),
            _Batches(images),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            nodes_to_exclude=layers[-1:],
        )
        return onnx.load(str(path))


class _Batches:
    """Images in batches, as onnxruntime asks for them: one by one, then None."""

    def __init__(self, images: Tensor) -> None:
        self._batches: Iterator[Tensor] = iter(torch.split(images, _BATCH))

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch."""
        batch = next(self._batches, None)
        return None if batch is None else {INPUT: batch.numpy()}
