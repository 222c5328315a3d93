"""The copy that attacks search on: who gets one, and what its float16 costs. On a CPU, where float16 is only slow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.data.images import Data
from pwoa.models import inference
from pwoa.models.border import LogitModel
from pwoa.models.folding import _ConvRelu, fold
from pwoa.models.inference import _agrees, _Half, attack_copy
from tests.tape import Tape

Rule = Callable[[Any, Tensor], Any]
CLASSES = 3


class Net(nn.Module):
    """A convolution with batch norm, two hidden layers, and a rule that makes its output of the image."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.out = nn.Linear(4 * 6 * 6, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.rule(self, x)

    def logits(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm(self.conv(x)))
        logits: Tensor = self.out(F.relu(self.second(hidden) + hidden).flatten(1))
        return logits

    def nearest_to_zero(self, x: Tensor) -> Tensor:
        """Of all that goes into a ReLU, for each image."""
        first = self.norm(self.conv(x))
        second = self.second(F.relu(first)) + F.relu(first)
        return torch.cat([first, second], 1).abs().flatten(1).amin(1)


def net(rule: Rule = Net.logits) -> Net:
    torch.manual_seed(0)
    model = Net(rule)
    nn.init.normal_(model.norm.bias)
    nn.init.uniform_(model.norm.weight, 0.5, 2)
    model.norm.running_mean = torch.rand(4) - 0.5
    model.norm.running_var = torch.rand(4) + 0.5
    return model.eval()


def images(n: int) -> Tensor:
    """Images on which float16 switches no ReLU of the net: there the gradient, too, is the same up to rounding."""
    x = torch.rand(500, 1, 6, 6, generator=torch.Generator().manual_seed(1)).half().float()
    return x[net().nearest_to_zero(x).topk(n).indices]


X = images(16)
Y = torch.arange(16) % CLASSES


