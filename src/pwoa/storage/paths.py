"""What a caller may give where a file, a folder or a run is meant."""

import os
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def as_path(given: T | os.PathLike[str]) -> T | Path:
    """Return what says where it is as a path: what `prune` returns is its run folder. Anything else stays as it is.

    Example: `as_path(pwoa.prune("trades.pt", "cifar10"))` is the folder of the run.
    """
    return Path(given) if isinstance(given, os.PathLike) else given
