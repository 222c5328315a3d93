"""The verb that takes a model to where it runs: export."""

from pathlib import Path
from typing import Annotated

import typer

from pwoa.cli.options import ArchOption, DataFolderOption, DataOption, MeanOption, StdOption, say


def export(
    model: Annotated[
        str, typer.Argument(help="A run, a model folder, hf:owner/name, a checkpoint, a packed file, or FILE.py:CLASS.")
    ],
    to: Annotated[
        list[str], typer.Option("--to", help="packed, onnx, int8 or c; give it again for one more.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder to write into; else export in the run, or export/NAME.")
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="How a packed file keeps weights: float32 (to the bit), float16 or int8.")
    ] = None,
    images: Annotated[int, typer.Option(help="On how many test images it is compared with torch.")] = 1000,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    arch: ArchOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
) -> None:
    """Write a model for where it runs: smaller, or for another runtime; compared with torch before it is in place.

    Example: [bold]pwoa export runs/mine --to packed --to onnx[/bold]

    Example: [bold]pwoa export trades.pt --to int8 --data cifar10 --out shipped[/bold]
    """
    from pwoa.recipe import numbers

    means, deviations = numbers(mean or "", "--mean"), numbers(std or "", "--std")

    from pwoa.deploy.export import exports
    from pwoa.progress import ConsoleProgress

    made = exports(
        model,
        to,
        out,
        values=values,
        images=images,
        data=data,
        data_folder=data_folder,
        architecture=arch,
        mean=means,
        std=deviations,
        progress=ConsoleProgress(),
    )
    for artefact in made:
        say(str(artefact))
