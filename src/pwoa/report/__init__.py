"""What people look at: tables, plots, pages, and what is in a file or a run."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A room that is a verb too: `pwoa.report("runs/mine")`. One name is one thing, and this is a package."""

    def __call__(self, *folders: str | Path, **options: Any) -> Path:
        """Write one page of runs, evaluations or sweeps; see `pwoa.report.page.report`."""
        from pwoa.report.page import report

        return report(*folders, **options)


sys.modules[__name__].__class__ = _Room