def gradient(model: LogitModel, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    x = x.detach().requires_grad_()
    (found,) = torch.autograd.grad(loss(model(x)), x)
    return found


def cross_entropy(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, Y[: len(logits)], reduction="sum")


def assert_near(mine: Tensor, its: Tensor, relative: float = 0.02) -> None:
    """Image by image: the difference is a small part of the whole, so direction and length are right."""
    size = its.double().flatten(1).norm(dim=1)
    assert bool(torch.isfinite(mine).all())
    assert bool((size > 0).all())
    assert bool(((mine.double() - its.double()).flatten(1).norm(dim=1) <= relative * size).all())


# Who gets a copy


def test_a_trained_network_gets_a_copy_that_says_the_same(tiny_teacher: nn.Module, tiny_data: Data) -> None:
    x, _ = tiny_data.test.batch(torch.arange(48))
    fast = attack_copy(tiny_teacher, x)
    assert fast is not None
    assert not isinstance(fast, nn.Module)
    torch.testing.assert_close(fast(x), tiny_teacher(x), rtol=1e-5, atol=1e-5)
    assert_near(gradient(fast, x, torch.sum), gradient(tiny_teacher, x, torch.sum), 1e-4)


@pytest.mark.parametrize(
    "rule",
    [
        lambda model, x: (x.flatten(1), model.logits(x)),
        lambda model, x: {"logits": model.logits(x), "image": x},
        lambda model, x: model.logits(x) if x.sum() > 0 else x.flatten(1),  # cannot be traced
        lambda model, x: model.logits(x.detach() + 0 * x),  # has a gradient of 0
        lambda model, x: 1e-12 * model.logits(x),
    ],
    ids=["tuple", "dict", "control flow", "no gradient", "tiny logits"],
)
def test_other_models_get_a_copy_too(rule: Rule) -> None:
    model = net(rule)
    fast = attack_copy(model, X, CLASSES)
    assert fast is not None
    wanted = model(X)
    wanted = wanted[1] if isinstance(wanted, tuple) else wanted["logits"] if isinstance(wanted, dict) else wanted
    torch.testing.assert_close(fast(X), wanted, rtol=1e-4, atol=1e-4 * float(wanted.detach().std()))


def frozen_in_part(model: Net, x: Tensor) -> Tensor:
    with torch.no_grad():  # which a traced copy does not know of
        strong = model.logits(x)
    weak: Tensor = model.out(model.second(model.conv(x)).flatten(1))
    return strong + 0.1 * weak


def changed_in_place(model: Net, x: Tensor) -> Tensor:
    x = x.clone()
    y = x
    y += 0.5  # a traced copy adds to y alone
    return model.logits(x)


@pytest.mark.parametrize(
    "rule",
    [
        lambda model, x: model.logits(x if isinstance(x, Tensor) else 1 - x),
        lambda model, x: F.dropout(model.logits(x), 0.5),
        lambda model, x: model.logits(x + torch.rand(1)),
        frozen_in_part,
        changed_in_place,
        lambda model, x: model.logits(x) * float("nan"),
        lambda model, x: model.logits(x)[:, :1],
        lambda model, x: (model.logits(x), -model.logits(x)),
        lambda model, x: model.logits(x).detach(),
    ],
    ids=["type", "dropout", "noise", "gradient", "in place", "nan", "one class", "ambiguous", "detached"],
)
def test_a_model_whose_copy_would_not_agree_gets_none(rule: Rule) -> None:
    assert attack_copy(net(rule), X, CLASSES) is None


def test_a_norm_folded_along_the_wrong_axis_is_noticed() -> None:
    model = nn.Sequential(nn.Flatten(0, 1), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(36, CLASSES))
    model[2].running_mean = torch.linspace(-2, 2, 6)
    assert attack_copy(model.eval(), X) is None


def test_a_model_that_cannot_be_copied_gets_none() -> None:
    class Whole(Net):
        def __deepcopy__(self, memo: object) -> Whole:
            raise RuntimeError("not to be copied")

    assert attack_copy(Whole(Net.logits).eval(), X) is None


def test_a_model_that_is_copied_badly_gets_none() -> None:
    class Forgetful(Net):
        def __deepcopy__(self, memo: object) -> Net:
            return Net(self.rule)  # with other weights

    assert attack_copy(Forgetful(Net.logits).eval(), X) is None


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_not_touched(training: bool) -> None:
    model = net().train(training)
    model.conv.requires_grad_(False)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    fast = attack_copy(model, X)
    assert fast is not None
    fast(X.clone().requires_grad_()).sum().backward()
    assert [weight.requires_grad for weight in model.parameters()] == [False] * 2 + [True] * 6
    assert all(weight.grad is None for weight in model.parameters())
    assert [module.training for module in model.modules()] == [training] * 5
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(fast(X), model.eval()(X), rtol=1e-5, atol=1e-5)  # which is that of eval mode


def test_the_copy_stays_as_it_was_made() -> None:
    model = net()
    fast = attack_copy(model, X)
    assert fast is not None
    logits = fast(X)
    nn.init.zeros_(model.out.weight)
    assert torch.equal(fast(X), logits)
    assert not fast(X).requires_grad


class OnGPU(Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(
    ("behaviour", "tried"),
    [
        ({True: "right", False: "right"}, [True]),
        ({True: "wrong", False: "right"}, [True, False]),
        ({True: "raises", False: "right"}, [True, False]),
        ({True: "raises", False: "wrong"}, [True, False]),
    ],
)
def test_on_a_gpu_the_fastest_that_agrees_is_taken(
    behaviour: dict[bool, str], tried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    made: list[LogitModel] = []

    def half(light: nn.Module, x: Tensor, classes: int | None, batch: int, fuse: bool) -> LogitModel:
        assert (classes, batch) == (CLASSES, 7)
        asked.append(fuse)
        if behaviour[fuse] == "raises":
            raise RuntimeError("no such kernel")
        made.append(lambda x: light(x) if behaviour[fuse] == "right" else -light(x))
        return made[-1]

    monkeypatch.setattr(inference, "_Half", half)
    fast = attack_copy(net(), X.as_subclass(OnGPU), CLASSES, batch=7)
    assert asked == tried
    assert fast is not None
    assert (fast in made) is ("right" in [behaviour[fuse] for fuse in tried])


@pytest.mark.parametrize(
    ("change", "agrees"),
    [
        (lambda z: z, True),
        (lambda z: 1.002 * z, True),
        (lambda z: z + 10, False),
        (lambda z: 1.2 * z, False),
        (lambda z: z.detach() + 0 * z, False),
        (lambda z: 2 * z.detach() - z, False),
        (lambda z: z.detach() + 1e-20 * (z - z.detach()), True),  # its direction is right
        (lambda z: z * float("nan"), False),
    ],
    ids=["same", "close", "shifted", "stretched", "no gradient", "turned", "tiny gradient", "nan"],
)
def test_what_agrees(change: Callable[[Tensor], Tensor], agrees: bool) -> None:
    model = net()
    assert _agrees(lambda x: change(model(x)), model, X) is agrees


# In float16


@pytest.fixture
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_launch_bound", lambda model, x: False)


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def half(request: pytest.FixtureRequest, no_graphs: None) -> _Half:
    return _Half(fold(net()), X, CLASSES, 16, request.param)


def test_logits_are_close_and_in_float32(half: _Half) -> None:
    logits, wanted = half(X), net()(X).detach()
    assert logits.dtype == torch.float32
    assert (logits - wanted).abs().max() <= 0.01 * wanted.std(1).mean()
    assert not torch.equal(logits, wanted)
    assert _agrees(half, net(), X)


@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e-20, 1e8, 1e25])
def test_gradients_are_right_however_small_or_large(half: _Half, scale: float) -> None:
    def loss(logits: Tensor) -> Tensor:
        return scale * cross_entropy(logits)

    assert_near(gradient(half, X, loss), gradient(net(), X, loss))


def test_each_image_has_its_own_scale(half: _Half) -> None:
    scales = torch.logspace(-25, 25, len(X))

    def loss(logits: Tensor) -> Tensor:
        return (scales * F.cross_entropy(logits, Y, reduction="none")).sum()

    assert_near(gradient(half, X, loss), gradient(net(), X, loss))


def test_the_length_of_each_gradient_is_right_as_fab_needs_it(half: _Half) -> None:
    """From one forward pass a gradient for each class, as fab's distances to the linearised boundaries."""

    def jacobian(model: LogitModel) -> list[Tensor]:
        x = X.clone().requires_grad_()
        logits = model(x)
        leads = [1e-3**label * (logits[:, label] - logits.mean(1)).sum() for label in range(CLASSES)]
        return [torch.autograd.grad(lead, x, retain_graph=True)[0] for lead in leads]

    for mine, its in zip(jacobian(half), jacobian(net()), strict=True):
        assert_near(mine, its)


def test_two_calls_do_not_share_their_scales(half: _Half) -> None:
    def loss(model: LogitModel, x: Tensor) -> Tensor:
        return 1e-9 * cross_entropy(model(x[:5])) + 1e9 * cross_entropy(model(x[5:]))

    found = gradient(lambda x: x, X, lambda x: loss(half, x))
    assert_near(found, gradient(lambda x: x, X, lambda x: loss(net(), x)))


def test_a_gradient_of_zero_stays_zero(half: _Half) -> None:
    assert not gradient(half, X, lambda z: 0 * z.sum()).any()
    mixed = gradient(half, X, lambda z: cross_entropy(z[:3]))
    assert not mixed[3:].any()
    assert_near(mixed[:3], gradient(net(), X[:3], cross_entropy))


def test_without_a_gradient_none_is_kept(half: _Half) -> None:
    x = X.clone().requires_grad_()
    with torch.no_grad():
        quiet = half(x)
    assert not quiet.requires_grad
    assert not half(X).requires_grad
    assert half(x).requires_grad
    torch.testing.assert_close(quiet, half(x).detach(), rtol=0, atol=0.01 * float(quiet.std()))


@pytest.mark.parametrize("fuse", [True, False])
def test_only_forward_passes_are_fused(fuse: bool, no_graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    half = _Half(fold(net()), X, CLASSES, 16, fuse)
    kernels: list[Tensor] = []

    def kernel(self: _ConvRelu, x: Tensor, added: Tensor | int = 0) -> Tensor:
        kernels.append(x)
        return F.relu(self.conv(x) + added)

    monkeypatch.setattr(_ConvRelu, "forward", kernel)
    gradient(half, X, cross_entropy)
    assert not kernels
    half(X)
    assert len(kernels) == (2 if fuse else 0)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 15, 16])
