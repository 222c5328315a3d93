"""Check what the engine promises: fast agrees with exact, a killed run resumes, the paper's whole run takes minutes.

    python -m benchmarks.engine --checkpoint resnet18.pt --data-folder CIFAR10 --out rows.json

Parts, each on CIFAR-10 with a robust ResNet-18, rate 4, HSIC on, and batches of 512 (four groups of 128):
agreement  the same seed in mode `exact` (float32) and `fast`: mean loss of the first epoch, accuracy at the end
resume     a run killed in each of its two stages and resumed: the same bits (exact), how far apart (fast)
whole      the paper's 50 + 100 epochs, with everything from loading the teacher to PGD-20 on all test images
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pwoa
from benchmarks.rows import Row, cifar10_parser, keep_rows, one_line, rounded
from pwoa.data.images import Data
from pwoa.progress import Progress
from pwoa.recipe import recorded_recipe
from pwoa.runs.folder import Result

PARTS = ("agreement", "resume", "whole")
BATCH = 512
LARGER_BATCH = {"training.batch": BATCH, "search.learning_rate": 0.03, "finetune.learning_rate": 0.015}
"""Four times the published batch of 128, and three times its learning rates."""


class Killed(Progress):
    """Interrupts a run when a number of steps is done."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def advance(self, units: int = 1) -> None:
        self.left -= units
        if self.left == 0:
            raise KeyboardInterrupt


class Bench:
    """Prunes one teacher with many settings; each part yields rows."""

    def __init__(self, given: argparse.Namespace, scratch: Path) -> None:
        self.given, self.scratch = given, scratch
        self.data = pwoa.load_data("cifar10", data_folder=given.data_folder)
        self.shared = {
            **LARGER_BATCH,
            "training.device": given.device,
            "evaluation.attacks": ["natural", "pgd20"],
            "evaluation.images": given.test_images,
        }

    def prune(self, name: str, data: Data, settings: Mapping[str, Any], progress: Progress | None = None) -> Result:
        """Prune in a folder of that name."""
        teacher = pwoa.load_model(self.given.checkpoint, data, architecture="resnet18")
        return pwoa.prune(
            teacher,
            data,
            recipe="cifar10",
            settings={**self.shared, **settings},
            folder=self.scratch / name,
            force=True,
            progress=progress,
        )

    def first(self, images: int) -> Data:
        """Return the data with the first training images only."""
        return Data("cifar10", self.data.train.first(images), self.data.test, self.data.classes)

    def agreement(self) -> Iterator[Row]:
        """Compare the two modes."""
        search, finetune = self.given.epochs
        for mode in ("exact", "fast"):
            settings = {"training.mode": mode, "search.epochs": search, "finetune.epochs": finetune}
            run = self.prune(f"agreement-{mode}", self.data, settings)
            yield {
                "part": "agreement",
                "mode": mode,
                "epochs": f"{search} + {finetune}",
                "first_epoch_loss": round(run.metrics[0]["train"]["loss"], 5),
                **rounded(run.summary["pruned"]),
                "images": run.summary["images"],
                "training_seconds": round(run.summary["training_seconds"], 1),
                "device": run.summary["device"],
            }

    def resume(self) -> Iterator[Row]:
        """Compare runs that were killed and resumed with one that was not."""
        data = self.first(self.given.resume_images)
        short = {"search.epochs": 2, "finetune.epochs": 2, "data.validation": 512, "training.checkpoint_seconds": 0}
        steps = (len(data.train) - 512) // BATCH
        for mode in ("exact", "fast"):
            settings = {**short, "training.mode": mode}
            whole = self.prune(f"whole-{mode}", data, settings)
            weights = (whole.folder / "model.safetensors").read_bytes()
            for at in (steps + steps // 2, 3 * steps + steps // 2):
                name = f"killed-{mode}-{at}"
                with contextlib.suppress(KeyboardInterrupt):
                    self.prune(name, data, settings, Killed(at))
                again = self.prune(name, data, settings)
                yield {
                    "part": "resume",
                    "mode": mode,
                    "killed_at_step": at,
                    "of_steps": 4 * steps,
                    "same_bits": (again.folder / "model.safetensors").read_bytes() == weights,
                    "validation_loss": again.metrics[-1]["validation"]["loss"],
                    "validation_loss_unkilled": whole.metrics[-1]["validation"]["loss"],
                    "device": again.summary["device"],
                }

    def whole(self) -> Iterator[Row]:
        """Time the paper's whole run."""
        start = time.perf_counter()
        run = self.prune("paper", self.data, {"training.mode": self.given.mode})
        epochs = [line["seconds"] for line in run.metrics]
        yield {
            "part": "whole",
            "mode": recorded_recipe(run.folder).training.mode,
            "epochs": "50 + 100",
            "rate": round(run.summary["rate"], 3),
            "seconds": round(time.perf_counter() - start, 1),
            "training_seconds": round(run.summary["training_seconds"], 1),
            "first_epoch_seconds": round(epochs[0], 1),
            "median_epoch_seconds": round(sorted(epochs)[len(epochs) // 2], 3),
            "teacher": rounded(run.summary["teacher"]),
            **rounded(run.summary["pruned"]),
            "images": run.summary["images"],
            "device": run.summary["device"],
        }


@one_line()
def main() -> None:
    """Run the parts asked for."""
    parser = cifar10_parser(__doc__)
    parser.add_argument("--checkpoint", required=True, help="a robust ResNet-18 for CIFAR-10")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--epochs", nargs=2, type=int, default=[3, 5], help="of the agreement")
    parser.add_argument("--resume-images", type=int, default=6656)
    parser.add_argument("--test-images", type=int, default=0, help="0: all")
    parser.add_argument("--mode", default="auto", help="of the whole run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(given, Path(scratch))
        for part in given.parts:
            keep_rows(getattr(bench, part)(), given.out)


if __name__ == "__main__":
    main()
