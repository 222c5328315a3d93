"""The verb that times: bench."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pwoa.cli.options import DataFolderOption, DataOption, print_table, say
from pwoa.errors import InputError

BUSY = 1.1
"""How many times as long the clock may take as the processor before it is told."""


def bench(
    models: Annotated[list[str], typer.Argument(metavar="MODEL…", help="What pwoa evaluate takes, one or more.")],
    teacher: Annotated[str | None, typer.Option(help="The dense network to compare with.")] = None,
    arch: Annotated[
        str | None,
        typer.Option("--arch", help="Of checkpoints, and of runs of your own class: FILE.py:CLASS, or a name."),
    ] = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    routes: Annotated[
        str | None, typer.Option(help="Of torch, torch-compiled, onnx, int8, openvino and c; all by default.")
    ] = None,
    threads: Annotated[str, typer.Option(help="How many threads, as 1,all.")] = "1,all",
    seconds: Annotated[float, typer.Option(help="How long to time, about, when all is prepared.")] = 30.0,
    batch: Annotated[int, typer.Option(help="Images at a time, for the throughput; the latency is of one.")] = 32,
    images: Annotated[int, typer.Option(help="On how many test images the answers are compared with torch.")] = 256,
    out: Annotated[Path, typer.Option("--out", help="The folder of result.json and the plot.")] = Path("runs/bench"),
) -> None:
    """Time a model by every way to run it on a CPU: torch, onnxruntime, OpenVINO, C. What is fastest and how large?

    Example: [bold]pwoa bench runs/mine --teacher trades.pt[/bold]
    """
    from pwoa.deploy.bench import bench as library
    from pwoa.progress import ConsoleProgress

    result = library(
        models,
        data,
        teacher=teacher,
        routes=routes,
        threads=threads,
        seconds=seconds,
        batch=batch,
        images=images,
        architecture=arch,
        data_folder=data_folder,
        folder=out,
        progress=ConsoleProgress(),
    )
    _print_bench(result)
    try:
        from pwoa.report.plots import latency_bars

        latency_bars(result.rows, out / "latency.png")
        say(f"plot: {out / 'latency.png'}")
    except InputError as error:
        say(str(error))
    say(f"folder: {out}")


def _print_bench(result: Any) -> None:
    """Print a table for each model, then what cannot be run, what is not here, and what is fastest."""
    from pwoa.report.table import bench_table

    for model in dict.fromkeys(row["model"] for row in result.rows):
        rows = [row for row in result.rows if row["model"] == model]
        print_table(bench_table(rows, f"{model}{_work(rows)}"))
        for label, error in {row["label"]: row["error"] for row in rows if "error" in row}.items():
            say(f"{label} cannot run {model}: {error}")
    about = result.about
    print(f"\n{about['device']}; images/s with {about['batch']} at a time; ms: one image, median and 95th percentile.")
    if about["busyness"] > BUSY:
        print(
            f"The machine was busy: the clock took {about['busyness']:.2g} times as long as the processor. Times with "
            "one thread are the processor's."
        )
    for route, how in result.missing.items():
        say(f"not here: {route}; {how}")
    for sentence in result.sentences:
        say(sentence)


def _work(rows: list[dict[str, Any]]) -> str:
    """Say how many multiply-adds an image takes, where that is known."""
    row = next((row for row in rows if row.get("macs")), None)
    if row is None:
        return ""
    kept, dense = (f"{(row[key] or row['macs']) / 1e6:,.4g}" for key in ("macs", "macs_dense"))
    return f": {kept if kept == dense else f'{kept} of {dense}'} million multiply-adds"
