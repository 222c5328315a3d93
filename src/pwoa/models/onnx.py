"""A classifier in an ONNX file, run by onnxruntime: logits without gradients, and no code from the file."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pwoa.errors import InputError, first_line
from pwoa.models.border import Normalisation, as_logits
from pwoa.models.graphs import external_files
from pwoa.storage.reading import open_file

DTYPES = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}
"""The kinds of input a graph may have; images are cast to it."""

CPU = torch.device("cpu")
_PREAMBLE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?")


class OnnxModel(nn.Module):
    """The model of an .onnx file as a network without parameters: images in [0, 1] to logits, on the images' device.

    classes: tells which output is the logits, where the graph has several. normalisation: done before the graph, if it
    was done outside it. Other sizes of batch than the graph's are cut up and filled. A copy is the model itself: it has
    nothing that changes.
    """

    differentiable = False

    def __init__(
        self, path: str | Path, classes: int | None = None, normalisation: Normalisation | None = None
    ) -> None:
        super().__init__()
        self.path = Path(path)
        self.name = self.path.name
        self.classes = classes
        self.normalisation = normalisation
        if not self.path.is_file():
            raise InputError(f"{path} does not exist" if not self.path.exists() else f"{path} is not a file")
        files = [self.path, *external_files(self.path)]  # before anything opens them
        self._sessions: dict[torch.device, Any] = {}
        inputs = self._session(CPU).get_inputs()
        try:
            _ = [(value.name, value.shape) for value in inputs]
        except UnicodeDecodeError:
            raise InputError(f"{path} has names that are not text in UTF-8; export it again") from None
        if len(inputs) != 1:
            names = ", ".join(value.name for value in inputs) or "none"
            raise InputError(f"{path} has {len(inputs)} inputs ({names}); export it with one, the images")
        (images,) = inputs
        if images.type not in DTYPES:
            raise InputError(f"{path} takes {images.type}, not {' or '.join(DTYPES)}; export it for images in [0, 1]")
        self._input: str = images.name
        self._dtype = DTYPES[images.type]
        self.shape = tuple(size if isinstance(size, int) and size > 0 else None for size in images.shape)
        self.fingerprint = _fingerprint(files, normalisation)

    def describe(self) -> dict[str, str]:
        """Return what the file says of its graph: input, outputs, and what wrote it."""
        session = self._session(CPU)
        outputs = [
            f"{value.name}: {_sizes(value.shape) or 'a number'} of {value.type}" for value in session.get_outputs()
        ]
        meta = session.get_modelmeta()
        return {
            "input": f"{self._input}: {_sizes(self.shape)} of {str(self._dtype).removeprefix('torch.')}",
            "outputs": "; ".join(outputs),
            "written by": meta.producer_name or "unknown",
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> "OnnxModel":
        return self

    def check(self, x: Tensor) -> None:
        """Refuse images of another shape than the graph takes."""
        fits = len(self.shape) == x.dim() and all(
            wanted in (None, size) for wanted, size in zip(self.shape[1:], x.shape[1:], strict=True)
        )
        if self.shape and not fits:
            raise InputError(
                f"{self.path} takes inputs of {_sizes(self.shape[1:])}, the images are {_sizes(x.shape[1:])}; "
                "choose the data it was made for, or export it for these images"
            )

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            raise InputError(
                f"{self.path} is an ONNX model, which gives no gradients; "
                "use the attacks natural, square, square-paper, or transfer"
            )
        self.check(x)
        size = (self.shape[0] if self.shape else None) or max(len(x), 1)
        full = _filled(self._normalised(x.detach()), size)
        rows = [self._rows(full[first : first + size]) for first in range(0, len(full), size)]
        return torch.cat(rows)[: len(x)].to(x.device)

    def _normalised(self, x: Tensor) -> Tensor:
        if self.normalisation is None:
            return x
        mean, std = (x.new_tensor(numbers).view(1, -1, 1, 1) for numbers in self.normalisation)
        return (x - mean) / std

    def _rows(self, x: Tensor) -> Tensor:
        logits = as_logits(self._run, self.classes)(x)
        if logits.dim() != 2 or len(logits) != len(x):
            raise InputError(
                f"{self.path} gives an output of shape {tuple(logits.shape)} for {len(x)} images, "
                "not a row of logits an image; export it so that it does"
            )
        return logits

    def _run(self, x: Tensor) -> Any:
        """Run the graph, and return its output or a list of them; those of floats are tensors."""
        images = x.to(CPU, self._dtype).contiguous().numpy()
        try:
            outputs = [_tensor(value) for value in self._session(x.device).run(None, {self._input: images})]
        except Exception as error:  # onnxruntime's errors have no common class
            raise InputError(f"{self.path} fails on images of {_sizes(x.shape[1:])}: {_reason(error)}") from error
        return outputs[0] if len(outputs) == 1 else outputs

    def _session(self, device: torch.device) -> Any:
        where = _placed(device)
        if where not in self._sessions:
            self._sessions[where] = _open(self.path, where)
        return self._sessions[where]


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise InputError("ONNX models need onnxruntime: pip install 'pwoa[onnx]'") from None
    return onnxruntime


def _placed(device: torch.device) -> torch.device:
    """Return where to run what is on `device`: there, if this onnxruntime knows CUDA, else on the CPU."""
    on_gpu = device.type == "cuda" and "CUDAExecutionProvider" in _onnxruntime().get_available_providers()
    return device if on_gpu else CPU


def _open(path: Path, device: torch.device) -> Any:
    runtime = _onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what goes wrong is raised, which is enough
    gpu = [("CUDAExecutionProvider", {"device_id": str(device.index or 0)})] if device.type == "cuda" else []
    try:
        providers = [*gpu, "CPUExecutionProvider"]
        return runtime.InferenceSession(str(path), options, providers=providers, enable_fallback=int(bool(gpu)))
    except Exception as error:  # onnxruntime's errors have no common class
        raise InputError(f"{path} is not an ONNX model that onnxruntime can run: {_reason(error)}") from error


def _filled(x: Tensor, size: int) -> Tensor:
    """Return the images, with the last one repeated up to whole batches, at least one, of `size`."""
    missing = -len(x) % size if len(x) else size
    last = x[-1:] if len(x) else x.new_zeros(1, *x.shape[1:])
    return torch.cat([x, last.expand(missing, *x.shape[1:])]) if missing else x


def _tensor(value: Any) -> Any:
    floats = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return torch.from_numpy(value).float() if floats else value


def _fingerprint(files: list[Path], normalisation: Normalisation | None) -> str:
    """Return the SHA-256 of the file, followed by the files with weights beside it and the normalisation, if any."""
    digest = hashlib.sha256()
    for file in files:
        with open_file(file) as content:
            while piece := content.read(1 << 20):
                digest.update(piece)
    if normalisation is not None:
        digest.update(repr(normalisation).encode())
    return digest.hexdigest()


def _sizes(sizes: Any) -> str:
    return "×".join("?" if size is None else str(size) for size in sizes)


def _reason(error: Exception) -> str:
    return _PREAMBLE.sub("", first_line(error))
