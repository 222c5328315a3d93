"""A run as a command, wherever it is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_ERROR = "error: "


@dataclass(frozen=True)
class Task:
    """The words after `pwoa` on the command line, and the file for what it prints, after what is there `before`."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    before: int = 0

    def reason(self) -> str:
        """Why it failed: the last error it told, or else the last line it printed."""
        text = self.log.read_bytes()[self.before :].decode(errors="replace") if self.log.exists() else ""
        lines = text.strip().splitlines() or [f"it said nothing in {self.log}"]
        errors = [line for line in lines if line.startswith(_ERROR)]
        return (errors or lines)[-1].removeprefix(_ERROR)
