"""Write a pruning method of your own: distillation on noisy images, of the weights that are largest.

python examples/new_method.py
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import pwoa
from pwoa.methods import METHODS, PruningMethod
from pwoa.methods.pruning import MaskedStage
from pwoa.models.border import as_logits
from pwoa.recipe import Recipe
from pwoa.runs.folder import Result
from pwoa.sparsity import Masks
from pwoa.training import Batch, Loss, Material


class Noisy(PruningMethod):
    """Let the student say of a noisy image what the teacher says of the clean one.

    Noise is no adversarial example, for it follows no gradient: the method is example-free, which the engine checks.
    """

    name, uses = "noisy", ("finetune.",)  # what recipes call it, and which of their settings it looks at

    def __init__(self, student: nn.Module, teacher: nn.Module, material: Material, recipe: Recipe) -> None:
        super().__init__(student, teacher, material, recipe)
        ours, theirs = as_logits(student, material.classes), as_logits(teacher, material.classes)
        radius = recipe.threat.radius

        def loss(batch: Batch) -> Loss:
            noise = radius * torch.sign(torch.randn_like(batch.x))
            answer = ours((batch.x + noise).clamp(0, 1))
            with torch.no_grad():
                wanted = theirs(batch.x).softmax(1)
            distance = F.cross_entropy(answer, wanted)
            return Loss(distance, {"noisy": distance}, answer)  # what is minimised, its parts for the record, logits

        # One stage: the masks keep the largest weights of each layer, and only these are trained.
        masks = Masks(self.constraint)
        self.stages = [MaskedStage(loss, masks, recipe.finetune.epochs, recipe.finetune.learning_rate)]


def main(folder: str = "runs/examples/noisy", settings: Mapping[str, Any] | None = None) -> Result:
    """Prune the embedded LeNet by the new method; everything else, from resuming to the report, is there already."""
    METHODS["noisy"] = Noisy
    quick = {
        "data.images": 2000,
        "data.validation": 200,
        "evaluation.images": 200,
        "evaluation.strong": 0,
        "evaluation.checks": False,
    }
    result = pwoa.prune(
        "embedded", "mnist-mini", method="noisy", recipe="demo", settings=quick | dict(settings or {}), folder=folder
    )
    print("example-free:", result.summary["example_free"])
    print(result)
    return result


if __name__ == "__main__":
    main()
