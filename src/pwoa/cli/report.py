"""The verb that shows runs: report."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pwoa.cli.options import print_warning, say
from pwoa.errors import InputError, explain, first_line

ReportOption = Annotated[bool, typer.Option("--report/--no-report", help="Write report.html into the folder.")]


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, evaluations or sweeps, or a folder of such.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page; else report.html in the folder.")] = None,
    plots: Annotated[str, typer.Option(help="Write the figures as files too: svg, png, pdf, as svg,png.")] = "",
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve a folder of runs to a browser on this machine, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --serve; 0 takes a free one.")] = 0,
) -> None:
    """Write one page to look at: tables, curves, example images and settings of runs, evaluations or a sweep.

    Example: [bold]pwoa report runs/demo[/bold]

    Example: [bold]pwoa report runs/a runs/b --out both.html --plots svg,png[/bold]

    Example: [bold]pwoa report --serve runs[/bold]
    """
    if serve:
        _serve(folders, port)
        return
    from pwoa.report.page import report as library

    say(f"report: {library(*folders, out=out, plots=plots)}")


def write_report(folder: Path, wanted: bool) -> None:
    """Write the page of what has just ended, and say where it is; nothing that goes wrong here loses the result."""
    if not wanted:
        return
    try:
        from pwoa.report.page import report as library

        say(f"report: {library(folder)}")
    except Exception as error:
        print_warning(f"no report was written: {explain(error) or first_line(error)}")


def _serve(folders: list[Path], port: int) -> None:
    from pwoa.report.serve import serve as library

    if len(folders) != 1:
        raise InputError(f"--serve takes one folder that has the runs in it, not {len(folders)}")
    with library(folders[0], port) as server:
        say(f"serving {folders[0]} at {server.address} until Ctrl-C")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
