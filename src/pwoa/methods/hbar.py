"""HBaR (Wang et al. 2021, "Revisiting Hilbert-Schmidt information bottleneck for adversarial robustness")."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn import functional as F

from pwoa.errors import InputError
from pwoa.methods.adversarial import RobustTraining
from pwoa.models.hidden import hidden_points, recording
from pwoa.objectives.hsic import bottleneck
from pwoa.recipe.sections import Recipe
from pwoa.threat import Threat
from pwoa.training.stage import Batch, Loss, Material


class Hbar(RobustTraining):
    """CE(f(x_adv), y) + λx Σ HSIC(X, Z_l) − λy Σ HSIC(Y, Z_l), with X and Z_l of the adversarial examples."""

    name = "hbar"
    uses = ("objective.hsic", "objective.hsic_x", "objective.hsic_y", "objective.points")
    ignores = (*RobustTraining.ignores, "pretrain.beta")

    def __init__(self, model: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(model, material, recipe)
        self._objective, self._group = recipe.objective, recipe.training.group
        self._hidden: dict[str, Tensor] = {}
        example, _ = material.images.batch(material.validation[:2])
        self._points = hidden_points(model, example, recipe.objective.points)
        if not self._points:
            raise InputError("hbar: the model has no hidden layer to take HSIC of; use the method pgd-at")

    @contextmanager
    def running(self) -> Iterator[None]:
        with recording(self._model, self._points) as self._hidden:
            yield

    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        adversarial = self.attacked(batch, threat)
        logits = self._logits(adversarial)
        loss = F.cross_entropy(logits.float(), batch.y)
        layers, objective = [self._hidden.pop(point) for point in self._points], self._objective
        dependence = bottleneck(adversarial, batch.y, layers, objective.hsic == "normalised", self._group)
        x, y = dependence.x.sum(), dependence.y.sum()
        total = loss + objective.hsic_x * x - objective.hsic_y * y
        return Loss(total, {"adversarial": loss, "hsic_x": x, "hsic_y": y}, logits)
