"""A folded, halved or fused copy is the same function; where that is not certain, nothing is folded or fused."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrizations, prune

from pwoa.models.architectures.registry import ARCHITECTURES, build
from pwoa.models.border import as_logits
from pwoa.models.folding import _ConvRelu, fold, fuse, halve
from pwoa.models.hidden import hidden_points, recording

X = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GREY = ("lenet", "smallcnn")
"""Architectures for images of 1×28×28; the others take 3×32×32."""

Rule = Callable[[Any, Tensor], Any]
Model = TypeVar("Model", bound=nn.Module)


class Net(nn.Module):
    """Some layers, and a rule that says how they make features of an image; pooled, they give three logits."""

    out: nn.Linear

    def __init__(self, rule: Rule, width: int = 4, **layers: nn.Module) -> None:
        super().__init__()
        self.rule = rule
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.out = nn.Linear(4 * width, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.pool(self.rule(self, x)).flatten(1))


def chain(*layers: nn.Module, width: int = 4) -> Net:
    return Net(lambda net, x: net.layers(x), width, layers=nn.Sequential(*layers))


def conv(inputs: int = 2, width: int = 4, size: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, width, size, **{"padding": size // 2} | options)


def norm(width: int = 4, **options: Any) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, **options)


def settled(model: Model, dtype: torch.dtype = torch.float64) -> Model:
    """The model in eval mode, all its weights and statistics as if it had been trained for a while."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.3, generator=generator)
        for module in norms(model):
            if module.running_mean is not None and module.running_var is not None:
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
            if module.affine:
                module.weight.uniform_(-1.5, 1.5, generator=generator)
    return model.to(dtype).eval()


def norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def kernels(model: nn.Module) -> int:
    """How many convolutions are one kernel with their ReLU."""
    return sum(isinstance(module, _ConvRelu) for module in model.modules())


def logits_and_gradient(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    logits = as_logits(model, 3)(x)
    weights = torch.linspace(-1, 2, logits.numel()).to(logits).view_as(logits)
    (gradient,) = torch.autograd.grad((logits * weights).sum(), x)
    return logits.detach(), gradient


def assert_same(mine: nn.Module, its: nn.Module, x: Tensor = X, relative: float = 1e-10) -> None:
    """In every logit and every input gradient, up to a part of the largest."""
    for a, b in zip(logits_and_gradient(mine, x), logits_and_gradient(its, x), strict=True):
        assert b.abs().max() > 1e-6
        torch.testing.assert_close(a, b, rtol=0, atol=relative * float(b.abs().max()))


FOLDED: dict[str, Callable[[], nn.Module]] = {
    "bias": lambda: chain(conv(), norm(), nn.ReLU()),
    "no bias": lambda: chain(conv(bias=False), norm(), nn.ReLU()),
    "not affine": lambda: chain(conv(), norm(affine=False), nn.ReLU()),
    "not affine, no bias": lambda: chain(conv(bias=False), norm(affine=False), nn.ReLU()),
    "no relu": lambda: chain(conv(), norm()),
    "large eps": lambda: chain(conv(), norm(eps=0.5)),
    "groups": lambda: chain(conv(groups=2), norm(), nn.ReLU(), conv(4, groups=4), norm()),
    "stride": lambda: chain(conv(stride=2), norm(), nn.ReLU()),
    "dilation": lambda: chain(conv(dilation=2, padding=0), norm(), nn.ReLU()),
    "padding": lambda: chain(conv(padding="same", padding_mode="reflect"), norm(), nn.ReLU()),
    "two norms": lambda: chain(conv(), norm(), norm(), nn.ReLU()),
    "deep": lambda: chain(nn.Sequential(conv(), norm(), nn.ReLU()), nn.Sequential(conv(4), norm())),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)),
    "linear, no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 3, bias=False), nn.BatchNorm1d(3)),
    "linear, not affine": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 3), nn.BatchNorm1d(3, affine=False)),
    "shared weights": lambda: Net(  # but two layers
        lambda net, x: net.na(net.a(x)) + net.nb(net.b(x)), a=(a := conv()), b=tied(a), na=norm(), nb=norm()
    ),
    "residual": lambda: Net(
        lambda net, x: F.relu(net.na(net.a(x)) + net.nb(net.b(x))), a=conv(), b=conv(size=1), na=norm(), nb=norm()
    ),
}

