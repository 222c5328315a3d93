"""What people look at: tables, plots, pages, and what is in a file or a run."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class _Room(ModuleType):
    """A room that is a verb too: `pwoa.report("runs/mine")`. One name is one thing, and this is a package."""

    def __call__(
        self, *folders: str | os.PathLike[str], out: str | Path | None = None, plots: str | Sequence[str] = ()
    ) -> Path:
        """Write one page of runs, evaluations or sweeps; see `pwoa.report.page.report`."""
        from pwoa.report.page import report

        return report(*folders, out=out, plots=plots)


sys.modules[__name__].__class__ = _Room
