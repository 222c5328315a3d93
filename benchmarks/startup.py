"""Measure what start and loading cost beside another version: processor time, the least of runs in turn.

    python -m benchmarks.startup --other SRC --models MODELS --out results/startup.json

SRC: the folder `src` of the other version. MODELS: a folder with a ResNet-18 and other checkpoints to load.
A row for each thing that is done: milliseconds there and here, and their ratio. Starts are whole processes; loading is
timed within one that has loaded the file once before. Both versions are compiled to byte code first, as pip does it.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Row, keep_rows, one_line, option_parser

HERE = Path(__file__).parents[1] / "src"
_LOAD = """
import sys, time
from pwoa.models.load import load_model
from pwoa.models.architectures.registry import build
path, architecture, classes, channels = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
network = build(architecture, classes, channels)
load_model(path, architecture=network)
times = []
for _ in range(15):
    start = time.process_time()
    load_model(path, architecture=network)
    times.append(time.process_time() - start)
print(min(times))
"""
STARTS = {
    "pwoa --help": ["-m", "pwoa", "--help"],
    "pwoa recipe mnist": ["-m", "pwoa", "recipe", "mnist"],
    "import pwoa": ["-c", "import pwoa; pwoa.load_model"],
}
CHECKPOINTS = {
    "cifar10_resnet18_trades_fp16.pt": ("resnet18", "10", "3"),
    "mnist_smallcnn_TRADES_official_linf0.3.pt": ("smallcnn", "10", "1"),
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each thing that is measured."""
    versions = {"before": options.other, "after": HERE}
    for source in versions.values():
        compileall.compile_dir(source, quiet=1)
    for name, arguments in STARTS.items():
        yield _row(f"start: {name}", options.runs, {key: (src, arguments) for key, src in versions.items()}, False)
    for file, about in CHECKPOINTS.items():
        arguments = ["-c", _LOAD, str(options.models / file), *about]
        runs = max(3, options.runs // 3)
        yield _row(f"load: {file}", runs, {key: (src, arguments) for key, src in versions.items()}, True)


def _row(part: str, runs: int, commands: dict[str, tuple[Path, list[str]]], printed: bool) -> Row:
    """Run the commands in turn; a command's time is what it prints, or else its processor time."""
    times: dict[str, list[float]] = {key: [] for key in commands}
    for _ in range(runs):
        for key, (source, arguments) in commands.items():
            times[key].append(_seconds(source, arguments, printed))
    least = {f"{key}_ms": round(1000 * min(values), 2) for key, values in times.items()}  # other work only adds
    return {"part": part, **least, "ratio": round(least["after_ms"] / least["before_ms"], 3), "runs": runs}


def _seconds(source: Path, arguments: list[str], printed: bool) -> float:
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if printed:
        return float(done.stdout)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@one_line()
def main() -> None:
    """Measure starts, then loading."""
    parser = option_parser(__doc__)
    parser.add_argument("--other", type=Path, required=True, help="the folder src of the other version")
    parser.add_argument("--models", type=Path, required=True, help="the folder with the checkpoints")
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    keep_rows(rows(options), options.out)


if __name__ == "__main__":
    main()