LEFT: dict[str, Callable[[], nn.Module]] = {
    "used twice": lambda: Net(
        lambda net, x: net.na(net.conv(x)) + net.nb(net.conv(1 - x)), conv=conv(), na=norm(), nb=norm()
    ),
    "one norm for two": lambda: Net(
        lambda net, x: net.norm(net.a(x)) + net.norm(net.b(x)), a=conv(), b=conv(), norm=norm()
    ),
    "output used elsewhere": lambda: Net(lambda net, x: net.norm(y := net.conv(x)) + y, conv=conv(), norm=norm()),
    "weights used elsewhere": lambda: Net(
        lambda net, x: net.norm(net.conv(x)) * net.conv.weight.sum(), conv=conv(), norm=norm()
    ),
    "no statistics": lambda: chain(conv(), norm(track_running_stats=False), nn.ReLU()),
    "norm first": lambda: chain(norm(2), conv(), nn.ReLU()),
    "something between": lambda: chain(conv(), nn.ReLU(), norm()),
    "other layers": lambda: chain(nn.ConvTranspose2d(2, 4, 3), norm()),
    "other norms": lambda: chain(conv(), nn.GroupNorm(2, 4)),
    "own convolution": lambda: chain(Doubled(2, 4, 3), norm()),
    "parametrised": lambda: chain(parametrizations.weight_norm(conv()), norm()),
    "linear over rows": lambda: Net(  # normalised over another axis than the weights are of
        lambda net, x: net.norm(net.linear(x.flatten(2))).unflatten(2, (4, 4)),
        width=2,
        linear=nn.Linear(64, 16),
        norm=nn.BatchNorm1d(2),
    ),
}


