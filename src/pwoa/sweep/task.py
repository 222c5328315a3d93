"""A run as a command, wherever it is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """The words after `pwoa` on the command line, and the file for what it prints."""

    name: str
    arguments: tuple[str, ...]
    log: Path

    def reason(self) -> str:
        """Why it failed: the last line it printed."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return (text.strip().splitlines() or [f"it said nothing in {self.log}"])[-1].removeprefix("error: ")
