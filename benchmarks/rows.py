"""What all scripts share: the first options, and rows that are printed, saved as they come, and shown in tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pwoa.errors import InputError
from pwoa.storage.folder import save_rows

Row = dict[str, Any]


@contextmanager
def one_line() -> Iterator[None]:
    """In a script, a user's mistake is one line and exit code 2."""
    try:
        yield
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def load_rows(path: Path) -> list[dict[str, Any]]:
    """Read the flat rows of a file; none if it is not there yet."""
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row for row in rows):
        raise InputError(f"{path} holds no rows; repair it or choose another file")
    return rows


def option_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that has `--out`, and the first line of a module's text as its description."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="a JSON file; the rows are added to those it has")
    return parser


def cifar10_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser for a script that runs on CIFAR-10, on one device."""
    parser = option_parser(doc)
    parser.add_argument("--data-folder", help="the official CIFAR-10 files")
    parser.add_argument("--device", default="auto")
    return parser


def keep_rows(rows: Iterable[Row], out: Path | None) -> None:
    """Print each row when it is there, and save it behind the rows of a file."""
    saved = load_rows(out) if out else []
    for row in rows:
        print(json.dumps(row), flush=True)
        saved.append(row)
        if out:
            save_rows(out, saved)


def rounded(accuracies: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Return accuracies as rows have them, with two decimals."""
    return {prefix + name: round(value, 2) for name, value in accuracies.items()}


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))
