"""Verbs that take a model elsewhere: push, card."""

from pathlib import Path
from typing import Annotated

import typer

from pwoa.cli.options import say


def push(
    run: Annotated[Path, typer.Argument(help="A finished run, or a folder that pwoa card --out wrote.")],
    repo: Annotated[str, typer.Option(help="owner/name on the Hugging Face hub; made if it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="If it is made, for its owner alone.")] = False,
    revision: Annotated[str | None, typer.Option(help="A branch; else main.")] = None,
) -> None:
    """Put a run's model on the Hugging Face hub, with a card that says what was measured.

    Log in once with [bold]hf auth login[/bold]. Example: [bold]pwoa push runs/mine --repo me/lenet-x4[/bold]
    """
    from pwoa.share.publish import push_to_hub

    say(push_to_hub(run, repo, private=private, revision=revision))


def card(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write a folder with model and card instead.")] = None,
) -> None:
    """Show the model card that pwoa push would send, or write all of it into a folder.

    Example: [bold]pwoa card runs/mine --out lenet-x4[/bold]
    """
    from pwoa.share.publish import card_of, save_pretrained

    if out is None:
        say(card_of(run).removesuffix("\n"))
    else:
        say(f"model folder: {save_pretrained(run, out)}")
