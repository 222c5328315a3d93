"""`python -m pwoa.sweep.child` is `pwoa` as a sweep starts it: when the sweep is gone, it ends as by SIGTERM."""

from __future__ import annotations

import os
import signal
from threading import Thread

from pwoa.cli import main


def end_with(pipe: int) -> None:
    """Wait for the other end of a pipe to be closed, which the system does however its process ends."""
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    Thread(target=end_with, args=(0,), daemon=True).start()
    main()
