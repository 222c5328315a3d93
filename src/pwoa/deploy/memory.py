"""The memory that a network takes on a route, measured in a process that does nothing else.

python -m pwoa.deploy.memory ROUTE PATH THREADS SHAPE
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pwoa.deploy.routes import ROUTES, Artefact

CALLS = 3
_SECONDS = 300
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory(route: str, artefact: Artefact, threads: int, shape: Sequence[int]) -> int | None:
    """Return by how many bytes a fresh process grows at most while it opens an artefact and answers one image.

    The runtime itself is there before, and not counted. None where it cannot be known: the system is not Linux, or
    the network is of a class that another process cannot find.
    """
    command = [sys.executable, "-m", "pwoa.deploy.memory", route, str(artefact.path), str(threads), json.dumps(shape)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=True)
        return int(ended.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _measure(name: str, path: str, threads: int, shape: Sequence[int]) -> int:
    import numpy as np

    route = ROUTES[name]
    importlib.import_module(route.runtime)
    x = np.full((1, *shape), 0.5, np.float32)
    _CLEAR.write_text("5")  # the highest so far is forgotten
    before = _status("VmRSS")
    with route.threads(threads):
        call = route.open(Artefact(Path(path), 0), threads)
        for _ in range(CALLS):
            call(x)
    return _status("VmHWM") - before


def _status(field: str) -> int:
    """Return a number of bytes that Linux tells of this process."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    print(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])))
