"""The verb for the paper's tables and figures: reproduce."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pwoa.cli.options import SetOption, print_table, say
from pwoa.errors import InputError, counted, one_line

ROWS, RESULTS = "paper.json", Path("results")
"""The file of rows, and the folder where those of earlier runs usually are."""


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE|FIGURE]...", help="Without any, they are listed.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="paper: its epochs; short: fewer; quick: a rehearsal on the embedded data.")
    ] = "paper",
    out: Annotated[Path, typer.Option("--out", help="The folder of runs, rows, tables and figures.")] = Path(
        "runs/paper"
    ),
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            help="A folder with rows of earlier runs (paper.json), which count as done.",
            show_default="results",
        ),
    ] = None,
    drawn_from: Annotated[
        Path | None, typer.Option("--from", help="Run nothing: draw all from the rows in this folder.")
    ] = None,
    collect: Annotated[bool, typer.Option("--collect", help="Add the rows of finished runs to --results.")] = False,
    teachers: Annotated[
        Path | None, typer.Option("--teachers", help="A folder with the teachers' checkpoints, by name.")
    ] = None,
    train_teachers: Annotated[
        bool, typer.Option("--train-teachers", help="Train the teachers that are not there.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes; the same command goes on later.")
    ] = None,
    on: Annotated[str, typer.Option("--on", help="local: this machine's devices; ray: a Ray cluster.")] = "local",
    jobs: Annotated[
        int, typer.Option(min=0, help="Runs at a time on this machine; 0 is one for each GPU, or one.")
    ] = 0,
    address: Annotated[str | None, typer.Option(help="Where the Ray cluster is, as HOST:6379 or auto.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often a run that was killed is started again.")] = 2,
    settings: SetOption = None,
) -> None:
    """Reproduce the tables and figures of the paper, beside its own numbers.

    Example: [bold]pwoa reproduce[/bold] (lists them, with what is done and what the rest will take)

    Example: [bold]pwoa reproduce ablation-mnist --scale quick[/bold]

    Example: [bold]pwoa reproduce ablation-cifar10 --scale short --teachers TEACHERS --minutes 9[/bold]
    """
    from pwoa import paper as library
    from pwoa.progress import ConsoleProgress

    if not names and (train_teachers or minutes is not None):
        raise InputError("name the tables or figures to run; `pwoa reproduce` without any lists them")
    if not names and drawn_from is None and not collect:
        _list(library, scale, out, results or RESULTS, teachers, settings or ())
        return
    if drawn_from is not None and not (drawn_from / ROWS).is_file():
        raise InputError(f"--from {drawn_from} has no {ROWS}; give a folder with rows, as results")
    if results is not None and not results.is_dir() and not collect:
        raise InputError(f"--results {results} is no folder; give one with rows of earlier runs, or leave it out")
    found = library.reproduce(
        names or (),
        out,
        scale=scale,
        results=drawn_from or results or RESULTS,
        teachers=teachers,
        train_teachers=train_teachers,
        settings=settings or (),
        collect=collect,
        draw_only=drawn_from is not None or not names,
        on=on,
        jobs=jobs,
        address=address,
        retries=retries,
        minutes=minutes,
        progress=ConsoleProgress(),
    )
    for name in names or ():
        _show(found.tables[name])
    say(f"\n{counted(len(found.files), 'file')} of tables and figures: {out}")
    if found.failed:
        failed = f"{counted(len(found.failed), 'run')} failed; see the .log files in {out}"
        print(f"error: {one_line(failed)}", file=sys.stderr)
        raise typer.Exit(1)


def _show(found: Any) -> None:
    """Print a table, without the columns for which there is no room on a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from pwoa.paper.tables import IN_FILES, ON_MORE

    table = Table(title=found.title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=0)
    table.caption = "\n".join(note for note in found.notes if note != ON_MORE)
    for name in (shown := [name for name in found.head if name not in IN_FILES]):
        table.add_column(
            name.replace("the ", "the\n"), justify="right" if name else "left", no_wrap=bool(name), overflow="fold"
        )
    for line in found.lines:
        cells = [cell.replace(" ± ", "\n± ") for cell in line[1 : len(shown)]]
        table.add_row(line[0], *(re.sub(r" \(([^,)]+).*", r"\n(\1)", cell) for cell in cells))
    print_table(table)


def _list(library: Any, scale: str, out: Path, results: Path, teachers: Path | None, settings: Sequence[str]) -> None:
    """Print how far each table and figure has come."""
    from rich.table import Table

    states, rates = library.list_plans((), out, scale=scale, results=results, teachers=teachers, settings=settings)
    rehearsal = ": a rehearsal, all on the embedded LeNet and data" if scale == "quick" else ""
    title = f"The paper's tables and figures, scale {scale}{rehearsal}; how long the rest takes on {rates.where}"
    table = Table(title=title, title_justify="left")
    for column in ("name", "what it is", "measured", "the rest"):
        table.add_column(column, no_wrap=column != "what it is")
    for state in states:
        cells = len(state.plan.cells)
        rest = library.time_text(state.seconds) if state.done < cells else ""
        done = f"{state.done} of {cells}" if cells else "no runs"
        table.add_row(state.plan.name, state.plan.title, done, rest)
    print_table(table)
    say("A run that several of them share counts in each.")
    if missing := dict.fromkeys(name for state in states for name in state.missing):
        more = library.time_text(library.training_seconds(list(missing), rates, settings))
        say(
            f"Teachers that are not there: {', '.join(missing)}; give --teachers FOLDER, or --train-teachers, which "
            f"takes another {more}."
        )
