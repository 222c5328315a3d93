"""The engine: one loop for every method. It knows stages and batches, and no method."""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pwoa.devices import exact_float32
from pwoa.errors import InputError
from pwoa.progress import Progress
from pwoa.recipe.sections import TrainingRecipe
from pwoa.training.fast import compiled
from pwoa.training.groups import Plan, grouped
from pwoa.training.processes import Processes
from pwoa.training.stage import Material, Stage
from pwoa.training.steps import Average, Context, Steps, make_optimizer, resume_optimizer
from pwoa.training.validation import Validation

Probe = Callable[[], Mapping[str, float]]
"""Measures something of the model after each epoch, for the record."""


class Journal(Protocol):
    """Where the engine writes metrics and checkpoints, and finds the last checkpoint: the run folder."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line of metrics."""

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Keep the state of a run under way."""

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the last state that was kept, with the metrics cut back to it, or None."""


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
        journal: Journal,
        progress: Progress,
        probe: Probe = dict,
        processes: Processes | None = None,
    ) -> None:
        processes = processes or Processes()
        processes.check_batch(recipe.batch, recipe.group)
        self.device = material.images.pixels.device
        self.model, self.stages, self.material, self.recipe = model, list(stages), material, recipe
        self.journal, self.progress, self.probe, self.processes = journal, progress, probe, processes
        records = recipe.mode == "fast" and self.device.type == "cuda" and processes.count == 1
        self._context = Context(model, material, recipe, progress, processes, Plan(recipe.group), records)
        self.seconds = 0.0
        self._lines = 0
        self._best: dict[str, Any] | None = None
        self._saved_at = time.perf_counter()
        self._steps = len(material.train) // recipe.batch

    @property
    def selected(self) -> int | None:
        """The epoch of the last stage, counted from 0, whose weights are kept."""
        return self._best["epoch"] if self._best else None

    def train(self) -> None:
        """Run what is left of all stages; afterwards the model has the selected weights."""
        state = self.processes.by_first(self.journal.load_checkpoint)
        first = 0
        if state is not None:
            self._restore(state)
            first = state["stage"]
        with ExitStack() as inside:
            inside.enter_context(torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []))
            if self.recipe.batch > self.recipe.group:
                inside.enter_context(grouped(self.model, self._context.plan))
            inside.enter_context(compiled(self.model) if self.recipe.mode == "fast" else exact_float32())
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
        optimizer = make_optimizer(stage, self.model, self.recipe, recorded=self._context.records)
        average = Average(self.model, self.recipe.average if last else 0.0)
        if state and first_epoch:
            resume_optimizer(optimizer, state["optimizer"])
            average.load([value.to(self.device) for value in state["average"]])
        steps = Steps(self._context, stage, optimizer, average)
        validation = Validation(self._context, stage)
        total = stage.epochs * self._steps
        self.progress.start(stage.name, total, first_epoch * self._steps)
        for epoch in range(first_epoch, stage.epochs):
            start = time.perf_counter()
            line: dict[str, Any] = {"stage": stage.name, "epoch": epoch}
            line["train"] = self._train_epoch(stage, number, epoch, steps)
            self.processes.average([*average.values, *_buffers(self.model)])
            with average.applied():
                if average.values:
                    validation.take_statistics()
                line["validation"] = validation.means()
                line |= self.probe()
                self._check_finite(line, stage.section or stage.name)
                if last:
                    self._select(line, stage.criterion)
            line |= stage.after_epoch(epoch, line["validation"])
            line["learning_rate"] = self._learning_rate(stage, epoch * self._steps)
            line["seconds"] = time.perf_counter() - start
            self.seconds += line["seconds"]
            self._lines += 1
            if self.processes.first:
                self.journal.log(line)
            self.progress.epoch({**line, "accuracy_of": stage.accuracy_of}, stage.epochs)
            ended = epoch + 1 == stage.epochs
            self._checkpoint(number + ended, 0 if ended else epoch + 1, optimizer, average)
        self.progress.close()

    def _train_epoch(self, stage: Stage, number: int, epoch: int, steps: Steps) -> dict[str, float]:
        seed = _mix(self.recipe.seed, number, epoch)
        torch.manual_seed(seed + self.processes.rank)
        steps.generator.manual_seed(seed)
        size, train = self.recipe.batch, self.material.train
        order = train[torch.randperm(len(train), generator=steps.generator, device=self.device)]
        stage.before_epoch(epoch)
        self.model.train()
        for step in range(self._steps):
            steps.take(order[step * size : (step + 1) * size], self._learning_rate(stage, epoch * self._steps + step))
            self.progress.advance()
        return steps.meter.means(self.processes)

    def _learning_rate(self, stage: Stage, step: int) -> float:
        """Up to the stage's learning rate in equal steps, if it warms up; then by a cosine down to 0."""
        rising, total = stage.warmup * self._steps, stage.epochs * self._steps
        if step < rising:
            return stage.learning_rate * (step + 1) / rising
        return stage.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - rising) / (total - rising)))

    def _select(self, line: Mapping[str, Any], criterion: str) -> None:
        value = line["validation"][criterion]
        if self._best is None or value < self._best["value"]:
            weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            self._best = {"value": value, "epoch": line["epoch"], "weights": weights}

    @staticmethod
    def _check_finite(line: Mapping[str, Any], section: str) -> None:
        if not math.isfinite(line["train"]["loss"] + line["validation"]["loss"]):
            raise InputError(
                f"the loss is not finite after epoch {line['epoch'] + 1} of {line['stage']}; "
                f"lower {section}.learning_rate or the weights of the objective"
            )

    def _checkpoint(self, stage: int, epoch: int, optimizer: torch.optim.Optimizer, average: Average) -> None:
        """Save if it is time to; the ends of stages always are."""
        due = time.perf_counter() - self._saved_at >= self.recipe.checkpoint_seconds
        if not self.processes.first or (epoch and not due):
            return
        self.journal.save_checkpoint(
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


def _buffers(model: nn.Module) -> list[Tensor]:
    """Return what a model learns besides weights: running statistics."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def _mix(*numbers: int) -> int:
    """One well-spread seed from several small numbers."""
    text = "/".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
