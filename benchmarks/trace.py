"""Count what a reader meets who follows one small `pwoa prune`: functions, files, and changes from file to file.

    python -m benchmarks.trace
    python -m benchmarks.trace --list prune --method hydra --set search.epochs=1 --set finetune.epochs=1

A function counts at its first call. Functions called while a module is imported are left out, and so are
comprehensions, lambdas and generator expressions.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pwoa

PACKAGE = f"{Path(pwoa.__file__).resolve().parent}{os.sep}"
SMALL = ("prune", *("--set", "search.epochs=1"), *("--set", "finetune.epochs=1"), *("--set", "evaluation.images=20"))

Call = tuple[str, str]
"""The file of a function, and its name within the file."""


def first_calls(run: Callable[[], object]) -> list[Call]:
    """Return the functions of the package that are called while something runs, in the order of their first calls."""
    calls: dict[CodeType, Call] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in calls or not code.co_filename.startswith(PACKAGE):
            return
        if "<" not in code.co_qualname.replace("<locals>", "") and not _is_importing(frame):
            calls[code] = code.co_filename.removeprefix(PACKAGE), code.co_qualname

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return list(calls.values())


def changes(calls: Sequence[Call]) -> int:
    """Count how often a first call is in another file than the one before it."""
    return sum(file != other for (file, _), (other, _) in itertools.pairwise(calls))


def _is_importing(frame: FrameType | None) -> bool:
    """Tell whether a module of the package is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def _run_command(words: Sequence[str]) -> None:
    """Run the command line in this process, in a folder that goes away."""
    from pwoa.cli import main  # here, so that a test of this file need not load it

    sys.argv = ["pwoa", *words]
    folder = os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            os.chdir(folder)


def main() -> None:
    """Trace the command and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the functions in order, too")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=f"of pwoa (default: {' '.join(SMALL)})")
    options = parser.parse_args()
    calls = first_calls(lambda: _run_command(options.command or SMALL))
    if options.list:
        for number, (file, name) in enumerate(calls, 1):
            print(f"{number:4} {file:40} {name}")
    files = {file for file, _ in calls}
    print(f"{len(calls)} functions, {len(files)} files, {changes(calls)} changes of file")


if __name__ == "__main__":
    main()
