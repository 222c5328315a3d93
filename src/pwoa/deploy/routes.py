"""Routes: the ways to run a network on a CPU. Each says how to get it, writes what it runs, and opens that.

Nothing heavy is imported here: a process that measures the memory of one route must not carry the others.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pwoa.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    Call = Callable[[np.ndarray], np.ndarray]
    """Images in [0, 1] to logits, both float32 arrays."""


@dataclass(frozen=True)
class Task:
    """A network, two images like those it is for, natural training images to calibrate by, and its folder to write to.

    What one route has written there, another may use.
    """

    model: nn.Module
    classes: int
    sample: Tensor
    calibration: Tensor
    folder: Path


@dataclass(frozen=True)
class Artefact:
    """What a route runs: the file or folder that was written, how many bytes of it are shipped, and the network.

    model: for torch, which needs no file; another process reads it from the file.
    """

    path: Path
    bytes: int
    model: nn.Module | None = None


@dataclass(frozen=True)
class Route:
    """One way to run a network.

    runtime: the module that it runs in, which is imported before anything of the network is.
    missing: says in a line how to get it; nothing where it is here.
    write: writes a network as it runs here; an operator that it does not know is an InputError.
    open: returns what is called with images, computing with so many threads.
    threads: while inside, the process computes with so many threads, where that is not for `open` to say.
    exact: float32, so that it computes what the network computes, up to rounding.
    """

    name: str
    label: str
    runtime: str
    missing: Callable[[], str]
    write: Callable[[Task], Artefact]
    open: Callable[[Artefact, int], Call]
    threads: Callable[[int], AbstractContextManager[Any]] = lambda count: nullcontext()
    exact: bool = True


def find_routes(names: str | Sequence[str] | None) -> list[Route]:
    """Return the routes of these names, from a list or `a,b,c`; all for None. Example: `find_routes("torch,c")`."""
    given = list(ROUTES) if names is None else names.split(",") if isinstance(names, str) else list(names)
    chosen = []
    for name in dict.fromkeys(part.strip() if isinstance(part, str) else part for part in given):
        if name not in ROUTES:
            raise InputError(f"unknown route {name!r} ({did_you_mean(str(name), ROUTES)}); known: {', '.join(ROUTES)}")
        chosen.append(ROUTES[name])
    return chosen


def _needs(module: str, how: str) -> str:
    return "" if importlib.util.find_spec(module) else how


def _no_compiler(names: tuple[str, ...], how: str) -> str:
    return "" if any(map(shutil.which, names)) else how


def _refuse_artefact(model: nn.Module) -> None:
    """Refuse what was exported before, by another route than the one that times it: its network is not in it."""
    from pwoa.models.compiled import CModel
    from pwoa.models.onnx import OnnxModel

    if isinstance(model, (OnnxModel, CModel)):
        route = "c" if isinstance(model, CModel) else "onnx"
        raise InputError(f"{model.name} is exported already; the route {route} ({ROUTES[route].label}) times it")


# torch


def _write_torch(task: Task) -> Artefact:
    import torch

    _refuse_artefact(task.model)
    path = task.folder / "model.pt"
    try:
        torch.save(task.model, path)
    except Exception:  # a class that pickle cannot name: its memory is not measured then
        path.unlink(missing_ok=True)
    state = task.model.state_dict().values()
    return Artefact(path, sum(value.numel() * value.element_size() for value in state), task.model)


def _open_torch(artefact: Artefact, threads: int, compiled: bool) -> Call:
    import torch

    from pwoa.models.border import as_logits

    model = artefact.model
    if model is None:  # in another process of the same benchmark, which wrote the file a moment ago
        model = torch.load(artefact.path, weights_only=False)
    logits: Callable[[Tensor], Tensor] = as_logits(model.eval())
    if compiled:
        logits = torch.compile(logits, dynamic=False)

    def call(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            answer: np.ndarray = logits(torch.from_numpy(x)).numpy()
        return answer

    return call


def _torch_threads(count: int) -> AbstractContextManager[Any]:
    from pwoa.devices import using_threads

    return using_threads(count)


# onnxruntime and OpenVINO, which reads the same file


def _write_onnx(task: Task) -> Artefact:
    from pwoa.deploy.onnx_file import save, to_onnx
    from pwoa.models.onnx import OnnxModel

    if isinstance(task.model, OnnxModel):
        return Artefact(task.model.path, task.model.path.stat().st_size)
    _refuse_artefact(task.model)
    path = task.folder / "model.onnx"
    if not path.exists():
        save(to_onnx(task.model, task.sample, task.classes), path, {})
    return Artefact(path, path.stat().st_size)


def _write_int8(task: Task) -> Artefact:
    import onnx

    from pwoa.deploy.int8 import quantise
    from pwoa.deploy.onnx_file import save

    _refuse_artefact(task.model)
    path = task.folder / "model.int8.onnx"
    save(quantise(onnx.load(_write_onnx(task).path), task.calibration), path, {})
    return Artefact(path, path.stat().st_size)


def _open_onnx(artefact: Artefact, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(artefact.path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def call(x: np.ndarray) -> np.ndarray:
        answer: np.ndarray = session.run(None, {name: x})[0]
        return answer

    return call


def _open_openvino(artefact: Artefact, threads: int) -> Call:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(artefact.path), "CPU", settings).create_infer_request()

    def call(x: np.ndarray) -> np.ndarray:
        answer: np.ndarray = next(iter(request.infer({0: x}).values()))
        return answer

    return call


# our C


def _write_c(task: Task) -> Artefact:
    from pwoa.deploy.c import write_c
    from pwoa.models.compiled import WEIGHTS, CModel

    if isinstance(task.model, CModel):
        folder = task.model.path
    else:
        _refuse_artefact(task.model)
        folder = task.folder / "c"
        write_c(task.model, task.sample, folder)
    return Artefact(folder, (folder / WEIGHTS).stat().st_size)  # the code is the same for every network


def _open_c(artefact: Artefact, threads: int) -> Call:
    from pwoa.models.compiled import load_c

    call: Call = load_c(artefact.path, threads=threads)
    return call


_RUNTIME = "pip install 'pwoa[onnx]'"
ROUTES: dict[str, Route] = {
    route.name: route
    for route in (
        Route("torch", "torch", "torch", str, _write_torch, partial(_open_torch, compiled=False), _torch_threads),
        Route(
            "torch-compiled",
            "torch compiled",
            "torch",
            partial(_no_compiler, ("c++", "g++", "clang++"), "install a C++ compiler, such as g++"),
            _write_torch,
            partial(_open_torch, compiled=True),
            _torch_threads,
        ),
        Route("onnx", "onnxruntime", "onnxruntime", partial(_needs, "onnxruntime", _RUNTIME), _write_onnx, _open_onnx),
        Route(
            "int8",
            "onnxruntime int8",
            "onnxruntime",
            partial(_needs, "onnxruntime", _RUNTIME),
            _write_int8,
            _open_onnx,
            exact=False,
        ),
        Route(
            "openvino",
            "OpenVINO",
            "openvino",
            partial(_needs, "openvino", "pip install 'pwoa[openvino]'"),
            _write_onnx,
            _open_openvino,
        ),
        Route(
            "c",
            "C",
            "pwoa.models.compiled",
            partial(_no_compiler, ("cc", "gcc", "clang"), "install a C compiler, such as gcc"),
            _write_c,
            _open_c,
        ),
    )
}
"""By name, in the order in which they are shown."""
