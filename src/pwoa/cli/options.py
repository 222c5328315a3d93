"""What all verbs share: the application, how errors are told, the options that several take, and tables."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from pwoa import __version__
from pwoa.errors import InputError, ProcessDied

P = ParamSpec("P")
T = TypeVar("T")

app = typer.Typer(
    help="Prune adversarially robust networks without adversarial examples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

RecipeOption = Annotated[
    str | None,
    typer.Option("--recipe", help="A preset (mnist, cifar10, cifar100, demo) or a TOML file; else that for the data."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Change a setting of the recipe; `pwoa recipe NAME` shows them all."
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="The run folder; the same one again resumes.")]
DataOption = Annotated[str | None, typer.Option("--data", help="A data set's name or a folder of images.")]
FolderOption = Annotated[Path | None, typer.Option("--folder", help="Where the data set's official files are.")]
ArchOption = Annotated[
    str | None,
    typer.Option("--arch", help="The architecture of the checkpoint: a name, auto, or MODULE:FUNCTION of your own."),
]
MeanOption = Annotated[
    str | None,
    typer.Option("--mean", help="Normalise the images: a number a channel, as 0.49,0.48,0.45, if the file does not."),
]
StdOption = Annotated[str | None, typer.Option("--std", help="What goes with --mean.")]
ATTACKS_HELP = (
    "standard (natural,fgsm,pgd10,pgd20,cw), or any of these, pgdN, cwN, autoattack or its parts, square-paper (Square "
    "as in its paper), transfer."
)
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, …")]


def friendly(verb: Callable[P, T]) -> Callable[P, T]:
    """A user's mistake, or a path that the system refuses, is one line and exit code 2; Ctrl-C is exit code 130."""

    @functools.wraps(verb)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return verb(*args, **kwargs)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except OSError as error:
            if error.filename is None:
                raise
            print(f"error: cannot use {error.filename}: {error.strerror}", file=sys.stderr)
            raise typer.Exit(2) from None
        except ProcessDied as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return wrapped


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pwoa {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prune adversarially robust networks without adversarial examples."""


def console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def print_table(rows: dict[str, dict[str, float]], title: str) -> None:
    from pwoa.report.table import accuracy_table

    print()
    console().print(accuracy_table(rows, title))
