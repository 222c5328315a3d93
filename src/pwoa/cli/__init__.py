"""The command line: verbs only. Parse, call the library, print. torch is imported by the verb that needs it."""

import signal
import sys
from typing import NoReturn

from pwoa.cli.bench import bench
from pwoa.cli.evaluate import compare, evaluate
from pwoa.cli.export import export
from pwoa.cli.options import app
from pwoa.cli.paper import reproduce
from pwoa.cli.report import report
from pwoa.cli.run import demo, pretrain, prune, sweep
from pwoa.cli.share import card, push
from pwoa.cli.show import data_app, models_app, recipe
from pwoa.errors import Terminated
from pwoa.progress import forgive_output

__all__ = ["app", "main"]

for verb in (prune, pretrain, evaluate, compare, sweep, reproduce, export, bench, report, demo, recipe, push, card):
    app.command()(verb)
app.add_typer(data_app, name="data")
app.add_typer(models_app, name="models")


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
