"""The guard of example-free runs: while it stands, nobody gets the gradient of an input.

An adversarial example is an input moved along a gradient of a loss. To make one with automatic
differentiation, the input has to take part in it, and this is what the guard refuses: at the attacks of this
package, at the door of the guarded models, and at `torch.autograd.grad`.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        plain = torch.autograd.grad
        undo.callback(_install, plain)
        _install(_parameters_only(plain))
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


def _install(grad: Any) -> None:
    vars(torch.autograd)["grad"] = grad


def _parameters_only(grad: Any) -> Any:
    def guarded(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        for value in [inputs] if isinstance(inputs, Tensor) else inputs:
            if not isinstance(value, nn.Parameter):
                raise ExampleFreeViolation(
                    "torch.autograd.grad was asked for the gradient of something that is not a parameter: "
                    "this run is example-free"
                )
        return grad(outputs, inputs, *args, **kwargs)

    return guarded
