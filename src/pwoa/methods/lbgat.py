"""LBGAT (Cui et al. 2021, "Learnable boundary guided adversarial training")."""

from torch import nn
from torch.nn import functional as F

from pwoa.methods.adversarial import RobustTraining, divergence
from pwoa.models.architectures.registry import build
from pwoa.models.border import as_logits
from pwoa.models.checkpoints.files import open_checkpoint
from pwoa.models.checkpoints.fitting import fill
from pwoa.recipe.methods import LbgatSettings
from pwoa.recipe.sections import Recipe
from pwoa.threat import Threat
from pwoa.training.stage import Batch, Loss, Material

GUIDE = "resnet18"


class Lbgat(RobustTraining):
    """MSE(f(x_adv), g(x)) + CE(g(x), y) + β KL(f(x) ‖ f(x_adv)): the natural boundary of g, trained along, guides f.

    x_adv is found by PGD on the divergence, as in TRADES, also with β = 0, as in the released code. g starts from
    scratch, as it is published, or from a network trained on natural examples (`lbgat.guide`).
    """

    name, settings = "lbgat", LbgatSettings

    def __init__(self, model: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(model, material, recipe)
        pixels = material.images.pixels
        guide = build(GUIDE, material.classes, pixels.shape[1])
        if file := recipe.own_settings(LbgatSettings).guide:
            guide = fill(guide, open_checkpoint(file), file, channels=pixels.shape[1])
        guide = guide.to(pixels.device)
        self.trained = nn.ModuleDict({"robust": model, "guide": guide})
        self._guide = as_logits(guide, material.classes)

    @classmethod
    def files(cls, recipe: Recipe) -> dict[str, str]:
        guide = recipe.own_settings(LbgatSettings).guide
        return super().files(recipe) | ({"lbgat.guide": guide} if guide else {})

    def robust_loss(self, batch: Batch, threat: Threat) -> Loss:
        # Natural images go through f with β = 0 too, as in the released code: its statistics are of both kinds.
        natural, adversarial = self.both(batch.x, self.furthest(batch, threat))
        guide = self._guide(batch.x).float()
        parts = {"boundary": F.mse_loss(adversarial.float(), guide), "guide": F.cross_entropy(guide, batch.y)}
        total = parts["boundary"] + parts["guide"]
        if beta := self._recipe.beta:
            parts["divergence"] = divergence(natural, adversarial).mean()
            total = total + beta * parts["divergence"]
        return Loss(total, parts, adversarial)