def test_what_is_filled_up_does_not_count(half: _Half, n: int) -> None:
    logits = half(X[:n])
    assert logits.shape == (n, CLASSES)
    torch.testing.assert_close(logits, half(X)[:n], rtol=0, atol=1e-3)
    found = gradient(half, X[:n], cross_entropy)
    assert found.shape == X[:n].shape
    assert_near(found, gradient(half, X, cross_entropy)[:n], 5e-3)
    assert_near(found, gradient(net(), X[:n], cross_entropy))


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        (16, {1: 2, 2: 2, 3: 4, 9: 10, 15: 16, 16: 16}),
        (17, {1: 2, 16: 16, 17: 17}),
        (5, {1: 1, 4: 4, 5: 5}),
        (1, {1: 1}),
    ],
)
def test_batches_are_filled_up_to_few_sizes(batch: int, sizes: dict[int, int], no_graphs: None) -> None:
    half = _Half(fold(net()), X, CLASSES, batch, fused=False)
    seen: list[Tensor] = []

    def network(x: Tensor) -> Tensor:
        seen.append(x)
        return x.flatten(1)[:, :CLASSES].float()

    half._net = {True: network, False: network}
    for n in sizes:
        x = images(n).requires_grad_()
        torch.testing.assert_close(half(x), x.flatten(1)[:, :CLASSES])
        assert torch.equal(seen[-1][:n], x.half())
        assert not seen[-1][n:].any()
        assert seen[-1].is_contiguous(memory_format=torch.channels_last)
    assert [len(x) for x in seen] == list(sizes.values())
    with pytest.raises(ValueError, match=f"{batch + 1} images at once; this copy was prepared for {batch}"):
        half(images(batch + 1))
    assert len(seen) == len(sizes)


