"""Faster copies of a model, for attacks and for forward passes: the same function up to rounding.

What an attack finds on its copy counts only when the model itself says so. On any device batch normalisation is folded
into the convolution before it; on a GPU the copy also computes in float16, in full batches, and a model so small
that launching its kernels takes longer than running them is replayed as CUDA graphs.
"""

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.fx import GraphModule

from pwoa.models.border import LogitModel, as_logits, evaluating
from pwoa.models.folding import fold, fuse, halve
from pwoa.models.hidden import recording

LARGEST_GRADIENT = 16.0
"""What each image's gradient of the logits is scaled to before it goes back through float16, and undone after."""

SIZES = 8
"""A batch is filled up to a multiple of an eighth of the full batch, so that there are few sizes to prepare for."""

_SAMPLE = 16
_CLOSE = 0.02  # of the logits' spread
_ALIGNED = 0.9  # cosine with the true gradient
_LAUNCH_BOUND = 0.5  # share of the time that goes into launching
_FAINT = 0.05  # of a layer's mean square: what a channel is measured against at least
_TINY = 1e-30


def attack_copy(model: nn.Module, x: Tensor, classes: int | None = None, batch: int = 500) -> LogitModel | None:
    """Return the fastest copy for an attack that agrees with `model` in eval mode on the images `x`; None if none does.

    It takes at most `batch` images at a time.
    """
    try:
        light = fold(model)
    except Exception:  # it cannot be copied
        return None
    ways: list[Callable[[], LogitModel]] = [partial(_plain, light, classes)]
    if x.is_cuda:
        ways = [partial(_Half, light, x, classes, batch, fused) for fused in (True, False)] + ways
    for way in ways:
        try:
            fast = way()
            with evaluating(model):
                if _agrees(fast, as_logits(model, classes), x[:_SAMPLE]):
                    return fast
        except Exception:  # a model that cannot be traced or run in float16 is attacked as it is
            continue
    return None


def forward_copy(model: nn.Module, x: Tensor, classes: int | None = None) -> LogitModel:
    """Return a copy for forward passes alone: on a GPU in float16, if it agrees on the images `x`; else the model."""
    plain = as_logits(model, classes)
    if not x.is_cuda:
        return plain
    try:
        network = as_logits(_half_copy(model), classes)

        def fast(images: Tensor) -> Tensor:
            return network(_half_images(images)).float()

        with evaluating(model):
            return fast if _close(fast, plain, x[:_SAMPLE]) else plain
    except Exception:  # a model that cannot be traced or run in float16 is run as it is
        return plain


Observed = Callable[[Tensor], tuple[Tensor, list[Tensor]]]
"""(images) → logits, and the hidden activations at some points."""


def observed(
    model: nn.Module, x: Tensor, points: Sequence[str], classes: int | None = None, fast: bool = True
) -> Observed:
    """Return what gives the logits and hidden activations of a model in eval mode.

    Example: `logits, (stem, *blocks) = observed(teacher, x[:16], teacher.hidden_points)(x)`.

    fast: on a GPU take a copy in float16, if it agrees on the images `x`.
    """
    plain = _observed(model, points, classes)
    ways = (partial(_fused, model, points), partial(_halved, model, points, classes))
    for way in ways if fast and x.is_cuda else ():
        try:
            look = way()
            with torch.no_grad(), evaluating(model):
                if _sees_the_same(look, plain, x[:_SAMPLE]):
                    return look
        except Exception:  # a model that cannot be traced, copied or run in float16 is run in another way
            continue
    return plain


def _half_copy(model: nn.Module, points: Sequence[str] = ()) -> nn.Module:
    """Return a copy in float16 with few kernels, for forward passes."""
    folded = cast(GraphModule, fold(model, points))
    return fuse(halve(folded)).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _half_images(images: Tensor) -> Tensor:
    return images.to(torch.float16).contiguous(memory_format=torch.channels_last)


