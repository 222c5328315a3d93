"""What is done between epochs: the loss on the validation split, new normalisation statistics, and the HSIC plane."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from pwoa.models.hidden import hidden_points, recording
from pwoa.objectives.hsic import bottleneck
from pwoa.training.fast import Replayed
from pwoa.training.groups import layers_with_statistics, statistics_anew
from pwoa.training.processes import Processes
from pwoa.training.stage import Batch, Material, Stage
from pwoa.training.steps import Context, Meter, in_precision

STATISTICS = 2048
"""How many training images, at most, the normalisation statistics of averaged weights are taken on."""


class Validation:
    """The validation of a stage. A method may attack each batch, so these passes are recorded too."""

    def __init__(self, context: Context, stage: Stage) -> None:
        self._context, self._stage, self._meter = context, stage, Meter()
        self._generator = torch.Generator(context.device)
        self._measured = Replayed(record=context.records)
        self._passed = Replayed(record=context.records, generator=self._generator)

    @torch.no_grad()
    def means(self) -> dict[str, float]:
        """Return the loss and its parts on the validation split, of the model as it is."""
        context = self._context
        context.model.eval()
        batches = torch.split(context.material.validation, self._at_a_time)
        among = context.processes if len(batches) >= context.processes.count else Processes()
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
        context, batch = self._context, self._context.recipe.batch
        if not layers_with_statistics(context.model):
            return
        at_a_time, some = self._at_a_time, context.material.some(STATISTICS, batch)
        context.model.train()
        self._generator.manual_seed(context.recipe.seed)
        with statistics_anew(context.model) as note, context.plan.undivided(at_a_time):
            for index in torch.split(some, at_a_time):
                self._passed(self._pass, index, self._stage.constants())
                note()

    @property
    def _at_a_time(self) -> int:
        """So many images fit into memory: as many as in training, or a group, on which several processes agree."""
        context = self._context
        alone = context.processes.count == 1
        return max(context.recipe.batch // context.plan.parts, context.group) if alone else context.group

    def _measure(self, index: Tensor) -> None:
        x, y = self._context.material.images.batch(index)
        with in_precision(self._context.recipe, x.device):
            loss = self._stage.validation_loss(Batch(x, y, index))
        self._meter.add(loss, y)

    def _pass(self, index: Tensor) -> None:
        """Augment group by group, so that it is the same however many are passed at a time."""
        context = self._context
        groups = [context.material.augmented(part, self._generator) for part in torch.split(index, context.group)]
        x, y = (torch.cat(parts) for parts in zip(*groups, strict=True))
        with in_precision(context.recipe, x.device):
            self._stage.loss(Batch(x, y, index))


IMAGES = 512


def hsic_plane(
    model: nn.Module, material: Material, points: Sequence[str], normalised: bool
) -> Callable[[], Mapping[str, float]]:
    """Return what measures HSIC(X, Z_L) and HSIC(Y, Z_L) of the last hidden activation (the HSIC plane)."""
    x, y = material.images.batch(material.validation[:IMAGES])
    last = hidden_points(model, x[:2], points)[-1:]

    @torch.no_grad()
    def measure() -> Mapping[str, float]:
        if not last:
            return {}
        model.eval()
        with recording(model, last) as hidden:
            model(x)
        dependence = bottleneck(x, y, [hidden[name] for name in last], normalised)
        return {"hsic_x_last": dependence.x.item(), "hsic_y_last": dependence.y.item()}

    return measure
