"""The guard of example-free runs: while it stands, nobody gets the gradient of an input.

An adversarial example is an input moved along a gradient of a loss. To make one, the input has to take part
in automatic differentiation, and this is what the guard refuses, at every place where it is asked for: at the
attacks of this package, at the door of the guarded models, at `torch.autograd.grad` and at `requires_grad_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

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
        undo.enter_context(_refusing(Tensor, "requires_grad_", _made_to_track))
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
        if not all(isinstance(value, nn.Parameter) for value in asked_for(*args, **kwargs)):
            raise ExampleFreeViolation(
                f"{name} was asked for the gradient of something that is not a parameter: this run is example-free"
            )
        return plain(*args, **kwargs)

    setattr(owner, name, guarded)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def _differentiated(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Sequence[Any]:
    return [inputs] if isinstance(inputs, Tensor) else inputs


def _made_to_track(tensor: Tensor, requires_grad: bool = True) -> Sequence[Any]:
    return [tensor] if requires_grad else []
