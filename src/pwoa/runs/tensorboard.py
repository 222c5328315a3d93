"""Learning curves for TensorBoard (the extra `tensorboard`): the numbers of metrics.jsonl, in RUN/tensorboard."""

import importlib.util
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pwoa.errors import InputError
from pwoa.runs.folder import CURVES, Run
from pwoa.storage.folder import naming


def check_installed() -> None:
    """Refuse to begin where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            "training.tensorboard needs TensorBoard: pip install 'pwoa[tensorboard]', or leave the setting out"
        )


class Curves:
    """A run as the engine writes to it, each number of its lines of metrics also a point of a curve.

    When a run is resumed, the curves are written anew from the lines that it keeps: no point is there twice.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._folder, self._lines = run, Path(run.path) / CURVES, 0
        self._writer: Any = None
        self.save_checkpoint, self.load_checkpoint = run.save_checkpoint, run.load_checkpoint

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line of metrics, and its points."""
        self._run.log(line)
        self._write([line])

    def keep_metrics(self, lines: Sequence[Mapping[str, Any]]) -> bool:
        """Leave exactly these lines of metrics, and their points; tell whether the lines were all there."""
        were_there = self._run.keep_metrics(lines)
        if self._writer is None or len(lines) != self._lines:
            self._begin()
            self._write(lines)
        return were_there

    def _begin(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is not None:
            self._writer.close()
        with naming(self._run.path):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._writer, self._lines = SummaryWriter(str(self._folder)), 0

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        with naming(self._run.path):
            for line in lines:
                for step, values in ((0, line.get("start", {})), (self._lines + 1, line)):
                    for tag, value in scalars(values):
                        self._writer.add_scalar(tag, value, step)
                self._lines += 1
            self._writer.flush()


def scalars(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a line of metrics by name, as train/loss; the epoch is their place, not one of them.

    Example: `dict(scalars({"epoch": 3, "train": {"loss": 0.5}}))` is {"train/loss": 0.5}.
    """
    for key, value in line.items():
        if isinstance(value, Mapping) and key != "start":
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and key != "epoch":
            yield f"{prefix}{key}", float(value)