class Doubled(nn.Conv2d):
    """A convolution that is more than its weights say."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def tied(layer: nn.Conv2d) -> nn.Conv2d:
    other = conv(layer.in_channels)
    other.weight = layer.weight
    return other


@pytest.mark.parametrize("name", FOLDED)
def test_batch_norms_are_folded_and_nothing_changes(name: str) -> None:
    model = settled(FOLDED[name]())
    light = fold(model)
    assert norms(model)
    assert not norms(light)
    assert_same(light, model)


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_folded_is_left_and_nothing_changes(name: str) -> None:
    model = settled(LEFT[name]())
    light = fold(model)
    assert isinstance(light, fx.GraphModule)
    assert len(norms(light)) == len(norms(model))
    assert_same(light, model)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_registered_architectures_are_folded_as_far_as_can_be(name: str) -> None:
    shape = (1, 28, 28) if name in GREY else (3, 32, 32)
    model = settled(build(name, 3, shape[0], width=0.05))
    light = fold(model)
    assert isinstance(light, fx.GraphModule)
    for node in light.graph.nodes:
        if node.op == "call_module" and isinstance(light.get_submodule(node.target), _BatchNorm):
            (before,) = node.all_input_nodes
            assert before.op != "call_module" or len(before.users) > 1
    x = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)).double()
    assert_same(light, model, x)
    assert_same(fuse(light), model, x)


@st.composite
def small_nets(draw: st.DrawFn) -> nn.Module:
    layers: list[nn.Module] = []
    width = 2
    for _ in range(draw(st.integers(1, 3))):
        groups, per_group = draw(st.sampled_from([1, 2])), draw(st.integers(1, 2))
        size, dilation = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 2))
        options = {"stride": draw(st.integers(1, 2)), "dilation": dilation, "padding": dilation * (size // 2)}
        layers.append(conv(width, 2 * per_group, size, groups=groups, bias=draw(st.booleans()), **options))
        width = 2 * per_group
        if draw(st.booleans()):
            layers.append(norm(width, affine=draw(st.booleans()), track_running_stats=draw(st.booleans())))
        layers += draw(st.sampled_from([[], [nn.ReLU()], [nn.ReLU(inplace=True)]]))
    return settled(chain(*layers, width=width))


@settings(deadline=None, max_examples=30)
@given(small_nets())
def test_any_small_net_stays_the_same(model: nn.Module) -> None:
    light = fold(model)
    assert isinstance(light, fx.GraphModule)
    for mine in (light, fuse(light)):
        for a, b in zip(logits_and_gradient(mine, X), logits_and_gradient(model, X), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10 * (1 + float(b.abs().max())))


@pytest.mark.parametrize(
    "output", [lambda z: (z, z[:, :2]), lambda z: [z], lambda z: {"logits": z, "aux": z.exp()}, lambda z: {"out": z}]
)
def test_models_that_return_several_things(output: Callable[[Tensor], Any]) -> None:
    class Several(Net):
        def forward(self, x: Tensor) -> Any:
            return output(super().forward(x))

    model = settled(Several(lambda net, x: net.norm(net.conv(x)), conv=conv(), norm=norm()))
    light = fold(model)
    assert not norms(light)
    assert type(light(X)) is type(model(X))
    assert_same(light, model)


def test_a_model_that_cannot_be_traced_comes_back_as_a_frozen_copy() -> None:
    def rule(net: Any, x: Tensor) -> Tensor:
        y: Tensor = net.norm(net.conv(x))
        return y if x.mean() > 0.5 else -y

    model = settled(Net(rule, conv=conv(), norm=norm())).train()
    light = fold(model)
    assert not isinstance(light, fx.GraphModule)
    assert type(light) is Net
    assert not any(module.training for module in light.modules())
    assert not any(weight.requires_grad for weight in light.parameters())
    model.eval()
    assert_same(light, model, X)
    assert_same(light, model, X / 2)


def test_a_model_in_training_mode_is_folded_as_in_eval_mode() -> None:
    model = settled(chain(conv(), norm(), nn.ReLU(), nn.Dropout(0.5))).train()
    light = fold(model)
    assert not norms(light)
    assert model.training
    assert_same(light, model.eval())


@pytest.mark.parametrize("training", [True, False])
def test_the_model_itself_is_never_changed(training: bool) -> None:
    model = settled(chain(conv(bias=False), norm(), nn.ReLU(), conv(4), nn.ReLU()), torch.float32).train(training)
    model.requires_grad_(True)
    first = next(model.parameters()).requires_grad_(False)
    first.grad = torch.ones_like(first)
    seen: list[object] = []
    model.out.register_forward_hook(lambda module, args, output: seen.append(output))

    def everything() -> list[Any]:
        states = [(name, value.clone()) for name, value in model.state_dict().items()]
        marks = [(weight.requires_grad, weight.grad is None) for weight in model.parameters()]
        modules = [(module.training, len(module._forward_hooks), type(module)) for module in model.modules()]
        return [states, marks, modules]

    (before, *marks), light = everything(), fold(model)
    assert isinstance(light, fx.GraphModule)
    copies = [light, halve(light), fuse(light), fuse(halve(light))]
    assert not seen
    for copy in copies:
        assert not any(weight.requires_grad for weight in copy.parameters())
        with torch.no_grad():
            for value in copy.state_dict().values():
                value.fill_(7)
    (after, *marks_after) = everything()
    assert marks_after == marks
    assert [name for name, _ in after] == [name for name, _ in before]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(after, before, strict=True))


def test_a_copy_does_not_change_what_it_is_made_from() -> None:
    light = fold(settled(chain(conv(bias=False), norm(), nn.ReLU(), conv(4, bias=False), nn.ReLU()), torch.float32))
    assert isinstance(light, fx.GraphModule)
    code, names, x = light.code, [*light.state_dict()], X.float()
    logits = light(x)
    with torch.no_grad():
        for copy in (halve(light), fuse(light)):
            for weight in copy.parameters():
                weight.fill_(7)
    assert light.code == code
    assert [*light.state_dict()] == names
    assert {value.dtype for value in light.state_dict().values()} == {torch.float32}
    assert torch.equal(light(x), logits)


# Hooks: of a layer they stay with the layer, else nothing is folded.


def hooked(place: str) -> nn.Module:
    model = chain(conv(), norm(), nn.ReLU(), conv(4), nn.ReLU())
    module = model.get_submodule(place)
    module.register_forward_pre_hook(lambda module, args: (args[0] - 0.2,))
    module.register_forward_hook(lambda module, args, output: 2 * output)
    return settled(model)


@pytest.mark.parametrize("place", ["", "layers", *(f"layers.{i}" for i in range(5)), "out"])
def test_hooks_that_change_what_goes_through_are_kept(place: str) -> None:
    model = hooked(place)
    light = fold(model)
    assert isinstance(light, fx.GraphModule) is place.startswith(("layers.", "out"))
    assert len(norms(light)) == (place in ("", "layers", "layers.0", "layers.1"))
    assert_same(light, model)
    if isinstance(light, fx.GraphModule):
        assert kernels(fuse(light)) == (2 if place == "out" else 1)
        assert_same(fuse(light), model)


def test_a_pruned_layer_keeps_its_mask() -> None:
    model = settled(chain(conv(), norm(), nn.ReLU()))
    prune.l1_unstructured(model.get_submodule("layers.0"), "weight", 0.5)
    with torch.no_grad():
        model(X)  # else PyTorch cannot copy it
    assert_same(fold(model), model)


# Halved


def traced(model: nn.Module) -> fx.GraphModule:
    light = fold(model)
    assert isinstance(light, fx.GraphModule)
    return light


def fully_convolutional() -> nn.Module:
    return nn.Sequential(conv(), norm(), nn.ReLU(), conv(4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize(
    ("make", "last"),
    [
        (lambda: chain(conv(), norm(), nn.ReLU()), "out"),
        (lambda: chain(conv(), norm(), nn.ReLU(), conv(4), nn.ReLU()), "out"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 8), nn.ReLU(), nn.Linear(8, 3), nn.Hardtanh(-5, 5)), "3"),
        (fully_convolutional, "3"),
    ],
    ids=["linear", "deeper", "something after", "convolution"],
)
def test_a_halved_model_is_float16_but_for_its_last_layer(make: Callable[[], nn.Module], last: str) -> None:
    model = settled(make(), torch.float32)
    light = traced(model)
    half = halve(light)
    for name, value in half.state_dict().items():
        kept = name.startswith(f"{last}.")
        assert value.dtype == (torch.float32 if kept else torch.float16), name
        original = light.state_dict()[name]
        assert torch.equal(value, original if kept else original.half())
    logits, x = half(X.half()), X.half().float()
    assert logits.dtype == torch.float32
    wanted = model(x).detach()
    torch.testing.assert_close(logits, wanted, rtol=0, atol=0.01 * float(wanted.std()))


def test_logits_are_not_rounded_to_float16() -> None:
    model = settled(chain(conv(), norm(), nn.ReLU()), torch.float32)
    wanted = model(X.half().float()).detach()
    with torch.no_grad():
        model.out.bias.add_(2000)  # in float16 its neighbours are 1 and 2 away
    logits = halve(traced(model))(X.half()) - 2000
    torch.testing.assert_close(logits, wanted, rtol=0, atol=0.02 * float(wanted.std()))


def test_buffers_are_halved_too() -> None:
    model = Net(lambda net, x: net.conv((x - net.mean) / net.std), conv=conv())
    model.register_buffer("mean", torch.full((1, 2, 1, 1), 0.5))
    model.register_buffer("std", torch.full((1, 2, 1, 1), 0.25))
    settled(model, torch.float32)
    half = halve(traced(model))
    assert half.get_buffer("mean").dtype == torch.float16
    wanted = model(X.half().float()).detach()
    torch.testing.assert_close(half(X.half()), wanted, rtol=0, atol=0.01 * float(wanted.std()))


class Product(nn.Module):
    """A model without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(128, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


def no_tracing() -> nn.Module:
    return Net(lambda net, x: net.conv(x) if x.mean() > 0 else x, conv=conv())


def last_layer_twice() -> nn.Module:
    shared = nn.Linear(128, 128)
    return nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared)