def test_logits_outlive_the_next_call(half: _Half) -> None:
    """The network's own output need not: a CUDA graph writes to the same memory each time."""
    memory = torch.zeros(16, CLASSES)
    half._net[False] = lambda x: memory.copy_(x.flatten(1)[:, :CLASSES])
    first = half(X)
    half(1 - X)
    torch.testing.assert_close(first, X.flatten(1)[:, :CLASSES])


def test_a_model_bound_by_launches_gets_one_graph_a_size_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[tuple[int, bool]] = []

    def graphed(network: LogitModel, sample: Tensor) -> LogitModel:
        assert sample.is_leaf
        graphs.append((len(sample), sample.requires_grad))
        return network

    monkeypatch.setattr(inference, "_launch_bound", lambda model, x: True)
    monkeypatch.setattr(inference, "_Graphed", graphed)
    half = _Half(fold(net()), X, CLASSES, 16, fused=True)
    for n in (1, 2, 16, 15):
        for _ in range(2):
            half(X[:n])
            assert_near(gradient(half, X[:n], cross_entropy), gradient(net(), X[:n], cross_entropy))
    assert graphs == [(2, False), (2, True), (16, False), (16, True)]


def test_graphs_there_and_back_are_the_network_on_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tapes in place of CUDA graphs, which have the operations, not the numbers of the batch they were made on."""

    class Graph(Tape):
        def pool(self) -> None:
            pass

    still = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: still)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: still)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", partial(Graph, done=False))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool=None: graph)
    model, batches = net(), [images(4), 1 - images(4), images(4) / 2]
    graphs = inference._Graphed(model, batches[0].clone().requires_grad_())
    for x in batches:
        torch.testing.assert_close(graphs(x), model(x))
        torch.testing.assert_close(gradient(graphs, x, cross_entropy), gradient(model, x, cross_entropy))
    x = batches[1].clone().requires_grad_()
    (first,) = torch.autograd.grad(graphs(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
    only_there = inference._Graphed(model, batches[0].clone())
    for x in batches:
        torch.testing.assert_close(only_there(x), model(x))


@pytest.mark.parametrize(("launched", "finished", "bound"), [(1.0, 1.2, True), (1.0, 10.0, False)])
def test_bound_by_launches_is_where_they_take_most_of_the_time(
    launched: float, finished: float, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, launched, finished])
    monkeypatch.setattr(inference, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert inference._launch_bound(net(), X) is bound


@pytest.mark.parametrize("rule", [lambda model, x: model.logits(x) if x.sum() > 0 else x, lambda model, x: -x])
def test_a_model_that_cannot_be_halved_is_refused(rule: Rule) -> None:
    with pytest.raises(ValueError, match=r"traced|layer"):
        _Half(fold(net(rule)), X, CLASSES, 16, fused=True)


POINTS = ("norm", "second")


def hidden_net(rule: Rule = Net.logits) -> tuple[Net, inference.Observed, Tensor]:
    model, x = net(rule), images(16)
    return model, inference._observed(model, POINTS, CLASSES), x


@torch.no_grad()
def test_a_copy_of_few_kernels_sees_the_hidden_activations_of_the_model() -> None:
    model, plain, x = hidden_net()
    look = inference._fused(model, POINTS)
    assert inference._sees_the_same(look, plain, x)
    logits, hidden = look(x)
    assert (logits.dtype, {layer.dtype for layer in hidden}) == (torch.float32, {torch.float16})
    assert all(torch.allclose(a.float(), b, atol=0.02) for a, b in zip(hidden, plain(x)[1], strict=True))


@torch.no_grad()
@pytest.mark.parametrize("weak", [1.0, 0.1])
def test_a_copy_that_is_wrong_in_one_channel_of_a_layer_is_refused(weak: float) -> None:
    model, plain, x = hidden_net()
    model.norm.weight[1] *= weak
    model.norm.bias[1] *= weak

    def wrong(images: Tensor) -> tuple[Tensor, list[Tensor]]:
        logits, (first, second) = plain(images)
        first = first.clone()
        first[:, 1] = 0
        return logits, [first, second]

    assert inference._sees_the_same(plain, plain, x)
    assert not inference._sees_the_same(wrong, plain, x)
    assert not inference._sees_the_same(lambda images: (plain(images)[0] * 1.1, plain(images)[1]), plain, x)


@torch.no_grad()
def test_a_sum_in_place_that_a_hook_sees_and_a_tracer_does_not_is_refused() -> None:
    def rule(model: Net, x: Tensor) -> Tensor:
        hidden = model.norm(model.conv(x))
        hidden += model.second(torch.sin(hidden))
        logits: Tensor = model.out(F.relu(hidden).flatten(1))
        return logits

    model, plain, x = hidden_net(rule)
    assert not inference._sees_the_same(inference._fused(model, POINTS), plain, x)
    assert inference._sees_the_same(inference._halved(model, POINTS, CLASSES), plain, x)


@torch.no_grad()
def test_an_activation_in_place_is_seen_as_hooks_see_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, CLASSES)
    ).eval()
    x = images(16)
    plain = inference._observed(model, ("1",), CLASSES)
    assert bool((plain(x)[1][0] >= 0).all())  # what the normalisation gave is overwritten
    assert inference._sees_the_same(inference._fused(model, ("1",)), plain, x)
