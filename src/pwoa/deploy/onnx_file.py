"""A model as an ONNX file: batch normalisation folded, any number of images at a time, what is known of it inside.

The graph is made by torch's own exporter: what it knows of operators (attention among them) and of changing shapes is
more than a table of layers here could know.
"""

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from pwoa import __version__
from pwoa.deploy.export import Draft
from pwoa.deploy.original import Original
from pwoa.errors import InputError, first_line
from pwoa.models.border import as_logits
from pwoa.models.checkpoints.packed import KEY
from pwoa.models.folding import fold
from pwoa.models.onnx import OnnxModel
from pwoa.storage.folder import replacing, sealed

INPUT, OUTPUT, BATCH = "images", "logits", "batch"


def draft(original: Original) -> Draft:
    """Make the graph of a model."""
    graph = to_onnx(original.model, original.sample, original.classes)
    return Draft(opened(graph, original.classes), lambda path, about: save(graph, path, about), exact=True)


def to_onnx(model: nn.Module, sample: Tensor, classes: int) -> Any:
    """Return the graph of a model in eval mode; nothing in it names a place on this machine."""
    try:
        import onnxscript  # noqa: F401  # which torch's exporter needs
    except ImportError:
        raise InputError("exporting to ONNX needs onnxscript: pip install 'pwoa[onnx]'") from None
    network = _Logits(fold(model), classes)
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                network,
                (sample,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim(BATCH)},),
                input_names=[INPUT],
                output_names=[OUTPUT],
                verbose=False,
            )
            graph = program.model_proto  # type: ignore[union-attr]
    except Exception as error:  # whatever the network and the exporter raise
        raise InputError(f"torch cannot export this network to ONNX: {_reason(error)}") from None
    _strip(graph)
    return graph


def opened(graph: Any, classes: int) -> OnnxModel:
    """Return a graph as onnxruntime runs it."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.onnx"
        path.write_bytes(graph.SerializeToString())
        return OnnxModel(path, classes)


def save(graph: Any, path: Path, about: Mapping[str, Any]) -> None:
    """Write a graph with what is known of the model, after onnx has checked it."""
    del graph.metadata_props[:]
    graph.metadata_props.add(key=KEY, value=json.dumps(sealed(about)))
    graph.doc_string = in_words(about)
    content = graph.SerializeToString(deterministic=True)
    try:
        onnx.checker.check_model(content, full_check=True)
    except Exception as error:  # onnx has several kinds
        raise InputError(f"the ONNX graph is not valid: {first_line(error)}; nothing was written") from None
    with replacing(path) as file:
        file.write(content)


def in_words(about: Mapping[str, Any]) -> str:
    """Return what is known of a model in a sentence for whoever opens its file."""
    rate = f", {about['rate']:.4g}× fewer weights" if about.get("rate", 1) > 1 else ""
    threat, accuracy = about.get("threat"), about.get("accuracy", {})
    against = f"; threat {threat['norm']} {threat['radius']:g}" if threat else ""
    measured = ", ".join(f"{attack} {value:.2f} %" for attack, value in accuracy.items())
    found = f"; measured in torch: {measured}" if measured else ""
    return f"{about.get('architecture', 'A network')}{rate}{against}{found}. Takes images in [0, 1], gives logits."


class _Logits(nn.Module):
    """A network that gives its logits alone."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__()
        self.network, self._classes = network, classes

    def forward(self, images: Tensor) -> Tensor:
        return as_logits(self.network, self._classes)(images)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's remarks on other libraries and on torch itself from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def _strip(graph: Any) -> None:
    """Take out where in whose files each node comes from, and name the program."""
    for holder in (graph.graph, *graph.graph.node, *graph.graph.value_info, *graph.graph.input, *graph.graph.output):
        del holder.metadata_props[:]
        holder.doc_string = ""
    for tensor in graph.graph.initializer:
        del tensor.metadata_props[:]
    graph.graph.name = "model"
    graph.producer_name, graph.producer_version = "pwoa", __version__


def _reason(error: BaseException) -> str:
    """Return the first line of what went wrong underneath: the exporter explains it over many lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error) if isinstance(error, Exception) else type(error).__name__
