"""What all verbs share: the application, how errors are printed, the options that several take, and tables."""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from pwoa import __version__
from pwoa.errors import DefenceWarning, ProcessDied, explain, one_line, printable

USUAL = 80
"""The columns of a terminal, unless somebody made it narrower."""
VERBS = {
    "prune": ("run", "Prune a robust model with natural examples only."),
    "pretrain": ("run", "Train a robust model from scratch, with adversarial examples, to have something to prune."),
    "evaluate": ("evaluate", "Measure a model's natural and robust accuracy."),
    "compare": ("evaluate", "Compare two evaluations image by image: which is more robust, and is it chance?"),
    "sweep": ("run", "Prune many times: every combination of the settings in a grid."),
    "reproduce": ("paper", "Reproduce the tables and figures of the paper, beside its own numbers."),
    "export": (
        "export",
        "Write a model for where it runs: smaller, or for another runtime; compared with torch before it is in place.",
    ),
    "bench": (
        "bench",
        "Time a model by every way to run it on a CPU: torch, onnxruntime, OpenVINO, C. What is fastest and how large?",
    ),
    "report": (
        "report",
        "Write one page to look at: tables, curves, example images and settings of runs, evaluations or a sweep.",
    ),
    "demo": (
        "run",
        "See the paper's claim happen: prune a robust LeNet naively, by PwoA and beyond it, in minutes on a CPU.",
    ),
    "recipe": (
        "show",
        "Show a recipe with all its settings and what each means; any can be changed by `--set`. Or list the presets.",
    ),
    "push": ("share", "Put a run's model on the Hugging Face hub, with a card that says what was measured."),
    "card": ("share", "Show the model card that pwoa push would send, or write all of it into a folder."),
    "data": ("show", "Data sets: what is here, and get one."),
    "models": ("show", "Architectures that are known, and what is in a checkpoint."),
}
"""The module of each verb, and what the verb does: `pwoa --help` need not load them all."""


class Verbs(TyperGroup):
    """The verbs, each loaded when it is asked for, and the one place where an exception becomes a line and a code.

    2 for what bad input or the machine causes, 1 if another process of the run died, 130 after Ctrl-C. What nobody
    foresaw is a bug, and stays a traceback.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        shown = {name: TyperCommand(name, help=summary) for name, (_, summary) in VERBS.items()}
        self.commands = shown | dict(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the verb that is asked for."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_verb(name) if name in VERBS else command, rest

    def main(self, args: Any = None, *, standalone_mode: bool = True, **kwargs: Any) -> Any:  # type: ignore[override]
        """Run the command line; it ends with SystemExit, unless standalone_mode is off."""
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **kwargs)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DefenceWarning)  # a verb prints what the checks found, below its table
                code = super().main(args, standalone_mode=False, **kwargs)
            sys.stdout.flush()  # a full disk is found here, not while Python ends
        except KeyboardInterrupt:  # a second Ctrl-C, while the first was answered
            code = 130
        except Exception as error:
            code = _answer(error)
        sys.exit(code)


def load_verb(name: str) -> Any:
    """Return a verb with its options."""
    verb = getattr(import_module(f"pwoa.cli.{VERBS[name][0]}"), name)
    if isinstance(verb, typer.Typer):
        return typer.main.get_command(verb)
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(name)(verb)
    return typer.main.get_command(alone)


def _answer(error: Exception) -> int:
    """Print the line that explains an error, and return the exit code; a bug is raised again."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return 2
    usage = getattr(error, "format_message", None)  # of the parser of command lines
    line = one_line(" ".join(usage().split())) if usage else explain(error)
    if line is None:
        raise error
    with suppress(OSError):
        print(f"error: {line}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # let it go, for Python tries again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if isinstance(error, ProcessDied) else 2


app = typer.Typer(
    cls=Verbs,
    help="Prune adversarially robust networks without adversarial examples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

RecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help="A preset, as cifar10-robust, or a TOML file; else that for the data. `pwoa recipe` lists them.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change a setting of the recipe, as --set finetune.epochs=5; may be repeated. `pwoa recipe NAME` shows "
        "them all.",
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="The run folder; the same one again resumes.")]
DataOption = Annotated[str | None, typer.Option("--data", help="A data set's name or a folder of images.")]
DataFolderOption = Annotated[
    Path | None, typer.Option("--data-folder", help="Where the data set's official files are.")
]
ArchOption = Annotated[
    str | None,
    typer.Option("--arch", help="Of the checkpoint: FILE.py:CLASS of your own, or a name; else it is recognised."),
]
MeanOption = Annotated[
    str | None,
    typer.Option("--mean", help="Normalise the images: a number for each channel, as 0.49,0.48,0.45."),
]
StdOption = Annotated[str | None, typer.Option("--std", help="What goes with --mean.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, …")]


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


def changes_of(settings: Sequence[str] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --set gives, and the options that were given by the setting that each is short for; paths as text."""
    from pwoa.recipe.settings import merge, parse_setting

    texts = {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
    return merge(dict(map(parse_setting, settings or ())), texts)


def console() -> Any:
    """Return a console that prints what it is given as it is: brackets and colons are no commands."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    """Print lines for a person; nothing in them can steer the terminal."""
    print(printable(text, "\n"))


class _Printable:
    """A table whose cells cannot steer the terminal."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        for segment in console.render(self._table, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, "\n"))


def print_table(table: Any, gap: bool = True) -> None:
    """Print a table, after an empty line unless there is to be no gap; in a narrow terminal without any padding."""
    if gap:
        print()
    screen = console()
    if screen.width < USUAL:
        table.padding = 0
    screen.print(_Printable(table))


def print_notes(accuracies: Mapping[str, float], threat: Any) -> None:
    """Print which attacks of a table cannot reach the edge of the ball, and what `strong` is."""
    from pwoa.evaluation.scores import weak_steps

    if short := weak_steps(accuracies, threat):
        print(f"note: {short}.")
    if "strong" in accuracies:
        print("strong is APGD-CE and APGD-T; the worst case is the accuracy under all of these attacks together.")


def print_warnings(findings: Mapping[str, str] | list[tuple[str, str]]) -> None:
    """Print what checks found, as (check, message)."""
    for check, message in findings.items() if isinstance(findings, Mapping) else findings:
        print_warning(f"warning ({check}): {message}")


def print_warning(text: str) -> None:
    """Print something to beware of, in one line."""
    console().print(one_line(text), style="yellow", soft_wrap=True)
