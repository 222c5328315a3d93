"""Verbs that show what there is: data, models, recipes."""

from pathlib import Path
from typing import Annotated

import typer

from pwoa.cli.options import VERBS, print_table, print_warning, say
from pwoa.errors import InputError

data = typer.Typer(help=VERBS["data"][1], no_args_is_help=True, add_completion=False)
models = typer.Typer(help=VERBS["models"][1], no_args_is_help=True, add_completion=False)


@data.command("list")
def data_list() -> None:
    """List the data sets, and where they are."""
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


@data.command("get")
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
    """Show a recipe with all its settings and what each means; any can be changed by `--set`. Or list the presets.

    Example: [bold]pwoa recipe cifar10[/bold]
    """
    from pwoa.recipe import about_preset, load_recipe, presets, to_toml

    if name is not None:
        say(to_toml(load_recipe(name), explained=True).strip())
        return
    from rich.table import Table

    table = Table("name", "what it is")
    for preset in presets():
        table.add_row(preset, about_preset(preset))
    print_table(table, gap=False)


@models.command("list")
def models_list() -> None:
    """List the architectures: their parameters, and at how many points hidden activations are taken."""
    from rich.table import Table

    from pwoa.models.architectures.registry import described

    table = Table()
    for column in ("name", "parameters", "hidden points"):
        table.add_column(column, justify="left" if column == "name" else "right")
    for name, parameters, points in described():
        table.add_row(name, f"{parameters:,}", str(points))
    print_table(table, gap=False)


@models.command("inspect")
def models_inspect(
    file: Annotated[
        str,
        typer.Argument(help="A checkpoint, a run, a model folder, hf:owner/name or an .onnx file; none is executed."),
    ],
    kept: Annotated[
        float | None, typer.Option(help="The part of the weights that the scores of HYDRA or HARP keep; 1 for all.")
    ] = None,
    skeleton: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py", help="Write a class that the checkpoint fits; its forward is for you to write."
        ),
    ] = None,
) -> None:
    """Show what a checkpoint or a folder holds: architecture, normalisation, what is not of the network, results.

    Example: [bold]pwoa models inspect trades.pt[/bold]

    Example: [bold]pwoa models inspect weights.pt --skeleton mynet.py[/bold]
    """
    from rich.table import Table

    from pwoa.report.inspection import inspect

    shown = inspect(file, kept)
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in shown.rows:
        table.add_row(name, value)
    print_table(table, gap=False)
    if shown.tensors:
        tensors = Table("tensor", "shape", "dtype")
        for tensor in shown.tensors:
            tensors.add_row(tensor.name, "×".join(map(str, tensor.shape)) or "a number", tensor.dtype)
        print_table(tensors, gap=False)
    for warning in shown.warnings:
        print_warning(f"warning: {warning}")
    if skeleton is not None:
        if not shown.skeleton:
            raise InputError(f"{file} is no checkpoint file with tensors that a class can have; leave out --skeleton")
        try:
            with skeleton.open("x", encoding="utf-8") as source:
                source.write(shown.skeleton)
        except FileExistsError:
            raise InputError(f"{skeleton} exists; give --skeleton the name of a new file") from None
        say(f"write the forward pass of Net in {skeleton}, then use it as --arch {skeleton}:Net")
