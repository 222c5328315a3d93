"""Time `pwoa prune` from the start of a process to the evaluated model: with an empty compiler cache, then a full one.

    python -m benchmarks.launch --teacher trades.pt --data-folder CIFAR10 --out results/launch.json

A row for each process. `seconds` are the clock's, `training` and `evaluation` what the run itself says of them; else
there is the start of Python, torch and the device, the loading, and the check of the teacher. The evaluation is natural
accuracy and PGD-20 of teacher and student on all test images.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Row, keep_rows, load_rows, markdown, one_line, option_parser
from pwoa import __version__
from pwoa.errors import InputError
from pwoa.storage.folder import RESULT

SHORT = ("evaluation.attacks=natural,pgd20", "evaluation.strong=0", "evaluation.checks=false")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for a process with an empty compiler cache, and for one that finds what it left there."""
    with tempfile.TemporaryDirectory() as scratch:
        for cache in ("empty", "full"):
            folder = Path(scratch) / cache
            command = [sys.executable, "-m", "pwoa", "prune", "--recipe", options.recipe, "--rate", f"{options.rate:g}"]
            command += ["--out", str(folder)]
            command += ["--checkpoint", options.teacher] if options.teacher else []
            command += ["--data-folder", options.data_folder] if options.data_folder else []
            command += [word for setting in (*SHORT, *options.settings) for word in ("--set", setting)]
            start = time.perf_counter()
            ended = subprocess.run(
                command,
                env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(Path(scratch) / "programs")},
                capture_output=True,
                text=True,
                check=False,
            )
            seconds = time.perf_counter() - start
            if ended.returncode:
                said = (ended.stderr or ended.stdout).strip().splitlines() or [f"exit code {ended.returncode}"]
                raise InputError(f"pwoa prune failed: {said[-1]}")
            result = json.loads((folder / RESULT).read_bytes())
            yield {
                "version": __version__,
                "recipe": options.recipe,
                "rate": options.rate,
                "cache": cache,
                "seconds": round(seconds, 1),
                "training": round(result["training_seconds"], 1),
                "evaluation": round(result["evaluation_seconds"], 1),
                "pgd20": round(result["pruned"]["pgd20"], 2),
                "device": result["device"],
                "note": "",
            }


def launch_table(path: Path) -> str:
    """Return the seconds of each process, and what they went into."""
    head = ["version", "compiler cache", "in all", "training", "evaluation", "the rest", "note"]
    lines = []
    for row in load_rows(path):
        known = [row["seconds"], row["training"], row["evaluation"]]
        rest = None if None in known else known[0] - known[1] - known[2]
        times = ["" if value is None else f"{value:.1f} s" for value in (*known, rest)]
        lines.append([row["version"], row["cache"], *times, row["note"]])
    return markdown(head, lines)


@one_line()
def main() -> None:
    """Time two processes."""
    parser = option_parser(__doc__)
    parser.add_argument("--recipe", default="cifar10-robust")
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--teacher", help="the robust teacher (default: the recipe's)")
    parser.add_argument("--data-folder", help="the data set's official files")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="SECTION.KEY=VALUE")
    options = parser.parse_args()
    keep_rows(rows(options), options.out)


if __name__ == "__main__":
    main()
