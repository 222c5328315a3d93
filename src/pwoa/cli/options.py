"""What all verbs share: the application, how errors are printed, the options that several take, and tables."""

import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from pwoa import __version__
from pwoa.errors import DefenceWarning, InputError, ProcessDied

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
DataFolderOption = Annotated[
    Path | None, typer.Option("--data-folder", help="Where the data set's official files are.")
]
ArchOption = Annotated[
    str | None,
    typer.Option("--arch", help="The architecture of the checkpoint: a name, auto, or MODULE:FUNCTION of your own."),
]
MeanOption = Annotated[
    str | None,
    typer.Option("--mean", help="Normalise the images: a number for each channel, as 0.49,0.48,0.45."),
]
StdOption = Annotated[str | None, typer.Option("--std", help="What goes with --mean.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, …")]


def friendly(verb: Callable[P, T]) -> Callable[P, T]:
    """Print a user's mistake, or a path that the system refuses, as one line; exit code 2, and 130 after Ctrl-C."""

    @functools.wraps(verb)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        warnings.simplefilter("ignore", DefenceWarning)  # a verb prints what the checks found, below its table
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


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, by the setting that each is short for; paths as text."""
    texts = {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
    return {key: value for key, value in texts.items() if value is not None}


def console() -> Any:
    """Return a console for tables."""
    from rich.console import Console

    return Console(highlight=False)


def print_table(table: Any) -> None:
    """Print a table after an empty line."""
    print()
    console().print(table)


def print_notes(attacks: Iterable[str], threat: Any) -> None:
    """Print which attacks of a table cannot reach the edge of the ball, and what `strong` is."""
    from pwoa.evaluation.scores import weak_steps

    names = list(attacks)
    if short := weak_steps(names, threat):
        print(f"note: {short}.")
    if "strong" in names:
        print("strong is APGD-CE and APGD-T; the worst case is the accuracy under all of these attacks together.")


def print_warnings(findings: Mapping[str, str] | list[tuple[str, str]]) -> None:
    """Print what checks found, as (check, message)."""
    for check, message in findings.items() if isinstance(findings, Mapping) else findings:
        console().print(f"warning ({check}): {message}", style="yellow", markup=False, soft_wrap=True)
