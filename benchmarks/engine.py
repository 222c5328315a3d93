"""What the engine promises: fast agrees with exact, a killed run resumes, the paper's whole run takes minutes.

    python benchmarks/engine.py --checkpoint resnet18.pt --folder CIFAR10 --out rows.json

Parts, each on CIFAR-10 with a robust ResNet-18, rate 4, HSIC on, and batches of 512 (four groups of 128):
agreement  the same seed in mode `exact` (float32) and `fast`: mean loss of the first epoch, accuracy at the end
resume     a run killed in each of its two stages and resumed: the same bits (exact), how far apart (fast)
whole      the paper's 50 + 100 epochs, with everything from loading the teacher to PGD-20 on all test images
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pwoa
from pwoa.data.images import Data
from pwoa.errors import one_line
from pwoa.progress import Progress
from pwoa.storage import save_rows

LARGER_BATCH = {"training.batch": 512, "search.learning_rate": 0.03, "finetune.learning_rate": 0.015}
"""Four times the published batch of 128, and three times its learning rates."""


class Killed(Progress):
    """Interrupts a run when so many steps are done."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def advance(self, units: int = 1) -> None:
        self.left -= units
        if self.left == 0:
            raise KeyboardInterrupt


class Bench:
    """Prunes one teacher again and again."""

    def __init__(self, given: argparse.Namespace, scratch: Path) -> None:
        self.given, self.scratch = given, scratch
        self.data = pwoa.load_data("cifar10", folder=given.folder)
        self.shared = {
            **LARGER_BATCH,
            "training.device": given.device,
            "evaluation.attacks": ["natural", "pgd20"],
            "evaluation.images": given.test_images,
        }

    def prune(self, name: str, data: Data, progress: Progress | None = None, **settings: Any) -> Any:
        teacher = pwoa.load_model("resnet18", self.given.checkpoint, data)
        changes = self.shared | {key.replace("__", "."): value for key, value in settings.items()}
        return pwoa.prune(
            teacher, data, recipe="cifar10", settings=changes, folder=self.scratch / name, progress=progress, force=True
        )

    def first(self, images: int) -> Data:
        return Data("cifar10", self.data.train.first(images), self.data.test, self.data.classes)

    def agreement(self) -> Iterator[dict[str, object]]:
        search, finetune = self.given.epochs
        for mode in ("exact", "fast"):
            run = self.prune(
                f"agreement-{mode}", self.data, training__mode=mode, search__epochs=search, finetune__epochs=finetune
            )
            yield {
                "part": "agreement",
                "mode": mode,
                "epochs": f"{search} + {finetune}",
                "first_epoch_loss": round(run.metrics[0]["train"]["loss"], 5),
                **{name: round(value, 2) for name, value in run.summary["pruned"].items()},
                "images": run.summary["images"],
                "training_seconds": round(run.summary["training_seconds"], 1),
                "device": run.summary["device"],
            }

    def resume(self) -> Iterator[dict[str, object]]:
        data = self.first(self.given.resume_images)
        short = {"search__epochs": 2, "finetune__epochs": 2, "data__validation": 512, "training__checkpoint_seconds": 0}
        steps = (len(data.train) - 512) // LARGER_BATCH["training.batch"]
        for mode in ("exact", "fast"):
            whole = self.prune(f"whole-{mode}", data, training__mode=mode, **short)
            weights = (whole.folder / "model.safetensors").read_bytes()
            for at in (steps + steps // 2, 3 * steps + steps // 2):
                name = f"killed-{mode}-{at}"
                with contextlib.suppress(KeyboardInterrupt):
                    self.prune(name, data, Killed(at), training__mode=mode, **short)
                again = self.prune(name, data, training__mode=mode, **short)
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

    def whole(self) -> Iterator[dict[str, object]]:
        start = time.perf_counter()
        run = self.prune("paper", self.data, training__mode=self.given.mode)
        epochs = [line["seconds"] for line in run.metrics]
        yield {
            "part": "whole",
            "mode": pwoa.load_recipe(run.folder / "recipe.toml").training.mode,
            "epochs": "50 + 100",
            "rate": round(run.summary["rate"], 3),
            "seconds": round(time.perf_counter() - start, 1),
            "training_seconds": round(run.summary["training_seconds"], 1),
            "first_epoch_seconds": round(epochs[0], 1),
            "median_epoch_seconds": round(sorted(epochs)[len(epochs) // 2], 3),
            "teacher": {name: round(value, 2) for name, value in run.summary["teacher"].items()},
            **{name: round(value, 2) for name, value in run.summary["pruned"].items()},
            "images": run.summary["images"],
            "device": run.summary["device"],
        }


@one_line()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", required=True, help="a robust ResNet-18 for CIFAR-10")
    parser.add_argument("--folder", help="the official CIFAR-10 files")
    parser.add_argument("--parts", nargs="+", default=["agreement", "resume", "whole"])
    parser.add_argument("--epochs", nargs=2, type=int, default=[3, 5], help="of the agreement")
    parser.add_argument("--resume-images", type=int, default=6656)
    parser.add_argument("--test-images", type=int, default=0, help="0: all")
    parser.add_argument("--mode", default="auto", help="of the whole run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="a file that holds the rows so far, as a JSON list")
    given = parser.parse_args()
    done: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(given, Path(scratch))
        parts: dict[str, Callable[[], Iterator[dict[str, object]]]] = {
            "agreement": bench.agreement,
            "resume": bench.resume,
            "whole": bench.whole,
        }
        for part in given.parts:
            for row in parts[part]():
                print(json.dumps(row), flush=True)
                done.append(row)
                if given.out:
                    save_rows(given.out, done)


if __name__ == "__main__":
    main()
