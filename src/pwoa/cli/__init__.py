"""The command line: verbs only. Parse, call the library, print. A verb is loaded when it is asked for, torch later."""

import signal
import sys
from typing import NoReturn

from pwoa.cli.options import app
from pwoa.errors import Terminated
from pwoa.progress import forgive_output

__all__ = ["app", "main"]


def main() -> None:
    """Run the console script. SIGTERM ends it as Ctrl-C does, in one line, and exit code 143."""
    signal.signal(signal.SIGTERM, _terminate)
    forgive_output()
    try:
        app()
    except SystemExit as end:
        if end.code == 130:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more Ctrl-C while Python ends
        raise
    except Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ended by SIGTERM; start the same command again to go on", file=sys.stderr)
        sys.exit(128 + signal.SIGTERM)


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated
