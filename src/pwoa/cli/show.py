"""Verbs that show what there is: data, models, recipes."""

from typing import Annotated

import typer

from pwoa.cli.options import print_table, print_warning, say

data_app = typer.Typer(help="Data sets: what is here, and get one.", no_args_is_help=True)
models_app = typer.Typer(help="Architectures that are known, and what is in a checkpoint.", no_args_is_help=True)


@data_app.command("list")
def data_list() -> None:
    """Return the known data sets, and where they are."""
    from rich.table import Table

    from pwoa.data.store import status

    table = Table()
    for column in ("name", "images", "train", "test", "classes", "where"):
        table.add_column(column)
    for row in status():
        where = "embedded" if row.embedded else str(row.where or "not here: pwoa data get " + row.name)
        shape = "×".join(map(str, row.shape))
        table.add_row(row.name, shape, f"{row.train:,}", f"{row.test:,}", str(row.classes), where)
    print_table(table, gap=False)


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10 or cifar100")]) -> None:
    """Download a data set into the cache, verified; a broken download goes on where it stopped."""
    from pwoa.data.store import get
    from pwoa.progress import ConsoleProgress

    progress = ConsoleProgress()
    where = get(name, progress.reach)
    progress.close()
    say(f"{name}: {where}")


def recipe(
    name: Annotated[str | None, typer.Argument(help="A preset or a TOML file; without it, the presets.")] = None,
) -> None:
    """Show a recipe with all its settings, any of which `--set` changes; or which presets there are.

    Example: [bold]pwoa recipe cifar10[/bold]
    """
    from pwoa.recipe import load_recipe, presets, to_toml

    say("\n".join(presets()) if name is None else to_toml(load_recipe(name)).strip())


@models_app.command("list")
def models_list() -> None:
    """Return the known architectures: their parameters, and at how many points hidden activations are taken."""
    from rich.table import Table

    from pwoa.models.architectures.registry import described

    table = Table()
    for column in ("name", "parameters", "hidden points"):
        table.add_column(column, justify="left" if column == "name" else "right")
    for name, parameters, points in described():
        table.add_row(name, f"{parameters:,}", str(points))
    print_table(table, gap=False)


@models_app.command("inspect")
def models_inspect(
    file: Annotated[
        str,
        typer.Argument(help="A checkpoint, a run, a model folder or hf:owner/name; nothing in it is executed."),
    ],
    kept: Annotated[
        float | None, typer.Option(help="The part of the weights that the scores of HYDRA or HARP keep; 1 for all.")
    ] = None,
) -> None:
    """Show what a checkpoint or a folder holds: architecture, normalisation, what is not of the network, results.

    Example: [bold]pwoa models inspect trades.pt[/bold]
    """
    from rich.table import Table

    from pwoa.report.inspection import inspect

    rows, warnings = inspect(file, kept)
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    print_table(table, gap=False)
    for warning in warnings:
        print_warning(f"warning: {warning}")
