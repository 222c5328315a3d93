"""The steps of a stage: batches, gradients, averaged weights, what is written down, and what to do without memory."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pwoa.errors import InputError, counted
from pwoa.progress import Progress
from pwoa.recipe.sections import TrainingRecipe
from pwoa.training.fast import Replayed
from pwoa.training.groups import Plan
from pwoa.training.processes import Processes
from pwoa.training.sgd import Sgd
from pwoa.training.stage import Batch, Loss, Material, Stage


@dataclass(frozen=True)
class Context:
    """What the parts of the engine share: the model, what it is trained on and how, and how batches are cut up.

    records: whether what is done for each batch is recorded as CUDA graphs.
    """

    model: nn.Module
    material: Material
    recipe: TrainingRecipe
    progress: Progress
    processes: Processes
    plan: Plan
    records: bool

    @property
    def device(self) -> torch.device:
        """Where the images are, and so the model."""
        return self.material.images.pixels.device

    @property
    def group(self) -> int:
        """The number of images over which statistics are taken."""
        return min(self.recipe.group, self.recipe.batch)


class Average:
    """A running average of a model's weights and buffers; with decay 0 it is the model itself.

    At step t the decay is at most (1 + t) / (10 + t): an average over the last ninth of the steps or so, until that is
    longer than the decay remembers. Else in a few hundred steps the average would not leave the weights of the start.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._live = [value for value in model.state_dict().values() if value.is_floating_point()]
        self.values: list[Tensor] = [value.clone() for value in self._live] if decay else []
        self._pull = self._live[0].new_zeros((), dtype=torch.float32) if decay else None  # a recorded step reads it

    def reach(self, step: int) -> None:
        """Tell which step, counted from 0, comes next."""
        if self._pull is not None:
            self._pull.fill_(1 - min(self._decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the model, for all tensors at once."""
        if self._pull is not None:
            differences = torch._foreach_sub(self._live, self.values)
            torch._foreach_mul_(differences, self._pull)
            torch._foreach_add_(self.values, differences)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While inside, the model has the averaged weights."""
        if not self._decay:
            yield
            return
        kept = [value.clone() for value in self._live]
        self._copy(self._live, self.values)
        try:
            yield
        finally:
            self._copy(self._live, kept)

    def load(self, values: list[Tensor]) -> None:
        """Take back the `values` of an earlier average."""
        self._copy(self.values, values)

    @staticmethod
    @torch.no_grad()
    def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


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
        """Count images that have been added; a replayed step adds on the device alone."""
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
        sums_by_name = dict(zip(names, values, strict=True))
        return {name: sums_by_name[name] / images for name in self._sums}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far, and over how many images they are."""
        return {"sums": dict(self._sums), "images": self._images}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Take back what `state_dict` gave."""
        self._sums = {name: value.to(device) for name, value in state["sums"].items()}
        self._images = state["images"]


Optimizer = Sgd | torch.optim.Adam
_HOW = ("lr", "fused", "capturable")


def make_optimizer(stage: Stage, model: nn.Module, recipe: TrainingRecipe, recorded: bool) -> Optimizer:
    """Make SGD or Adam over what the stage changes; for `recorded` steps, all that it reads is on the device."""
    chosen = stage.parameters()
    parameters = [value for value in (model.parameters() if chosen is None else chosen) if value.requires_grad]
    device = parameters[0].device
    shared: dict[str, Any] = {
        "lr": torch.tensor(stage.learning_rate, device=device) if recorded else stage.learning_rate,
        "weight_decay": recipe.weight_decay,
    }
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, betas=(recipe.momentum, 0.999), capturable=recorded, fused=True, **shared)
    return Sgd(parameters, momentum=recipe.momentum, **shared)


def resume_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Take back momentum and the like; how steps are computed here stays, whatever computed them before."""
    ways = [{key: group[key] for key in _HOW if key in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(dict(state))
    for group, way in zip(optimizer.param_groups, ways, strict=True):
        group.update(way)


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def in_precision(recipe: TrainingRecipe, device: torch.device) -> AbstractContextManager[None]:
    """Compute in the precision of the mode while inside."""
    # Casts that are kept from one call to the next would not be a part of a graph.
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.mode == "fast", cache_enabled=False)


class Steps:
    """The steps of a stage; where they can be, they are recorded once, and replayed in all epochs."""

    def __init__(
        self,
        context: Context,
        stage: Stage,
        optimizer: Optimizer,
        average: Average,
    ) -> None:
        self.meter = Meter()
        self.generator = torch.Generator(context.device)
        self.optimizer, self.average = optimizer, average
        self._context, self._stage = context, stage
        self._share = context.processes.share(context.recipe.batch)
        self._form = torch.channels_last if context.recipe.mode == "fast" else torch.contiguous_format
        self._one = Replayed(record=context.records, generator=self.generator)

    def take(self, index: Tensor, learning_rate: float, step: int) -> None:
        """Take a step, the number of which in its stage is counted from 0, on the images at these positions."""
        set_learning_rate(self.optimizer, learning_rate)
        self.average.reach(step)
        self._one(self._step, index, self._stage.constants())
        self.meter.count(len(index) // self._context.processes.count)

    def _step(self, index: Tensor) -> None:
        context, stage, share = self._context, self._stage, self._share
        x, y = context.material.augmented(index, self.generator)
        x = x[share]
        x = x.contiguous(memory_format=self._form) if x.dim() == 4 else x
        self._backward(Batch(x, y[share], index[share]))
        context.processes.average(weight.grad for weight in context.model.parameters() if weight.grad is not None)
        stage.after_backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        stage.after_step()
        self.average.update()

    def seed(self, seed: int) -> None:
        """Begin all randomness anew: what is the same in all processes, and what is not."""
        torch.manual_seed(seed + self._context.processes.rank)
        self.generator.manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return how far an epoch has come: sums, and the states of the generators."""
        device = self._context.device
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        generators = {"torch": torch.get_rng_state(), "cuda": cuda, "own": self.generator.get_state()}
        return {"meter": self.meter.state_dict(), "device": device.type, "generators": generators}

    def load_state_dict(self, state: Mapping[str, Any], seed: int) -> None:
        """Take back what `state_dict` gave; on another kind of device, or by several processes, seed anew."""
        device, processes, generators = self._context.device, self._context.processes, state["generators"]
        if processes.first:
            self.meter.load_state_dict(state["meter"], device)
        if state["device"] != device.type or processes.count > 1:
            self.seed(seed)
            return
        torch.set_rng_state(generators["torch"])
        if generators["cuda"] is not None:
            torch.cuda.set_rng_state(generators["cuda"], device)
        self.generator.set_state(generators["own"])

    def _backward(self, batch: Batch) -> None:
        """Return the gradients of a batch; where memory runs out, of its parts one after the other, to the same end."""
        model = self._context.model
        buffers = list(model.buffers())
        recording = self._context.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
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
        with in_precision(self._context.recipe, self._context.device):
            loss = self._stage.loss(part)
        (loss.total / self._context.plan.parts).backward()  # type: ignore[no-untyped-call]
        return Loss(
            loss.total.detach(), {name: value.detach() for name, value in loss.parts.items()}, loss.logits.detach()
        )

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """Return the batch in equal parts of whole groups; `plan.part` says which is at hand."""
        plan = self._context.plan
        size = len(batch.y) // plan.parts
        for number in range(plan.parts):
            plan.part, plan.images = number, size
            part = slice(number * size, (number + 1) * size)
            yield Batch(batch.x[part], batch.y[part], batch.index[part])

    def _cut_smaller(self, images: int) -> None:
        """Take more parts, as few as can be; an error when a part would be less than a group."""
        plan = self._context.plan
        group = min(plan.group, images)
        fitting = [parts for parts in range(plan.parts + 1, images // group + 1) if images % (parts * group) == 0]
        if not fitting:
            raise InputError(
                f"out of memory with {counted(images // plan.parts, 'image')} at a time; lower training.group "
                "(and training.batch), or use a device with more memory"
            )
        plan.parts = fitting[0]
        self._context.progress.say(f"out of memory: batches are now computed in {plan.parts} parts, to the same result")
