"""Verbs that take a model or a run elsewhere: push, card, pack, unpack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pwoa.cli.app import friendly
from pwoa.words import counted


@friendly
def push(
    run: Annotated[Path, typer.Argument(help="A finished run, or a folder that pwoa card --out wrote.")],
    repo: Annotated[str, typer.Option(help="owner/name on the Hugging Face hub; made if it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="If it is made, for its owner alone.")] = False,
    revision: Annotated[str | None, typer.Option(help="A branch; else main.")] = None,
) -> None:
    """Put a run's model on the Hugging Face hub, with a card that says what was measured.

    Log in once with [bold]hf auth login[/bold]. Example: [bold]pwoa push runs/mine --repo me/lenet-x4[/bold]
    """
    from pwoa import sharing

    print(sharing.push_to_hub(run, repo, private=private, revision=revision))


@friendly
def card(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write a folder with model and card instead.")] = None,
) -> None:
    """Show the model card that pwoa push would send, or write all of it into a folder.

    Example: [bold]pwoa card runs/mine --out lenet-x4[/bold]
    """
    from pwoa import sharing

    if out is None:
        print(sharing.card_of(run), end="")
    else:
        print(f"model folder: {sharing.save_pretrained(run, out)}")


@friendly
def pack(
    run: Annotated[Path, typer.Argument(help="A run, finished or not.")],
    out: Annotated[Path, typer.Option("--out", help="A new folder for the pieces.")],
    size: Annotated[str, typer.Option(help="Of a piece at most, as 16MB or 500kB.")] = "16MB",
) -> None:
    """Cut a run into small files, to go on with it on another machine.

    Example: [bold]pwoa pack runs/mine --size 16MB --out pieces[/bold]
    """
    from pwoa import packing

    files = packing.pack(run, out, size)
    print(f"{counted(len(files) - 1, 'piece')} and {packing.LIST} in {out}; there: pwoa unpack {out} --out {run}")


@friendly
def unpack(
    pieces: Annotated[Path, typer.Argument(help="The folder with the pieces.")],
    out: Annotated[Path, typer.Option("--out", help="The run folder, a new one.")],
) -> None:
    """Put a run together again from its pieces; the command that started it then resumes it.

    Example: [bold]pwoa unpack pieces --out runs/mine[/bold]
    """
    from pwoa import packing

    print(f"run folder: {packing.unpack(pieces, out)}")