@pytest.mark.parametrize(
    ("make", "message"),
    [(no_tracing, "could not be traced"), (last_layer_twice, "more than once"), (Product, "no last layer")],
)
def test_what_cannot_be_halved_is_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        halve(fold(make()))


# Fused

FUSED: dict[str, tuple[Rule, int]] = {
    "module": (lambda net, x: net.relu(net.a(x)), 1),
    "module, in place": (lambda net, x: net.relu_(net.a(x)), 1),
    "function": (lambda net, x: F.relu(net.a(x)), 1),
    "function, in place": (lambda net, x: F.relu(net.a(x), inplace=True), 1),
    "torch": (lambda net, x: torch.relu(net.a(x)), 1),
    "method": (lambda net, x: net.a(x).relu(), 1),
    "method, in place": (lambda net, x: net.a(x).relu_(), 1),
    "one after another": (lambda net, x: net.relu(net.c(net.relu(net.a(x)))), 2),
    "sum": (lambda net, x: net.relu(net.a(x) + net.long(x)), 1),
    "sum, other order": (lambda net, x: net.relu(net.long(x) + net.a(x)), 1),
    "sum by torch": (lambda net, x: net.relu(torch.add(net.a(x), net.long(x))), 1),
    "sum by operator": (lambda net, x: net.relu(operator.add(net.a(x), net.long(x))), 1),
    "sum of two convolutions": (lambda net, x: net.relu(net.a(x) + net.b(x)), 1),
    "sum of two, used on": (lambda net, x: net.relu((y := net.a(x)) + net.b(x)) + y, 1),
    "sum with what it is made of": (lambda net, x: net.relu(net.c(y := net.long(x)) + y), 1),
    "sum with a constant tensor": (lambda net, x: net.relu(net.a(x) + net.shift), 1),
    "sum with a number": (lambda net, x: net.relu(net.a(x) + 0.1), 0),
    "sum with a factor": (lambda net, x: net.relu(torch.add(net.a(x), net.long(x), alpha=3)), 0),
    "sum with itself": (lambda net, x: net.relu((y := net.a(x)) + y), 0),
    "difference": (lambda net, x: net.relu(net.a(x) - net.long(x)), 0),
    "result used on": (lambda net, x: net.relu(y := net.a(x)) + y, 0),
    "sum used on": (lambda net, x: net.relu(y := net.a(x) + net.long(x)) - y, 0),
    "layer used twice": (lambda net, x: net.relu(net.a(x)) + net.relu(net.a(1 - x)), 0),
    "weights used on": (lambda net, x: net.relu(net.a(x)) * net.a.weight.sum(), 0),
    "reflecting": (lambda net, x: net.relu(net.reflect(x)), 0),
    "same": (lambda net, x: net.relu(net.same(x)), 0),
    "other activation": (lambda net, x: F.relu6(net.a(x)), 0),
    "no convolution": (lambda net, x: net.relu(net.long(x)), 0),
}


