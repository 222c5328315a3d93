"""The engine: one loop for every method. It knows stages and batches, and no method."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.data import AUGMENTATIONS, Data, Images
from pwoa.devices import exact_float32
from pwoa.errors import InputError
from pwoa.progress import Progress
from pwoa.recipe import Recipe, TrainingRecipe
from pwoa.run import Run
from pwoa.training.average import Average
from pwoa.training.fast import Recorder, compiled
from pwoa.training.groups import Plan, grouped
from pwoa.training.processes import Processes
from pwoa.training.stage import Batch, Loss, Stage

Probe = Callable[[], Mapping[str, float]]
"""Measures something of the model after each epoch, for the record."""


@dataclass(frozen=True)
class Material:
    """What is trained on: images on the device, the positions of the two splits, and the augmentation."""

    images: Images
    train: Tensor
    validation: Tensor
    classes: int
    augment: str = "none"

    @classmethod
    def of(cls, data: Data, recipe: Recipe, device: torch.device) -> Material:
        """The training part and the held-out validation part of the data's training set."""
        train, validation = data.split(recipe.data.validation, recipe.training.seed)
        if recipe.training.batch > len(train):
            raise InputError(f"a batch of {recipe.training.batch} is larger than the {len(train)} training images")
        images = data.train.to(device)
        return cls(images, train.to(device), validation.to(device), data.classes, recipe.data.augment)

    def held_out(self) -> Images:
        """The images of the validation part."""
        return Images(self.images.pixels[self.validation], self.images.labels[self.validation])


