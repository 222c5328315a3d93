"""Speed: compiled networks, and what is done for each batch replayed as CUDA graphs."""

import gc
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.devices import float32_products
from pwoa.errors import InputError, first_line

BACKEND = "inductor"
FIRST = 2
"""So many times something is done before it is recorded."""
WORTH = 3_000_000
"""So many images must be trained on, all epochs counted, to win back the time that compiling a network takes."""
PROGRAMS = 256
"""How many versions of one function the compiler keeps: a block has one for each shape, mode and batch."""


def choose_mode(mode: str, device: torch.device) -> str:
    """Return the named mode; `auto` is `fast` on a GPU with bfloat16 for which code can be generated, else `exact`."""
    if mode != "auto":
        return mode
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return "exact"
    able = find_spec("triton") and any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")))
    return "fast" if able else "exact"


@contextmanager
def tuned() -> Iterator[None]:
    """While inside, convolutions are computed in the fastest way that is found, float32 products as in mode fast."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True), float32_products():
        yield


@contextmanager
def compiled(model: nn.Module) -> Iterator[None]:
    """While inside, passes of a model that may be differentiated are compiled; others are not worth the wait.

    A network that names the class of its blocks (`block`) is compiled block by block, which takes less time: blocks of
    one shape share a program. Any other is compiled as a whole, or each of several in a ModuleDict. Each shape of
    batch has programs of its own, and so has each set of hooks: a program of a run before is not taken for another one.
    """
    from torch._dynamo.exc import BackendCompilerFailed  # the compiler takes a second to load, and few need it

    parts = list(_parts(model))
    own = [vars(part).get("forward") for part in parts]
    for part in parts:
        part.forward = _where_differentiated(torch.compile(part.forward, backend=BACKEND, dynamic=False), part.forward)
    try:
        with ExitStack() as inside:
            inside.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")  # which the compiler looks at
            inside.enter_context(torch._dynamo.config.patch(recompile_limit=PROGRAMS, skip_nnmodule_hook_guards=False))
            inside.enter_context(tuned())
            yield
    except BackendCompilerFailed as error:
        cause = first_line(error.inner_exception)
        raise InputError(f"the model cannot be compiled: {cause}; use training.mode=exact") from None
    finally:
        for part, forward in zip(parts, own, strict=True):
            del part.forward
            if forward is not None:
                part.forward = forward


def _parts(model: nn.Module) -> Iterator[nn.Module]:
    """Return what is compiled on its own: blocks, and normalisation between them; or whole networks."""
    for network in model.values() if isinstance(model, nn.ModuleDict) else [model]:
        named = (getattr(module, "block", None) for module in network.modules())
        kinds = tuple({kind for kind in named if isinstance(kind, type)})
        blocks = [module for module in network.modules() if isinstance(module, kinds)]
        inside = {id(part) for block in blocks for part in block.modules()}
        norms = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d) and id(part) not in inside]
        yield from [*blocks, *norms] if blocks else [network]


def _where_differentiated(fast: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return (fast if torch.is_grad_enabled() else plain)(*args, **kwargs)

    return forward


@contextmanager
def _no_collection() -> Iterator[None]:
    """While inside, no garbage is collected: a CUDA graph that is freed while another is recorded breaks it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Replayed:
    """Something done with a tensor, again and again: recorded as a CUDA graph, it is launched as one.

    It must read what changes from time to time from the tensor it is given or from tensors that stay where they are.
    Numbers are built in; when `constants` are no longer what they were, it is recorded anew. Not recorded are the first
    times, in which programs are compiled and momentum gets its memory, and tensors of another shape than the first.
    """

    def __init__(self, *, record: bool, generator: torch.Generator | None = None) -> None:
        self._record, self._generator = record, generator
        self._left = FIRST
        self._shape: torch.Size | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._given: Tensor | None = None
        self._built_in: object = None

    def __call__(self, action: Callable[[Tensor], None], values: Tensor, constants: object) -> None:
        """Do it with these values; `action` is always the same."""
        self._shape = self._shape or values.shape
        if not self._record or values.shape != self._shape:
            action(values)
        elif self._left:
            self._left -= 1
            action(values)
        elif self._recorded(action, values, constants):
            assert self._graph is not None
            assert self._given is not None
            self._given.copy_(values)
            self._graph.replay()
        else:
            torch.cuda.empty_cache()
            action(values)

    def _recorded(self, action: Callable[[Tensor], None], example: Tensor, constants: object) -> bool:
        """Tell whether there is a graph with these constants, now; there is none where memory does not suffice."""
        if self._graph is not None and constants == self._built_in:
            return True
        try:
            with _no_collection():
                self._capture(action, example)
        except torch.OutOfMemoryError:  # a graph needs memory of its own
            self._record, self._graph, self._given = False, None, None
            return False
        except RuntimeError as error:
            raise InputError(
                f"the model or the method cannot be recorded as a CUDA graph: {first_line(error)}; "
                "use training.mode=exact"
            ) from None
        self._built_in = constants
        return True

    def _capture(self, action: Callable[[Tensor], None], example: Tensor) -> None:
        """Recording it does not do it."""
        self._graph = None  # the last one's memory is free again
        with torch.cuda.device(example.device):
            graph, given = torch.cuda.CUDAGraph(), example.clone()
            if self._generator is not None:
                graph.register_generator_state(self._generator)
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.graph(graph, stream=stream):
                action(given)
        self._graph, self._given = graph, given
