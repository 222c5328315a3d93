"""The command line: verbs only. Parse, call the library, print. torch is imported by the verb that needs it."""

from __future__ import annotations

from pwoa.cli.app import app
from pwoa.cli.carrying import card, pack, push, unpack
from pwoa.cli.looking import data_app, models_app
from pwoa.cli.measuring import compare, evaluate
from pwoa.cli.training import demo, pretrain, prune, sweep

__all__ = ["app", "main"]

for verb in (prune, pretrain, evaluate, compare, sweep, demo, push, card, pack, unpack):
    app.command()(verb)
app.add_typer(data_app, name="data")
app.add_typer(models_app, name="models")


def main() -> None:
    """The console script."""
    app()