class Engine:
    """Trains a model through stages, keeping the run folder such that a killed run ends with the same bits.

    All randomness of an epoch comes from (seed, stage, epoch), so a checkpoint needs no generator states. The
    model of the last stage's epoch with the lowest loss on the validation split is the one that is kept.
    """

    def __init__(
        self,
        model: nn.Module,
        stages: Sequence[Stage],
        material: Material,
        recipe: TrainingRecipe,
        run: Run,
        progress: Progress,
        probe: Probe = dict,
        processes: Processes | None = None,
    ) -> None:
        self.model = model
        self.stages = list(stages)
        self.material = material
        self.recipe = recipe
        self.run = run
        self.progress = progress
        self.probe = probe
        self.processes = processes or Processes()
        self.processes.check_batch(recipe.batch, recipe.group)
        self.plan = Plan(recipe.group)
        self.device = material.images.pixels.device
        self.seconds = 0.0
        self._lines = 0
        self._best: dict[str, Any] | None = None
        self._saved_at = time.perf_counter()
        self._steps = len(material.train) // recipe.batch
        self._unsettled = 0
        alone_on_gpu = self.device.type == "cuda" and self.processes.count == 1
        self.recorder = Recorder() if recipe.mode == "fast" and alone_on_gpu else None

    @property
    def settled(self) -> bool:
        """Whether steps of this stage have been taken, so that all that they keep is in memory."""
        return not self._unsettled

    @property
    def selected(self) -> int | None:
        """The epoch of the last stage, counted from 0, whose weights are kept."""
        return self._best["epoch"] if self._best else None

    def train(self) -> None:
        """Run what is left of all stages; afterwards the model has the selected weights."""
        state = self.processes.by_first(self.run.load_checkpoint)
        first = 0
        if state is not None:
            self._restore(state)
            first = state["stage"]
        with ExitStack() as inside:
            inside.enter_context(torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []))
            inside.enter_context(compiled(self.model) if self.recipe.mode == "fast" else exact_float32())
            if self.recipe.batch > self.recipe.group:
                inside.enter_context(grouped(self.model, self.plan))
            for number in range(first, len(self.stages)):
                with self.stages[number].running():
                    self._train_stage(number, state if number == first else None)
        assert self._best is not None
        self.model.load_state_dict(self._best["weights"])

    def _train_stage(self, number: int, state: dict[str, Any] | None) -> None:
        stage = self.stages[number]
        last = number == len(self.stages) - 1
        first_epoch = state["epoch"] if state else 0
        if first_epoch == 0:
            stage.begin()
        self._unsettled = 2  # the first step has no momentum in memory yet
        optimizer = self._optimizer(stage)
        average = Average(self.model, self.recipe.average if last else 0.0)
        if state and first_epoch:
            rates = [group["lr"] for group in optimizer.param_groups]
            optimizer.load_state_dict(state["optimizer"])
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            average.load([value.to(self.device) for value in state["average"]])
        steps = _Steps(self, stage, optimizer, average)
        total = stage.epochs * self._steps
        self.progress.start(stage.name, total, first_epoch * self._steps)
        for epoch in range(first_epoch, stage.epochs):
            start = time.perf_counter()
            line: dict[str, Any] = {"stage": stage.name, "epoch": epoch}
            line["train"] = self._train_epoch(stage, number, epoch, steps)
            self.processes.average([*average.values, *_buffers(self.model)])
            with average.applied():
                line["validation"] = self._validate(stage)
                line |= self.probe()
                self._check_finite(line)
                if last:
                    self._select(line, stage.criterion)
            line |= stage.after_epoch(epoch, line["validation"])
            line["learning_rate"] = self._learning_rate(stage, epoch * self._steps)
            line["seconds"] = time.perf_counter() - start
            self.seconds += line["seconds"]
            self._lines += 1
            if self.processes.first:
                self.run.log(line)
            self.progress.epoch(line, stage.epochs)
            ended = epoch + 1 == stage.epochs
            self._checkpoint(number + ended, 0 if ended else epoch + 1, optimizer, average)
        self.progress.close()

    def _train_epoch(self, stage: Stage, number: int, epoch: int, steps: _Steps) -> dict[str, float]:
        seed = _mix(self.recipe.seed, number, epoch)
        torch.manual_seed(seed)
        steps.generator.manual_seed(seed)
        size, train = self.recipe.batch, self.material.train
        order = train[torch.randperm(len(train), generator=steps.generator, device=self.device)]
        stage.before_epoch(epoch)
        self.model.train()
        for step in range(self._steps):
            steps.take(order[step * size : (step + 1) * size], self._learning_rate(stage, epoch * self._steps + step))
            self.progress.advance()
        return steps.meter.means(self.processes)

    def backward(self, stage: Stage, batch: Batch, meter: Meter) -> None:
        """The gradients of a batch; where memory runs out, of its parts one after the other, to the same end."""
        buffers = list(self.model.buffers())
        before = [buffer.clone() for buffer in buffers] if self._unsettled else []
        while True:
            try:
                losses = [self._backward_part(stage, part) for part in self._parts(batch)]
                break
            except torch.OutOfMemoryError:
                self._cut_smaller(len(batch.y))
            self.model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            for buffer, value in zip(buffers, before, strict=False):
                buffer.copy_(value)
        self._unsettled = max(self._unsettled - 1, 0)
        for loss, part in zip(losses, self._parts(batch), strict=True):
            meter.add(loss, part.y)

    def _backward_part(self, stage: Stage, part: Batch) -> Loss:
        loss = self._loss(stage, part)
        (loss.total / self.plan.parts).backward()  # type: ignore[no-untyped-call]
        return Loss(
            loss.total.detach(), {name: value.detach() for name, value in loss.parts.items()}, loss.logits.detach()
        )

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """The batch in equal parts of whole groups; `plan.part` says which is at hand."""
        size = len(batch.y) // self.plan.parts
        for number in range(self.plan.parts):
            self.plan.part = number
            part = slice(number * size, (number + 1) * size)
            yield Batch(batch.x[part], batch.y[part], batch.index[part])

    def _cut_smaller(self, images: int) -> None:
        """Take more parts, as few as can be; an error when a part would be less than a group."""
        group = min(self.recipe.group, images)
        fitting = [parts for parts in range(self.plan.parts + 1, images // group + 1) if images % (parts * group) == 0]
        if not fitting:
            raise InputError(
                f"out of memory with {images // self.plan.parts} images at a time; lower training.group "
                "(and training.batch), or use a device with more memory"
            )
        self.plan.parts = fitting[0]
        self.progress.say(f"out of memory: batches are now computed in {self.plan.parts} parts, to the same result")

    @torch.no_grad()
    def _validate(self, stage: Stage) -> dict[str, float]:
        self.model.eval()
        meter = Meter()
        size = max(self.recipe.batch // self.plan.parts, min(self.recipe.group, self.recipe.batch))
        batches = torch.split(self.material.validation, size)
        among = self.processes if len(batches) >= self.processes.count else Processes()
        for index in batches[among.rank :: among.count]:
            x, y = self.material.images.batch(index)
            meter.add(self._loss(stage, Batch(x, y, index)), y)
            meter.count(len(y))
        return meter.means(among)

    def _loss(self, stage: Stage, batch: Batch) -> Loss:
        fast = self.recipe.mode == "fast"
        # Casts that are kept from one call to the next would not be a part of a graph.
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=fast, cache_enabled=False):
            return stage.loss(batch)

    def _optimizer(self, stage: Stage) -> torch.optim.Optimizer:
        recipe = self.recipe
        own = stage.parameters()
        parameters = list(self.model.parameters() if own is None else own)
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        shared: dict[str, Any] = {
            "lr": torch.tensor(stage.learning_rate, device=self.device) if self.recorder else stage.learning_rate,
            "weight_decay": recipe.weight_decay,
            "fused": True,
        }
        if recipe.optimizer == "adam":
            shared["capturable"] = self.recorder is not None
            return torch.optim.Adam(parameters, betas=(recipe.momentum, 0.999), **shared)
        return torch.optim.SGD(parameters, momentum=recipe.momentum, **shared)

    def _learning_rate(self, stage: Stage, step: int) -> float:
        """Cosine from the stage's learning rate to 0, per step."""
        return stage.learning_rate * 0.5 * (1 + math.cos(math.pi * step / (stage.epochs * self._steps)))

    def _select(self, line: Mapping[str, Any], criterion: str) -> None:
        value = line["validation"][criterion]
        if self._best is None or value < self._best["value"]:
            weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            self._best = {"value": value, "epoch": line["epoch"], "weights": weights}

    @staticmethod
    def _check_finite(line: Mapping[str, Any]) -> None:
        if not math.isfinite(line["train"]["loss"] + line["validation"]["loss"]):
            raise InputError(
                f"the loss is not finite after epoch {line['epoch'] + 1} of {line['stage']}; "
                f"lower {line['stage']}.learning_rate or the weights of the objective"
            )

    def _checkpoint(self, stage: int, epoch: int, optimizer: torch.optim.Optimizer, average: Average) -> None:
        """Save if it is time to; the ends of stages always are."""
        due = time.perf_counter() - self._saved_at >= self.recipe.checkpoint_seconds
        if not self.processes.first or (epoch and not due):
            return
        self.run.save_checkpoint(
            {
                "stage": stage,
                "epoch": epoch,
                "model": self.model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "average": average.values,
                "stages": [each.state_dict() for each in self.stages],
                "best": self._best,
                "lines": self._lines,
                "seconds": self.seconds,
            }
        )
        self._saved_at = time.perf_counter()

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for stage, stage_state in zip(self.stages, state["stages"], strict=True):
            stage.load_state_dict(stage_state)
        self._best = state["best"]
        self._lines = state["lines"]
        self.seconds = state["seconds"]


class _Steps:
    """The steps of a stage. On a GPU in fast mode they are recorded once and replayed, in all epochs."""

    def __init__(self, engine: Engine, stage: Stage, optimizer: torch.optim.Optimizer, average: Average) -> None:
        self.meter = Meter()
        self.generator = torch.Generator(engine.device)
        self._engine, self._stage, self._optimizer, self._average = engine, stage, optimizer, average
        self._augment = AUGMENTATIONS[engine.material.augment]
        self._share = engine.processes.share(engine.recipe.batch)
        self._form = torch.channels_last if engine.recipe.mode == "fast" else torch.contiguous_format
        self._replay: Callable[[Tensor], None] | None = None
        self._built_in: object = None

    def take(self, index: Tensor, learning_rate: float) -> None:
        """One step on the images at these positions."""
        _set_learning_rate(self._optimizer, learning_rate)
        engine, constants = self._engine, self._stage.constants()
        if self._replay is not None and constants != self._built_in:
            self._replay = None
        if self._replay is None and engine.recorder is not None and engine.settled:
            self._replay = engine.recorder.record(self._step, index, self.generator)
            self._built_in = constants
        (self._replay or self._step)(index)
        self.meter.count(len(index) // engine.processes.count)

    def _step(self, index: Tensor) -> None:
        engine, stage, own = self._engine, self._stage, self._share
        x, y = engine.material.images.batch(index)
        x = self._augment(x, self.generator)[own]
        x = x.contiguous(memory_format=self._form) if x.dim() == 4 else x
        engine.backward(stage, Batch(x, y[own], index[own]), self.meter)
        engine.processes.average(weight.grad for weight in engine.model.parameters() if weight.grad is not None)
        stage.after_backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        stage.after_step()
        self._average.update()


class Meter:
    """Means of a loss and its parts over batches, kept on the device and read once an epoch."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._images = 0

    @torch.no_grad()
    def add(self, loss: Loss, labels: Tensor) -> None:
        correct = (loss.logits.argmax(1) == labels).float().mean() * 100
        for name, value in {"loss": loss.total, **loss.parts, "accuracy": correct}.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=torch.float64, device=value.device)
            self._sums[name] += value.detach().double() * len(labels)

    def count(self, images: int) -> None:
        """So many images have been added; apart, since a replayed step adds on the device alone."""
        self._images += images

    def means(self, processes: Processes) -> dict[str, float]:
        """Over the batches of all processes; what follows is counted from 0."""
        names = sorted(self._sums)
        sums = torch.stack([*(self._sums[name] for name in names), self._sums["loss"].new_full((), self._images)])
        processes.add([sums])
        *values, images = sums.tolist()
        for kept in self._sums.values():
            kept.zero_()
        self._images = 0
        found = dict(zip(names, values, strict=True))
        return {name: found[name] / images for name in self._sums}


def _set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def _buffers(model: nn.Module) -> list[Tensor]:
    """What a model learns besides weights: running statistics."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def _mix(*numbers: int) -> int:
    """One well-spread seed from several small numbers."""
    text = "/".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
