"""The guard of example-free runs: while it stands, nobody gets the gradient of an input.

An adversarial example is an input moved along a gradient of a loss. To make one, the input has to take part
in automatic differentiation, and this is what the guard refuses, at every place where it is asked for: at the
attacks of this package, at the door of the guarded models, at `torch.autograd.grad`, at `make_dual`, and where
a tensor is told to require gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

_standing: ContextVar[bool] = ContextVar("pwoa_guard", default=False)


class ExampleFreeViolation(RuntimeError):
    """An example-free run asked for the gradient of an input."""


@contextmanager
def example_free(*models: nn.Module) -> Iterator[None]:
    """While inside, asking for the gradient of an input of the models, or calling an attack, raises."""
    token = _standing.set(True)
    with ExitStack() as undo:
        undo.callback(_standing.reset, token)
        undo.enter_context(_refusing(torch.autograd, "grad", _differentiated))
        undo.enter_context(_refusing(torch.autograd.forward_ad, "make_dual", _made_to_track))
        undo.enter_context(_refusing(Tensor, "requires_grad_", _made_to_track))
        undo.enter_context(_refusing_assignment())
        for model in models:
            undo.callback(model.register_forward_pre_hook(_refuse_tracked, with_kwargs=True).remove)
        yield


def refuse_attack(name: str) -> None:
    """Called by every attack before it starts."""
    if _standing.get():
        raise ExampleFreeViolation(f"{name}: this run is example-free; no attack may run inside it")


def _refuse_tracked(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and (value.requires_grad or torch._C._functorch.is_gradtrackingtensor(value)):
            raise ExampleFreeViolation(
                f"the input of {type(module).__name__} tracks gradients: this run is example-free, "
                "its inputs must be natural examples"
            )


@contextmanager
def _refusing(owner: Any, name: str, asked_for: Callable[..., Sequence[Any]]) -> Iterator[None]:
    """While inside, `owner.name` raises when what its arguments ask a gradient for is not all parameters."""
    plain = getattr(owner, name)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not all(_harmless(value) for value in asked_for(*args, **kwargs)):
            raise ExampleFreeViolation(
                f"{name} was asked for the gradient of something that is not a parameter: this run is example-free"
            )
        return plain(*args, **kwargs)

    setattr(owner, name, guarded)
    try:
        yield
    finally:
        setattr(owner, name, plain)


@contextmanager
def _refusing_assignment() -> Iterator[None]:
    """While inside, `tensor.requires_grad = True` raises for what is not a parameter."""
    plain: Any = torch._C.TensorBase.requires_grad
    outer = vars(Tensor).get("requires_grad")  # of a guard around this one

    def assign(tensor: Tensor, value: bool) -> None:
        if value and not _harmless(tensor):
            raise ExampleFreeViolation(
                "requires_grad was set on something that is not a parameter: this run is example-free"
            )
        plain.__set__(tensor, value)

    Tensor.requires_grad = property(plain.__get__, assign)  # type: ignore[assignment]
    try:
        yield
    finally:
        del Tensor.requires_grad  # what it inherits is the plain one
        if outer is not None:
            Tensor.requires_grad = outer


def _harmless(value: Any) -> bool:
    """Return a parameter; or a tensor without values, with which the compiler traces a model."""
    return isinstance(value, (nn.Parameter, FakeTensor, FunctionalTensor)) or (
        isinstance(value, Tensor) and value.is_meta
    )


def _differentiated(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Sequence[Any]:
    return [inputs] if isinstance(inputs, Tensor) else inputs


def _made_to_track(tensor: Tensor, requires_grad: Any = True, **kwargs: Any) -> Sequence[Any]:
    return [] if requires_grad is False else [tensor]
