"""A network as a folder of C, run from Python: compiled once, loaded, and called on arrays or tensors."""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, cat, from_numpy, get_num_threads, is_grad_enabled, nn, split

from pwoa.data.store import cache_root
from pwoa.errors import InputError, brief, printable
from pwoa.storage.folder import naming, unsealed
from pwoa.storage.identity import identity
from pwoa.storage.reading import TEXT_LIMIT, parse_json, read_bytes, read_json

ARTEFACT, WEIGHTS = "artefact.json", "weights.bin"
CODE = ("model.h", "model.c")
"""What is compiled of a folder."""
FLAGS: tuple[str, ...] = ("-std=c11", "-O3", "-ffp-contract=fast", "-DMODEL_THREADS", "-pthread", "-shared", "-fPIC")
HERE = "-march=native"
LARGEST = 4 << 30
"""Bytes of weights."""
LINE = 64
"""Bytes of a line of the cache."""
MOST_THREADS = 256
Images = TypeVar("Images", Tensor, NDArray[np.float32])


def load_c(folder: str | Path, threads: int = 1) -> "CompiledModel":
    """Compile a folder that `write_c` made, once for all folders with the same code, and return it as a function.

    Example: `logits = load_c("lenet-c")(images)`. The folder's own model.c is compiled and run, so that a folder from a
    stranger is a program from a stranger. The compiler is `$CC`, cc, gcc or clang.
    """
    folder = Path(folder)
    if not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise InputError(f"threads are a whole number from 1 to {MOST_THREADS}, not {brief(threads)}")
    if not (folder / ARTEFACT).is_file():
        raise InputError(f"{folder} is no network as C: it has no {ARTEFACT}")
    artefact = unsealed(
        parse_json(read_bytes(folder / ARTEFACT, TEXT_LIMIT), str(folder / ARTEFACT)), str(folder / ARTEFACT)
    )
    if artefact.get("kind") != "c":
        raise InputError(f"{folder} is no network as C: its {ARTEFACT} says {brief(artefact.get('kind'))}")
    weights = read_bytes(folder / WEIGHTS, LARGEST)
    if hashlib.sha256(weights).hexdigest() != artefact.get("hash"):
        raise InputError(f"{folder / WEIGHTS} is damaged (it is not what {ARTEFACT} describes); export the model again")
    return CompiledModel(_library(compiled(folder)), weights, threads, artefact)


class CompiledModel:
    """A network in C as a function from images [N, channels, height, width] to logits, both of the same kind.

    It may be called from several threads; they wait for each other.
    """

    def __init__(self, library: ctypes.CDLL, weights: bytes, threads: int, artefact: dict[str, Any]) -> None:
        self.artefact, self._library, self._weights = artefact, library, _aligned(weights)
        self._lock, why = threading.Lock(), ctypes.c_char_p()
        net = library.model_open(self._weights.ctypes.data, len(weights), ctypes.byref(why))
        if not net:
            raise InputError(f"{WEIGHTS} cannot be opened: {(why.value or b'').decode()}; export the model again")
        self._state = library.model_start(net, threads)
        if not self._state:
            library.model_close(net)
            raise InputError(f"the model cannot be started with {threads} threads: there is no memory for it")
        weakref.finalize(self, _close, library, net, self._state, self._weights)
        shape = library.model_shape_of(net)
        self.shape = (shape.channels, shape.height, shape.width)
        self.classes = int(shape.classes)
        self._wanted = "[N, {}, {}, {}]".format(*self.shape)
        self._image, self._logits = np.empty((1, *self.shape), np.float32), np.empty((1, self.classes), np.float32)
        self._one = (self._state, self._image.ctypes.data, 1, self._logits.ctypes.data)

    def __call__(self, images: Images) -> Images:
        if isinstance(images, Tensor):
            return from_numpy(self._run(images.detach().cpu().numpy())).to(images.device)
        return self._run(images)

    def _run(self, images: Any) -> NDArray[np.float32]:
        if not isinstance(images, np.ndarray):
            raise InputError(f"images are a float32 array or tensor {self._wanted}, not a {type(images).__name__}")
        if images.ndim != 4 or images.shape[1:] != self.shape or images.dtype != np.float32:
            raise InputError(f"images are float32 {self._wanted}, not {images.dtype} {list(images.shape)}")
        if len(images) == 1:  # where to find an array takes numpy longer than to copy an image
            with self._lock:
                np.copyto(self._image, images)
                self._library.model_run(*self._one)
                return self._logits.copy()
        images = np.ascontiguousarray(images)
        logits = np.empty((len(images), self.classes), np.float32)
        with self._lock:
            self._library.model_run(self._state, images.ctypes.data, len(images), logits.ctypes.data)
        return logits


def _aligned(content: bytes) -> NDArray[np.uint8]:
    """Copy bytes to where a line of the cache begins, so that no vector of them lies in two."""
    room = np.empty(len(content) + LINE, np.uint8)
    first = -room.ctypes.data % LINE
    room[first : first + len(content)] = np.frombuffer(content, np.uint8)
    return room[first : first + len(content)]


