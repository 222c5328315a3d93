"""The steps of a stage: batches, gradients, and what to do when memory runs out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pwoa.errors import InputError
from pwoa.recipe import TrainingRecipe
from pwoa.training.average import Average
from pwoa.training.fast import Replayed
from pwoa.training.meter import Meter
from pwoa.training.optimizer import set_learning_rate
from pwoa.training.stage import Batch, Loss, Stage
from pwoa.words import counted

if TYPE_CHECKING:
    from pwoa.training.engine import Engine


def loss_of(stage: Stage, batch: Batch, recipe: TrainingRecipe) -> Loss:
    """The stage's loss, in the precision of the mode."""
    fast = recipe.mode == "fast"
    # Casts that are kept from one call to the next would not be a part of a graph.
    with torch.autocast(batch.x.device.type, dtype=torch.bfloat16, enabled=fast, cache_enabled=False):
        return stage.loss(batch)


class Steps:
    """The steps of a stage; where they can be, they are recorded once, and replayed in all epochs."""

    def __init__(
        self,
        engine: Engine,
        stage: Stage,
        optimizer: torch.optim.Optimizer,
        average: Average,
    ) -> None:
        self.meter = Meter()
        self.generator = torch.Generator(engine.device)
        self._engine, self._stage, self._optimizer, self._average = engine, stage, optimizer, average
        self._share = engine.processes.share(engine.recipe.batch)
        self._form = torch.channels_last if engine.recipe.mode == "fast" else torch.contiguous_format
        self._one = Replayed(record=engine.records, generator=self.generator)

    def take(self, index: Tensor, learning_rate: float) -> None:
        """One step on the images at these positions."""
        set_learning_rate(self._optimizer, learning_rate)
        self._one(self._step, index, self._stage.constants())
        self.meter.count(len(index) // self._engine.processes.count)

    def _step(self, index: Tensor) -> None:
        engine, stage, own = self._engine, self._stage, self._share
        x, y = engine.material.augmented(index, self.generator)
        x = x[own]
        x = x.contiguous(memory_format=self._form) if x.dim() == 4 else x
        self._backward(Batch(x, y[own], index[own]))
        engine.processes.average(weight.grad for weight in engine.model.parameters() if weight.grad is not None)
        stage.after_backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        stage.after_step()
        self._average.update()

    def _backward(self, batch: Batch) -> None:
        """The gradients of a batch; where memory runs out, of its parts one after the other, to the same end."""
        model = self._engine.model
        buffers = list(model.buffers())
        recording = self._engine.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        before = [] if recording else [buffer.clone() for buffer in buffers]
        model.zero_grad(set_to_none=True)  # a recording that failed may have left gradients never computed
        while True:
            try:
                losses = [self._backward_part(part) for part in self._parts(batch)]
                break
            except torch.OutOfMemoryError:
                if recording:
                    raise
                self._cut_smaller(len(batch.y))
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
        for loss, part in zip(losses, self._parts(batch), strict=True):
            self.meter.add(loss, part.y)

    def _backward_part(self, part: Batch) -> Loss:
        loss = loss_of(self._stage, part, self._engine.recipe)
        (loss.total / self._engine.plan.parts).backward()  # type: ignore[no-untyped-call]
        return Loss(
            loss.total.detach(), {name: value.detach() for name, value in loss.parts.items()}, loss.logits.detach()
        )

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """The batch in equal parts of whole groups; `plan.part` says which is at hand."""
        plan = self._engine.plan
        size = len(batch.y) // plan.parts
        for number in range(plan.parts):
            plan.part = number
            part = slice(number * size, (number + 1) * size)
            yield Batch(batch.x[part], batch.y[part], batch.index[part])

    def _cut_smaller(self, images: int) -> None:
        """Take more parts, as few as can be; an error when a part would be less than a group."""
        plan = self._engine.plan
        group = min(plan.group, images)
        fitting = [parts for parts in range(plan.parts + 1, images // group + 1) if images % (parts * group) == 0]
        if not fitting:
            raise InputError(
                f"out of memory with {counted(images // plan.parts, 'image')} at a time; lower training.group "
                "(and training.batch), or use a device with more memory"
            )
        plan.parts = fitting[0]
        self._engine.progress.say(f"out of memory: batches are now computed in {plan.parts} parts, to the same result")
