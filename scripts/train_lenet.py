"""Train the embedded robust LeNet: PGD adversarial training (Madry et al. 2018) on the full MNIST, l∞ 0.3.

    python scripts/train_lenet.py --folder MNIST_FOLDER --out runs/lenet

The model with the lowest adversarial loss on 5,000 held-out training images is kept, evaluated on the test set,
and written in fp16 to OUT/lenet-mnist-linf-0.3.safetensors, as it lies in src/pwoa/models/embedded.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from pwoa.attacks import pgd
from pwoa.data import load_data
from pwoa.devices import choose_device, device_name
from pwoa.evaluation import robustness
from pwoa.models import build, load_state
from pwoa.progress import ConsoleProgress
from pwoa.recipe import Recipe, Threat
from pwoa.run import Run, describe_model
from pwoa.training import Batch, Engine, Loss, Material, Stage


class AdversarialTraining(Stage):
    """Cross-entropy on PGD examples of the model as it is, within a radius that grows over the first epochs.

    At the whole radius from the start, the training stays at a constant answer.
    """

    name = "pgd-at"
    growing = 10

    def __init__(self, model: nn.Module, threat: Threat, steps: int, epochs: int, learning_rate: float) -> None:
        self.epochs = epochs
        self.learning_rate = learning_rate
        self._model = model
        self._threat = self._now = threat
        self._steps = steps

    def before_epoch(self, epoch: int) -> None:
        share = min(1.0, (epoch + 1) / self.growing)
        self._now = replace(self._threat, radius=share * self._threat.radius, step=share * self._threat.step)

    def loss(self, batch: Batch) -> Loss:
        threat = self._now if self._model.training else self._threat
        adversarial = pgd(self._model, batch.x, batch.y, threat, self._steps)
        logits = self._model(adversarial)
        loss = F.cross_entropy(logits, batch.y)
        return Loss(loss, {"adversarial": loss}, logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="the official MNIST files (default: as `pwoa data get mnist` finds them)")
    parser.add_argument("--out", default="runs/lenet")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=20, help="PGD steps in training; the test has 20 of 0.01")
    parser.add_argument("--step-size", type=float, default=0.03)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    device = choose_device("auto")
    data = load_data(options.data, folder=options.folder).to(device)
    recipe = Recipe().with_settings(
        {
            "data.name": options.data,
            "data.validation": 0,
            "threat.radius": 0.3,
            "threat.step": 0.01,
            "training.batch": options.batch,
            "training.seed": options.seed,
            "training.average": 0.998,
            "evaluation.attacks": ["natural", "fgsm", "pgd10", "pgd20", "cw", "pgd100"],
        }
    )
    recipe = recipe.for_images(len(data.train))
    torch.manual_seed(options.seed)
    model = build("lenet", data.classes, 1).to(device)
    material = Material.of(data, recipe, device)
    run = Run(options.out)
    identity = {key: str(value) for key, value in vars(options).items() if key not in ("folder", "out")}
    run.check(recipe, identity)
    run.begin(recipe, identity)
    training = Threat(radius=0.3, step=options.step_size)
    stage = AdversarialTraining(model, training, options.steps, options.epochs, options.learning_rate)
    engine = Engine(model, [stage], material, recipe.training, run, ConsoleProgress())
    engine.train()

    half = {name: value.half().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(half, Path(options.out) / "lenet-mnist-linf-0.3.safetensors")
    load_state(model, {name: value.float() for name, value in half.items()}, "the fp16 copy")
    scores = robustness(model, data.test, recipe.threat, recipe.evaluation.attacks)
    row = {
        **vars(options),
        "folder": None,
        **scores.accuracy,
        "images": scores.images,
        "seconds": engine.seconds,
    }
    row |= {"device": device_name(device)}
    run.save_model(model, describe_model(model, data.classes, 1))
    run.finish(row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
