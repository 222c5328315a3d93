"""What is done between epochs: the loss on the validation split, and new normalisation statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pwoa.training.fast import Replayed
from pwoa.training.groups import layers_with_statistics, statistics_anew
from pwoa.training.processes import Processes
from pwoa.training.stage import Batch, Stage
from pwoa.training.steps import Meter, loss_of

if TYPE_CHECKING:
    from pwoa.training.engine import Engine
from collections.abc import Callable, Mapping, Sequence

from torch import nn

from pwoa.models.hidden import hidden_points, recording
from pwoa.objectives.hsic import bottleneck
from pwoa.training.stage import Material

STATISTICS = 2048
"""How many training images, at most, the normalisation statistics of averaged weights are taken on."""


class Validation:
    """The validation of a stage. A method may attack each batch, so these passes are recorded too."""

    def __init__(self, engine: Engine, stage: Stage) -> None:
        self._engine, self._stage, self._meter = engine, stage, Meter()
        self._generator = torch.Generator(engine.device)
        self._measured = Replayed(record=engine.records)
        self._passed = Replayed(record=engine.records, generator=self._generator)

    @torch.no_grad()
    def means(self) -> dict[str, float]:
        """The loss and its parts on the validation split, of the model as it is."""
        engine = self._engine
        engine.model.eval()
        batches = torch.split(engine.material.validation, self._at_a_time)
        among = engine.processes if len(batches) >= engine.processes.count else Processes()
        for index in batches[among.rank :: among.count]:
            self._measured(self._measure, index, self._stage.constants())
            self._meter.count(len(index))
        return self._meter.means(among)

    @torch.no_grad()
    def take_statistics(self) -> None:
        """Batch normalisation for the weights as they are, by what the stage makes of some training images.

        They are augmented, as those that the weights were trained on: without the black borders of shifted images the
        statistics are others, and a robust ResNet-18 loses four to six points under PGD.
        """
        engine, batch = self._engine, self._engine.recipe.batch
        if not layers_with_statistics(engine.model):
            return
        train = engine.material.train
        count = max(min(len(train), STATISTICS) // batch, 1) * batch
        at_a_time = self._at_a_time
        some = train[torch.arange(count, device=train.device) * len(train) // count]  # they may be sorted by class
        engine.model.train()
        self._generator.manual_seed(engine.recipe.seed)
        with statistics_anew(engine.model) as note, engine.plan.undivided():
            for index in torch.split(some, at_a_time):
                self._passed(self._pass, index, self._stage.constants())
                note()

    @property
    def _at_a_time(self) -> int:
        """So many images fit into memory: as many as in training, or a group, on which several processes agree."""
        alone = self._engine.processes.count == 1
        return max(self._engine.recipe.batch // self._engine.plan.parts, self._group) if alone else self._group

    @property
    def _group(self) -> int:
        return min(self._engine.recipe.group, self._engine.recipe.batch)

    def _measure(self, index: Tensor) -> None:
        x, y = self._engine.material.images.batch(index)
        self._meter.add(loss_of(self._stage, Batch(x, y, index), self._engine.recipe), y)

    def _pass(self, index: Tensor) -> None:
        """Augmented group by group, so that it is the same however many are passed at a time."""
        groups = [self._engine.material.augmented(part, self._generator) for part in torch.split(index, self._group)]
        x, y = (torch.cat(each) for each in zip(*groups, strict=True))
        loss_of(self._stage, Batch(x, y, index), self._engine.recipe)


IMAGES = 512


def hsic_plane(
    model: nn.Module, material: Material, points: Sequence[str], normalised: bool
) -> Callable[[], Mapping[str, float]]:
    """HSIC(X, Z_L) and HSIC(Y, Z_L) of the last hidden activation on validation images (the HSIC plane)."""
    x, y = material.images.batch(material.validation[:IMAGES])
    last = hidden_points(model, x[:2], points)[-1:]

    @torch.no_grad()
    def measure() -> Mapping[str, float]:
        if not last:
            return {}
        model.eval()
        with recording(model, last) as hidden:
            model(x)
        found = bottleneck(x, y, [hidden[name] for name in last], normalised)
        return {"hsic_x_last": found.x.item(), "hsic_y_last": found.y.item()}

    return measure
