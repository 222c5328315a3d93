"""SGD that starts at once: torch's own loads the compiler at its first step, which takes seconds."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

_MOMENTUM = "momentum_buffer"


class Sgd:
    """SGD with momentum and weight decay: torch's fused steps to the bit, and its state, on either side of a resume."""

    def __init__(
        self, parameters: Sequence[Tensor], lr: float | Tensor, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), **options}]
        self._momenta: list[Tensor | None] = [None] * len(parameters)

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters that have a gradient."""
        group = self.param_groups[0]
        moved = [place for place, value in enumerate(group["params"]) if value.grad is not None]
        values = [group["params"][place] for place in moved]
        if group["momentum"]:  # torch's fused steps take all momenta or none, and a layer may be used first later on
            for place, value in zip(moved, values, strict=True):
                if self._momenta[place] is None:
                    self._momenta[place] = torch.zeros_like(value)
        momenta = [self._momenta[place] for place in moved] if group["momentum"] else []
        options: dict[str, Any] = {name: value for name, value in group.items() if name != "params"}
        options |= {"dampening": 0.0, "nesterov": False, "maximize": False, "fused": True}
        sgd(values, [value.grad for value in values], momenta, **options)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        assert set_to_none
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the momentum of each parameter by its place, and the options, as torch's optimizers do."""
        group = {**self.param_groups[0], "params": list(range(len(self._momenta)))}
        state = {place: {_MOMENTUM: value} for place, value in enumerate(self._momenta) if value is not None}
        return {"state": state, "param_groups": [group]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the momentum of another one over."""
        parameters = self.param_groups[0]["params"]
        if [len(group["params"]) for group in state["param_groups"]] != [len(parameters)]:
            raise ValueError("the state is of another number of parameters")
        for place, parameter in enumerate(parameters):
            value = state["state"].get(place, {}).get(_MOMENTUM)
            self._momenta[place] = None if value is None else value.to(parameter, copy=True)
