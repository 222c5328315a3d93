"""Measure what people wait for: each example, and the pages of a ResNet-18 and of thirty runs, on one thread.

    python -m benchmarks.report --model CHECKPOINT --data-folder FOLDER --out results/report.json

CHECKPOINT: a robust ResNet-18 for CIFAR-10, whose files FOLDER has. A page is opened in Chromium.
A row for each thing that is done, with its seconds on the clock; of a page also its bytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import pwoa
from benchmarks.rows import Row, keep_rows, load_rows, markdown, one_line, option_parser
from pwoa.data.load import load_data
from pwoa.devices import device_name
from pwoa.evaluation import examples
from pwoa.evaluation.subject import Subject

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(file.stem for file in (ROOT / "examples").glob("*.py"))
RUN = Path("runs", "examples", "noisy")
"""The run that the example new_method leaves behind."""
MANY = 30


def rows(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Yield a row for each thing that is measured. folder: where all of it may be written."""
    for name in EXAMPLES:
        yield {"part": f"example {name}", "seconds": _seconds_of_example(name, folder)}
    yield from _network(options, folder / "evaluation")
    for number in range(MANY):
        shutil.copytree(folder / RUN, folder / "many" / f"run{number:02}")
    yield _page(f"page of {MANY} runs", folder / "many")


def _seconds_of_example(name: str, folder: Path) -> float:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    return round(time.perf_counter() - start, 1)


def _network(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Measure what the example images add to an evaluation of a ResNet-18, and its page."""
    data = load_data("cifar10", data_folder=options.data_folder)
    network = pwoa.load_model(options.model, data, architecture="resnet18")
    pwoa.evaluate(network, data, attacks="natural,pgd10", images=50, checks=False, folder=folder)
    subject = Subject.of(network, data, 50, torch.device("cpu"))
    attempts = examples.Attempts.on(subject.images)
    assert subject.fingerprint  # which an evaluation knows already
    start = time.perf_counter()
    examples.keep_examples(folder / examples.EXAMPLES, subject, attempts)
    yield {"part": "example images of a ResNet-18", "seconds": round(time.perf_counter() - start, 2)}
    yield _page("page of a ResNet-18's evaluation", folder)


def _page(part: str, folder: Path) -> Row:
    """Write the page of a folder, and open it."""
    from playwright.sync_api import sync_playwright

    start = time.perf_counter()
    pwoa.report(folder)
    written = round(time.perf_counter() - start, 2)
    page = folder / "report.html"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        view = browser.new_page()
        view.goto(page.as_uri())
        opened = view.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        browser.close()
    return {"part": part, "seconds": written, "bytes": page.stat().st_size, "seconds_to_open": round(opened / 1000, 2)}


def waiting_table(path: Path) -> str:
    """Return how long each thing takes, and of pages their size and how long they take to open."""
    found = load_rows(path)
    lines = []
    for row in found:
        page = [f"{row['bytes'] / 1000:,.0f} kB", f"{row['seconds_to_open']:.2f} s"] if "bytes" in row else ["", ""]
        lines.append([row["part"], f"{row['seconds']:.3g} s", *page])
    return f"On {found[0]['device']}, other work beside it:\n\n" + markdown(["what", "takes", "has", "opens in"], lines)


@one_line()
def main() -> None:
    """Measure all of it in a folder that is removed afterwards."""
    parser = option_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a checkpoint of a ResNet-18")
    parser.add_argument("--data-folder", type=Path, required=True, help="where the files of CIFAR-10 are")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = device_name(torch.device("cpu"))
    with TemporaryDirectory() as folder:
        keep_rows(({**row, "device": device} for row in rows(options, Path(folder))), options.out)


if __name__ == "__main__":
    main()
