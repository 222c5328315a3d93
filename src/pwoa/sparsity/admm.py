"""The ADMM variables of the search (the paper's Appendix A): auxiliary Z = θ', scaled dual U, penalty ρ."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pwoa.sparsity.constraint import Constraint


class Admm:
    """Splits min f(θ) subject to θ_l ∈ S_l into steps on f(θ) + Σ ρ/2 ‖θ_l − Z_l + U_l‖² and projections."""

    def __init__(
        self,
        constraint: Constraint,
        rho: float = 0.01,
        growth: float = 1.35,
        limit: float = 1.0,
    ) -> None:
        self._growth = growth
        self._limit = limit
        self._constraint = constraint
        self._names = list(constraint.weights)
        self._weights: list[Tensor] = list(constraint.weights.values())
        self._dual = [torch.zeros_like(weight) for weight in self._weights]
        self._auxiliary = [torch.zeros_like(weight) for weight in self._weights]
        self._residual: list[Tensor] = []
        self._strength = self._weights[0].detach().new_tensor(rho)  # a recorded step reads ρ from here
        self.rho = rho
        self._project()

    @property
    def rho(self) -> float:
        """The penalty ρ."""
        return self._rho

    @rho.setter
    def rho(self, value: float) -> None:
        self._rho = value
        self._strength.fill_(value)

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """Return L_ADMM = Σ ρ/2 ‖θ − Z + U‖², whose gradient `add_gradient` then adds."""
        self._residual = list(torch._foreach_sub(self._weights, self._auxiliary))
        torch._foreach_add_(self._residual, self._dual)
        norms = torch.stack(torch._foreach_norm(self._residual))
        return norms.square().sum() * (self._strength / 2)

    @torch.no_grad()
    def add_gradient(self) -> None:
        """Add the gradient of the penalty, ∇θ += ρ (θ − Z + U), with the residual of the last `penalty`."""
        for weight, residual in zip(self._weights, self._residual, strict=True):
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            weight.grad.addcmul_(residual, self._strength)

    @torch.no_grad()
    def update(self, constraint: Constraint | None = None) -> None:
        """Set Z ← Π(θ + U), U ← U + θ − Z, ρ ← growth · ρ (Eq. `admm-process`); Π may be of another constraint now."""
        self._constraint = constraint or self._constraint
        self._project()
        torch._foreach_add_(self._dual, self._weights)
        torch._foreach_sub_(self._dual, self._auxiliary)
        self.rho = min(self.rho * self._growth, max(self._limit, self.rho))

    @torch.no_grad()
    def _project(self) -> None:
        shifted = torch._foreach_add([weight.detach() for weight in self._weights], self._dual)
        for name, auxiliary, value in zip(self._names, self._auxiliary, shifted, strict=True):
            auxiliary.copy_(self._constraint.project(name, value))

    def state_dict(self) -> dict[str, Any]:
        return {
            "rho": self.rho,
            "auxiliary": dict(zip(self._names, self._auxiliary, strict=True)),
            "dual": dict(zip(self._names, self._dual, strict=True)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rho = state["rho"]
        for name, auxiliary, dual in zip(self._names, self._auxiliary, self._dual, strict=True):
            auxiliary.copy_(state["auxiliary"][name])
            dual.copy_(state["dual"][name])