def _fused(model: nn.Module, points: Sequence[str]) -> Observed:
    """Return what looks into a copy in float16 with few kernels."""
    half = _half_copy(model, points)

    def look(images: Tensor) -> tuple[Tensor, list[Tensor]]:
        logits, *hidden = half(_half_images(images))
        return logits.float(), hidden

    return look


def _halved(model: nn.Module, points: Sequence[str], classes: int | None) -> Observed:
    """Return what looks into a copy in float16."""
    half = copy.deepcopy(model).eval().half().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return _observed(half, points, classes)


def _observed(model: nn.Module, points: Sequence[str], classes: int | None) -> Observed:
    network = as_logits(model, classes)
    dtype = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)

    def look(images: Tensor) -> tuple[Tensor, list[Tensor]]:
        with recording(model, points) as hidden:
            logits = network(images.to(dtype))
        return logits.float(), [hidden[point] for point in points]

    return look


def _plain(model: nn.Module, classes: int | None) -> LogitModel:
    laid_out = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return as_logits(laid_out, classes)


class _Half:
    """The model in float16, its logits in float32. Gradients keep their meaning however small: each is scaled."""

    def __init__(self, model: nn.Module, x: Tensor, classes: int | None, batch: int, fused: bool) -> None:
        half = halve(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._net = {True: as_logits(half, classes), False: as_logits(fuse(half) if fused else half, classes)}
        self._batch, self._unit = batch, max(batch // SIZES, 1)
        self._graphs: dict[tuple[int, bool], LogitModel] | None = None
        if _launch_bound(self, x[:batch]):
            self._graphs = {}

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) > self._batch:
            raise ValueError(f"{len(x)} images at once; this copy was prepared for {self._batch}")
        border = _Border(len(x), min(-(-len(x) // self._unit) * self._unit, self._batch))
        inside: Tensor = _Enter.apply(x, border)  # type: ignore[no-untyped-call]
        logits: Tensor = _Leave.apply(self._network(inside)(inside), border)  # type: ignore[no-untyped-call]
        return logits

    def _network(self, inside: Tensor) -> LogitModel:
        tracked = inside.requires_grad and torch.is_grad_enabled()
        if self._graphs is None:
            return self._net[tracked]
        key = len(inside), tracked
        if key not in self._graphs:
            self._graphs[key] = _Graphed(self._net[tracked], inside.detach().clone().requires_grad_(tracked))
        return self._graphs[key]


class _Border:
    """What the two sides of the float16 part share: how many images there are, and how gradients are scaled."""

    def __init__(self, images: int, size: int) -> None:
        self.images, self.size = images, size
        self.scale: Tensor | None = None


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, border: _Border) -> Tensor:
        ctx.border = border
        return _filled(x, border.size).to(torch.float16).contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        border = ctx.border
        of_images = gradient[: border.images].float().contiguous()
        return of_images / border.scale.view(-1, *(1,) * (of_images.dim() - 1)), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, border: _Border) -> Tensor:
        ctx.border, ctx.dtype = border, logits.dtype
        return logits[: border.images].to(torch.float32, copy=True)  # a graph overwrites its own

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        border = ctx.border
        border.scale = LARGEST_GRADIENT / gradient.abs().amax(1).clamp_min(_TINY)
        return _filled(gradient * border.scale[:, None], border.size).to(ctx.dtype), None


def _filled(rows: Tensor, size: int) -> Tensor:
    if len(rows) == size:
        return rows
    return torch.cat([rows, rows.new_zeros(size - len(rows), *rows.shape[1:])])


class _Graphed:
    """A network on batches like `sample` as CUDA graphs, there and back. Each call overwrites what the last returned.

    torch's own way of making them gives `autograd.grad` a gradient, for which it loads sympy, which takes two seconds.
    """

    def __init__(self, net: LogitModel, sample: Tensor) -> None:
        self.sample = sample
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")  # only while they are made
            self._warm_up(net)
            self._record(net)

    def _warm_up(self, net: LogitModel) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                output = self._logits(net)
                self._gradient(output, torch.zeros_like(output))
        torch.cuda.current_stream().wait_stream(side)

    def _record(self, net: LogitModel) -> None:
        self.there, self.back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.there):
            self.output = self._logits(net)
        self.given = torch.zeros_like(self.output)
        if self.sample.requires_grad:
            with torch.cuda.graph(self.back, pool=self.there.pool()):
                self.gradient = self._gradient(self.output, self.given)

    def _logits(self, net: LogitModel) -> Tensor:
        with torch.set_grad_enabled(self.sample.requires_grad):
            return net(self.sample)

    def _gradient(self, output: Tensor, given: Tensor) -> Tensor | None:
        """Return the gradient of the images; the sum is not read, so it may well be infinite in float16."""
        return torch.autograd.grad((output * given).sum(), self.sample)[0] if self.sample.requires_grad else None

    def __call__(self, x: Tensor) -> Tensor:
        return cast(Tensor, _Replay.apply(x, self))  # type: ignore[no-untyped-call]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, graphs: _Graphed) -> Tensor:
        ctx.graphs = graphs
        graphs.sample.copy_(x)
        graphs.there.replay()
        return graphs.output.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        graphs = ctx.graphs
        graphs.given.copy_(gradient)
        graphs.back.replay()
        return graphs.gradient, None


def _launch_bound(model: LogitModel, x: Tensor) -> bool:
    """Tell whether the host takes most of the time of a forward and backward pass to ask for it."""
    for _ in range(3):
        _gradient(model, x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    _gradient(model, x)
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return launched - start > _LAUNCH_BOUND * (time.perf_counter() - start)


def _agrees(fast: LogitModel, model: LogitModel, x: Tensor) -> bool:
    """Tell whether logits and input gradients are those of the model, up to what lower precision costs."""
    if not _close(fast, model, x):
        return False
    # Away from the images: on a flat background max-pooling has ties, and either gradient is right.
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    near = torch.lerp(x, noise, 0.1)
    a, b = _gradient(fast, near).flatten(1), _gradient(model, near).flatten(1)
    # Scaled first: the squares of small gradients are 0 in float32.
    a, b = (g / g.abs().amax(1, keepdim=True).clamp_min(_TINY) for g in (a, b))
    return bool(nn.functional.cosine_similarity(a, b).mean() >= _ALIGNED) or not bool(b.any())


@torch.no_grad()
def _close(fast: LogitModel, model: LogitModel, x: Tensor) -> bool:
    return _near(fast(x), model(x))


def _near(approximate: Tensor, exact: Tensor) -> bool:
    """Tell whether logits are the same, up to what lower precision costs."""
    spread = exact.std(1).mean().clamp_min(_TINY)
    return bool((approximate - exact).abs().max() <= _CLOSE * spread + 1e-5)


def _sees_the_same(fast: Observed, model: Observed, x: Tensor) -> bool:
    """Tell whether logits and hidden activations are those of the model, up to what lower precision costs.

    Channel by channel, as they are matched: a weak one that is wrong would not be seen in the norm of its layer.
    """
    (logits, found), (right, wanted) = fast(x), model(x)
    if not _near(logits, right) or [layer.shape for layer in found] != [layer.shape for layer in wanted]:
        return False
    for layer, exact in zip(found, wanted, strict=True):
        others = [axis for axis in range(exact.dim()) if axis != (1 if exact.dim() == 4 else exact.dim() - 1)]
        error, size = ((layer.float() - exact).square().mean(others), exact.float().square().mean(others))
        if not bool((error <= _CLOSE**2 * (size + _FAINT * size.mean()) + _TINY).all()):
            return False
    return True


def _gradient(model: LogitModel, x: Tensor) -> Tensor:
    """Return the gradient of the logits' variance: smooth, while rounding can change which of two near logits leads."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).var(1).sum(), x)
    return gradient