def is_c(folder: str | Path) -> bool:
    """Tell whether a name is that of a folder of C that was exported."""
    try:
        return (Path(folder) / ARTEFACT).is_file() and read_json(Path(folder) / ARTEFACT).get("kind") == "c"
    except (AttributeError, InputError, OSError, ValueError):  # a file that is not ours, or a name that none can have
        return False


class CModel(nn.Module):
    """A folder of C as a network without parameters, like that of an .onnx file: logits, and no gradients.

    Many images are shared among as many threads as torch has. Its code is compiled and run, so it is for folders that a
    user names, never for one that a file names, and only if the code is our own: a folder of a stranger looks like any
    other.
    """

    differentiable = False

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.path = Path(folder)
        self.name = self.path.name
        _check_code(self.path)
        self.call = load_c(folder)
        self.fingerprint = identity(folder)
        self._more: list[CompiledModel] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "CModel":
        return self

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and is_grad_enabled():
            raise InputError(f"{self.path} is C code, which has no gradients; attack it by square or transfer")
        parts = split(x, max(-(-len(x) // get_num_threads()), 1))
        if len(parts) == 1:
            return self.call(x)
        self._more += [load_c(self.path) for _ in range(len(parts) - 1 - len(self._more))]
        with ThreadPoolExecutor(len(parts)) as pool:  # a thread computes images, which needs no waiting for the others
            return cat(list(pool.map(_answer, (self.call, *self._more), parts)))


def _answer(call: CompiledModel, images: Tensor) -> Tensor:
    return call(images)


def _check_code(folder: Path) -> None:
    """Refuse code that is not what `export` writes."""
    for name in CODE:
        if read_bytes(folder / name, TEXT_LIMIT) != (files("pwoa") / "deploy" / "c" / name).read_bytes():
            raise InputError(
                f"{folder / name} is not the code that this version of pwoa writes, and is not run; export the model "
                "again, or if you trust it, load it by pwoa.deploy.c.load_c"
            )


def compiled(folder: Path) -> Path:
    """Return the library of a folder's code for this machine: from the cache, or compiled into it."""
    command, about = _compiler(), ["-dM", "-E", "-x", "c", os.devnull]
    flags: tuple[str, ...] = (*FLAGS, HERE)
    if not (macros := _run([*command, HERE, *about])):  # they tell the compiler, and what this machine can do
        flags, macros = FLAGS, _run([*command, *about])
    sources = [read_bytes(folder / name, TEXT_LIMIT) for name in CODE]
    key = hashlib.sha256(b"\0".join([*sources, macros, *map(str.encode, (*command, *flags))])).hexdigest()
    library = cache_root() / "compiled" / f"{key}.so"
    if library.is_file():
        return library
    with naming(library.parent):
        library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = library.with_name(f".{os.urandom(8).hex()}.part")
    try:
        ended = subprocess.run(
            [*command, *flags, "-o", str(part), str(folder / "model.c")], capture_output=True, check=False
        )
        if ended.returncode:
            first = next(iter(ended.stderr.decode(errors="replace").splitlines()), "it said nothing")
            raise InputError(f"{command[0]} could not compile {folder / 'model.c'}: {printable(first)}")
        with naming(library.parent):
            os.replace(part, library)  # whoever else compiles it at the same time makes the same
    finally:
        part.unlink(missing_ok=True)
    return library


def _compiler() -> list[str]:
    given = shlex.split(os.environ.get("CC", ""))
    found = [given] if given else [["cc"], ["gcc"], ["clang"]]
    for command in found:
        if shutil.which(command[0]):
            return command
    missing = (
        f"CC is {os.environ['CC']!r}, which is not there" if given else "there is no C compiler (cc, gcc or clang)"
    )
    raise InputError(f"{missing}; install gcc, or set CC to a compiler")


def _run(command: list[str]) -> bytes:
    ended = subprocess.run(command, capture_output=True, check=False)
    return b"" if ended.returncode else ended.stdout


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("channels", "height", "width", "classes")),
        ("bytes", ctypes.c_size_t),
    )


def _library(path: Path) -> ctypes.CDLL:
    library, pointer, size = ctypes.CDLL(str(path)), ctypes.c_void_p, ctypes.c_size_t
    functions: dict[str, tuple[list[Any], Any]] = {
        "model_open": ([pointer, size, ctypes.POINTER(ctypes.c_char_p)], pointer),
        "model_shape_of": ([pointer], _Shape),
        "model_start": ([pointer, ctypes.c_int], pointer),
        "model_run": ([pointer, pointer, size, pointer], None),
        "model_stop": ([pointer], None),
        "model_close": ([pointer], None),
    }
    for name, (arguments, result) in functions.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def _close(library: ctypes.CDLL, net: int, state: int, weights: NDArray[np.uint8]) -> None:
    """Give back what C has allocated; the weights are there until then."""
    library.model_stop(state)
    library.model_close(net)
