"""The engine: one loop for every method. It knows stages and batches, and no method."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pwoa.devices import exact_float32
from pwoa.errors import Diverged, InputError, first_line
from pwoa.progress import TRAINING, Part, Progress
from pwoa.recipe.sections import TrainingRecipe
from pwoa.training import fast
from pwoa.training.groups import Plan, grouped, layers_by_groups
from pwoa.training.processes import Processes
from pwoa.training.stage import Material, Stage
from pwoa.training.steps import Average, Context, Steps, make_optimizer, resume_optimizer
from pwoa.training.validation import Validation

Probe = Callable[[], Mapping[str, float]]
"""Measures something of the model before the first epoch and after each, for the record."""


STATE = "checkpoint/state.pt"
"""What the saved state of a run is called in its folder."""
SHARE = 20
"""Within an epoch, at least so many times as long is trained as the last save took."""


class Journal(Protocol):
    """Where the engine writes metrics and checkpoints, and finds the last checkpoint: the run folder."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line of metrics."""

    def keep_metrics(self, lines: Sequence[Mapping[str, Any]]) -> bool:
        """Leave exactly these lines of metrics; tell whether they were all there."""

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Keep the state of a run under way."""

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the last state that was kept, or None."""


class Engine:
    """Trains a model through stages, keeping the run folder such that a killed run ends with the same bits.

    All randomness of an epoch comes from (seed, stage, epoch); a checkpoint within one has the states of generators.
    The model of the last stage's epoch with the lowest loss on the validation split is the one that is kept.
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
        self.metrics: list[dict[str, Any]] = []
        self._start: Mapping[str, float] = {}
        self._best: dict[str, Any] | None = None
        self._saved_at, self._saving = time.perf_counter(), 0.0
        self._steps = len(material.train) // recipe.batch

    @property
    def selected(self) -> int | None:
        """The epoch of the last stage, counted from 0, whose weights are kept."""
        return self._best["epoch"] if self._best else None

    @property
    def seconds(self) -> float:
        """How long was trained, without validation."""
        return math.fsum(line["seconds"] for line in self.metrics)

    @property
    def validation_seconds(self) -> float:
        """How long was validated."""
        return math.fsum(line["validation_seconds"] for line in self.metrics)

    def parts(self) -> list[Part]:
        """Return the stages as parts of a plan, in steps."""
        return [Part(stage.name, stage.epochs * self._steps, TRAINING) for stage in self.stages]

    def train(self) -> None:
        """Run what is left of all stages; afterwards the model has the selected weights."""
        state = self.processes.by_first(self._load)
        first = 0
        if state is not None:
            self._restore(state)
            first = state["stage"]
        with ExitStack() as inside:
            inside.enter_context(torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []))
            if self.recipe.batch > self.recipe.group:
                inside.enter_context(grouped(self.model, self._context.plan))
            inside.enter_context(self._computing())
            self._start = state["start"] if state else dict(self.probe())
            for number in range(first, len(self.stages)):
                with self.stages[number].running():
                    self._train_stage(number, state if number == first else None)
        if self.processes.first:
            self.journal.keep_metrics(self.metrics)
        assert self._best is not None
        self.model.load_state_dict(self._best["weights"])

    def _computing(self) -> AbstractContextManager[None]:
        """Return in which way it is computed. A short training is not worth the wait for the compiler.

        One that attacks is, and one whose batch normalisation goes by groups, which nothing else makes few kernels of.
        """
        if self.recipe.mode != "fast":
            return exact_float32()
        in_groups = self.recipe.batch > self.recipe.group and bool(layers_by_groups(self.model))
        attacking = any(stage.attacks for stage in self.stages)
        images = sum(stage.epochs for stage in self.stages) * self._steps * self.recipe.batch
        worth = in_groups or attacking or images >= fast.WORTH
        return fast.compiled(self.model) if worth else fast.tuned()

    def _train_stage(self, number: int, state: dict[str, Any] | None) -> None:
        stage = self.stages[number]
        last = number == len(self.stages) - 1
        first_epoch, first_step = (state["epoch"], state["step"]) if state else (0, 0)
        if not (first_epoch or first_step):
            stage.begin()
        optimizer = make_optimizer(stage, self.model, self.recipe, recorded=self._context.records)
        average = Average(self.model, self.recipe.average if last else 0.0)
        if state and (first_epoch or first_step):
            with _restoring():
                resume_optimizer(optimizer, state["optimizer"])
                average.load([value.to(self.device) for value in state["average"]])
        steps = Steps(self._context, stage, optimizer, average)
        validation = Validation(self._context, stage)
        self.progress.start(stage.name, stage.epochs * self._steps, first_epoch * self._steps + first_step)
        for epoch in range(first_epoch, stage.epochs):
            line: dict[str, Any] = {"stage": stage.name, "epoch": epoch}
            if number == epoch == 0 and self._start:
                line["start"] = self._start
            line["train"], seconds = self._train_epoch(number, epoch, steps, state if epoch == first_epoch else None)
            trained = time.perf_counter()
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
            line["seconds"], line["validation_seconds"] = seconds, time.perf_counter() - trained
            self.metrics.append(line)
            if self.processes.first:
                self.journal.log(line)
            self.progress.epoch({**line, "accuracy_of": stage.accuracy_of}, stage.epochs)
            ended = epoch + 1 == stage.epochs
            if (ended and last) or self._due(self.recipe.checkpoint_seconds):
                self._save(number + ended, 0 if ended else epoch + 1, steps)
        self.progress.close()

    def _train_epoch(
        self, number: int, epoch: int, steps: Steps, state: dict[str, Any] | None
    ) -> tuple[dict[str, float], float]:
        """Train an epoch, or what is left of it; return the means over its batches, and how long it took."""
        start, stage = time.perf_counter(), self.stages[number]
        steps.seed(_mix(self.recipe.seed, number, epoch))
        size, train, first = self.recipe.batch, self.material.train, 0
        order = train[torch.randperm(len(train), generator=steps.generator, device=self.device)]
        stage.before_epoch(epoch)
        if state is not None and state["step"]:
            first = state["step"]
            self._restore(state)  # what `before_epoch` has done again is in it
            with _restoring():
                steps.load_state_dict(state["steps"], _mix(self.recipe.seed, number, epoch, first))
                start -= state["seconds"]
        self.model.train()
        for step in range(first, self._steps):
            taken = epoch * self._steps + step
            stage.before_step(taken, self._steps)
            steps.take(order[step * size : (step + 1) * size], self._learning_rate(stage, taken), taken)
            self.progress.advance()
            if step + 1 < self._steps and self._due(max(self.recipe.checkpoint_seconds, SHARE * self._saving)):
                begun = time.perf_counter()
                if self.processes.count == 1:  # else each has statistics of its own until the epoch ends
                    self._save(number, epoch, steps, step + 1, begun - start)
                start += time.perf_counter() - begun
        return steps.meter.means(self.processes), time.perf_counter() - start

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
            raise Diverged(
                f"the loss is not finite after epoch {line['epoch'] + 1} of {line['stage']}; "
                f"lower {section}.learning_rate or the weights of the objective; the folder can be given again"
            )

    def _due(self, seconds: float) -> bool:
        """Tell whether the last save is so long ago."""
        return time.perf_counter() - self._saved_at >= seconds

    def _save(self, stage: int, epoch: int, steps: Steps, step: int = 0, seconds: float = 0.0) -> None:
        """Save where the run is: at a step of an epoch of a stage, trained for so long in that epoch."""
        if not self.processes.first:
            return
        begun = time.perf_counter()
        state: dict[str, Any] = {
            "stage": stage,
            "epoch": epoch,
            "step": step,
            "best": self._best,
            "metrics": self.metrics,
            "start": self._start,
            "seconds": seconds,
        }
        if stage < len(self.stages):  # after the last one only the selected weights are wanted
            state |= {
                "model": self.model.state_dict(),
                "optimizer": steps.optimizer.state_dict(),
                "average": steps.average.values,
                "stages": [each.state_dict() for each in self.stages],
                "steps": steps.state_dict() if step else None,
            }
        self.journal.save_checkpoint(state)
        self._saved_at = time.perf_counter()
        self._saving = self._saved_at - begun

    def _load(self) -> dict[str, Any] | None:
        """Return the saved state if there is one, checked, with metrics.jsonl as it was then."""
        state = self.journal.load_checkpoint()
        if state is not None and (reason := _impossible(state, self.stages, self._steps)):
            raise _refused(reason)
        lines = state["metrics"] if state else []
        if not self.journal.keep_metrics(lines):
            self.progress.say("metrics.jsonl was lost or changed; it is written anew from the saved state")
        return state

    def _restore(self, state: Mapping[str, Any]) -> None:
        with _restoring():
            if state["best"] is not None:
                self.model.load_state_dict(state["best"]["weights"])  # which is wanted at the end
            if state["stage"] < len(self.stages):  # else the model has what is wanted
                self.model.load_state_dict(state["model"])
                for stage, stage_state in zip(self.stages, state["stages"], strict=True):
                    stage.load_state_dict(stage_state)
        self._best, self.metrics = state["best"], list(state["metrics"])


_ALWAYS = ("stage", "epoch", "step", "best", "metrics", "start", "seconds")
_GOING_ON = ("model", "optimizer", "average", "stages", "steps")


def _impossible(state: Mapping[str, Any], stages: Sequence[Stage], steps: int) -> str:
    """Return why a state cannot be one of a run with these stages, of so many steps an epoch; nothing if it can."""
    over = state.get("stage") == len(stages)
    keys = (*_ALWAYS, *(() if over else _GOING_ON))
    if lost := [key for key in keys if key not in state]:
        return f"it has no {lost[0]}"
    places = [state[key] for key in ("stage", "epoch", "step")]
    if any(type(place) is not int for place in places):
        return f"its place is {places}"
    stage, epoch, step = places
    epochs = stages[stage].epochs if 0 <= stage < len(stages) else 1
    if not (0 <= stage <= len(stages) and 0 <= epoch < epochs and 0 <= step < steps):
        return f"stage {stage}, epoch {epoch}, step {step} of {len(stages)} stages, {epochs} epochs, {steps} steps"
    if over and (epoch or step):
        return "it goes on after the end"
    before = [(each.name, number) for each in stages[:stage] for number in range(each.epochs)]
    before += [(stages[stage].name, number) for number in range(epoch)] if epoch else []
    lines = state["metrics"]
    if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
        return "its metrics are no lines"
    if [(line.get("stage"), line.get("epoch")) for line in lines] != before:
        return f"it has {len(lines)} lines of metrics for {len(before)} epochs"
    selected = len(before) - sum(each.epochs for each in stages[:-1])
    if (state["best"] is None) != (selected <= 0) or (state.get("steps") is None) != (not step):
        return "what it has does not fit its place"
    if not isinstance(state["start"], dict) or any(type(time) is not float or time < 0 for time in _times(state)):
        return "it says when nothing can have been"
    return ""


def _times(state: Mapping[str, Any]) -> list[Any]:
    return [
        state["seconds"],
        *(line.get(key) for line in state["metrics"] for key in ("seconds", "validation_seconds")),
    ]


@contextmanager
def _restoring() -> Iterator[None]:
    """Refuse a state whose parts, with a checksum that fits, are not those of this run."""
    try:
        yield
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise _refused(first_line(error)) from None


def _refused(reason: str) -> InputError:
    return InputError(f"{STATE} is no state of this run ({reason}); delete it, and the run begins anew")


def _buffers(model: nn.Module) -> list[Tensor]:
    """Return what a model learns besides weights: running statistics."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def _mix(*numbers: int) -> int:
    """One well-spread seed from several small numbers."""
    text = "/".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