def fusing(name: str) -> tuple[nn.Module, int]:
    rule, wanted = FUSED[name]
    model = Net(
        rule,
        a=conv(stride=2),
        b=conv(stride=2, bias=False),
        c=conv(4),
        reflect=conv(padding_mode="reflect"),
        same=conv(padding="same"),
        long=nn.Sequential(nn.AvgPool2d(2), conv(size=1), nn.Tanh()),
        relu=nn.ReLU(),
        relu_=nn.ReLU(inplace=True),
    )
    model.register_buffer("shift", torch.linspace(-1, 1, 4).view(1, 4, 1, 1))
    return settled(model), wanted


@pytest.mark.parametrize("name", FUSED)
def test_a_convolution_and_its_relu_become_one(name: str) -> None:
    model, wanted = fusing(name)
    light = traced(model)
    one = fuse(light)
    assert kernels(one) == wanted
    assert len(one.graph.nodes) <= len(light.graph.nodes) - wanted
    assert_same(light, model)
    assert_same(one, model)
    assert_same(one, model)  # a second time: nothing it holds was changed by the first


def test_names_do_not_get_in_the_way() -> None:
    model = Net(
        lambda net, x: net.a_b_relu(net.a.b(x)) + net.a_b_relu(net.a_b(x)) + net.a_b_relu(x[:, :1] - 0.5),
        a=nn.ModuleDict({"b": conv()}),
        a_b=conv(),
        a_b_relu=nn.ReLU(),
    )
    settled(model)
    one = fuse(traced(model))
    assert kernels(one) == 2
    assert_same(one, model)


class OnGPU(Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": (0, 2)}, {"groups": 2, "dilation": 2, "bias": False}])
def test_the_kernel_is_given_what_it_asks_for(
    added: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stand_in(name: str) -> Callable[..., Tensor]:
        schema = getattr(torch.ops.aten, name).default._schema
        signature = inspect.Signature([inspect.Parameter(a.name, a.kind) for a in map(_Argument, schema.arguments)])

        def kernel(*args: Any) -> Tensor:
            given = signature.bind(*args).arguments
            x, z, alpha = given.pop("self"), given.pop("z", 0), given.pop("alpha", 1)
            return F.relu(F.conv2d(x, **given) + alpha * z).as_subclass(Tensor)

        return kernel

    for name in ("cudnn_convolution_relu", "cudnn_convolution_add_relu"):
        monkeypatch.setattr(torch, name, stand_in(name))
    layer = conv(**options).double().requires_grad_(False)
    wanted = layer(X)
    z = [torch.randn_like(wanted)] if added else []
    found = _ConvRelu(layer)(X.as_subclass(OnGPU), *z)
    torch.testing.assert_close(found, F.relu(sum(z, wanted)))


class _Argument:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

    def __init__(self, argument: Any) -> None:
        self.name: str = argument.name


@pytest.mark.parametrize("name", ["resnet18@0.125", "preactresnet18@0.125", "wrn-28-4@0.25", "vgg16@0.125"])
def test_a_folded_model_gives_its_hidden_activations_too(name: str) -> None:
    model = build(name, 10, 3).eval()
    points = hidden_points(model, torch.rand(2, 3, 32, 32))
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.get_buffer("running_mean").uniform_(-0.5, 0.5)
        norm.get_buffer("running_var").uniform_(0.5, 2)
    x = torch.rand(3, 3, 32, 32)
    with torch.no_grad(), recording(model, points) as hidden:
        logits = model(x)
    folded = fold(model, points)
    assert isinstance(folded, fx.GraphModule)
    for copied in (folded, fuse(folded)):
        found, *outputs = copied(x)
        assert torch.allclose(found, logits, atol=1e-4)
        for point, output in zip(points, outputs, strict=True):
            assert torch.allclose(output, hidden[point], atol=1e-4), point
    before, after = (sum(isinstance(m, nn.BatchNorm2d) for m in each.modules()) for each in (model, folded))
    assert after < before


def test_points_of_a_model_that_cannot_give_them_are_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    for model, point in ((Two(), "layer"), (nn.Sequential(nn.Linear(4, 2)), "1")):
        with pytest.raises(ValueError, match="with its points"):
            fold(model, [point])
