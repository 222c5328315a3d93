"""Verbs that train: prune, pretrain, sweep, demo."""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pwoa.cli.options import (
    ArchOption,
    DataFolderOption,
    DataOption,
    DeviceOption,
    MeanOption,
    OutOption,
    RecipeOption,
    SetOption,
    StdOption,
    given,
    print_table,
    print_warnings,
    say,
)
from pwoa.errors import InputError, counted, one_line


def prune(
    recipe: RecipeOption = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="pwoa, or to compare: advprune, hydra, apd, harp or magnitude (published with training.mix=1)."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Unpruned size over pruned size: 4 keeps a quarter.")] = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    arch: ArchOption = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="The robust teacher: a file, a folder, hf:owner/name.")
    ] = None,
    mean: MeanOption = None,
    std: StdOption = None,
    seed: Annotated[int | None, typer.Option(help="Of the splits, the batches and the attacks.")] = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
    force: Annotated[bool, typer.Option("--force", help="Prune even a teacher that is not robust.")] = False,
    settings: SetOption = None,
) -> None:
    """Prune a robust model with natural examples only.

    Without arguments: the embedded robust LeNet, 4× smaller, on the embedded part of MNIST.

    Example: [bold]pwoa prune --recipe cifar10 --checkpoint trades.pt --rate 8 --out runs/mine[/bold]
    """
    from pwoa.recipe import load_recipe, parse_setting, recipe_for

    options = {
        "method": method,
        "sparsity.rate": rate,
        "data.name": data,
        "data.folder": data_folder,
        "teacher.architecture": arch,
        "teacher.checkpoint": checkpoint,
        "teacher.mean": mean,
        "teacher.std": std,
        "training.seed": seed,
        "training.device": None if device == "auto" else device,
    }
    changes = dict(map(parse_setting, settings or [])) | given(options)
    start = load_recipe(recipe, changes) if recipe else recipe_for(data or "mnist-mini")
    plan = start.with_settings(given({"method": method})).with_settings(settings or []).with_settings(given(options))

    from pwoa.progress import ConsoleProgress
    from pwoa.runs.prune import prune as library

    result = library(recipe=plan, folder=out, force=force, progress=ConsoleProgress())
    summary = result.summary
    if not summary:
        _leave_to_the_first()
    rows = {"teacher": summary["teacher"], f"pruned {summary['rate']:.4g}×": summary["pruned"]}
    _print_result(rows, summary, plan.threat)
    _print_sparsity(summary["sparsity"])
    say(f"run folder: {result.folder}")


def pretrain(
    recipe: Annotated[
        str, typer.Option("--recipe", help="A preset (teacher-mnist, teacher-cifar10, …) or a TOML file.")
    ] = "teacher-mnist",
    method: Annotated[str | None, typer.Option(help="pgd-at, trades, mart, hbar, lbgat or fast-at.")] = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    arch: Annotated[str | None, typer.Option("--arch", help="The architecture to train.")] = None,
    lite: Annotated[
        float | None, typer.Option(help="Train a Lite network: as deep, with this many times fewer parameters.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="How many epochs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the network, the splits, the batches and the attacks.")] = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
    settings: SetOption = None,
) -> None:
    """Train a robust model from scratch, with adversarial examples, to have something to prune.

    Example: [bold]pwoa pretrain --recipe teacher-cifar10 --method trades --out runs/teacher[/bold]

    Example: [bold]pwoa pretrain --recipe teacher-cifar10 --lite 8 --out runs/lite[/bold]
    """
    from pwoa.recipe import load_recipe, parse_setting

    options = {
        "method": method,
        "data.name": data,
        "data.folder": data_folder,
        "teacher.architecture": arch,
        "pretrain.lite": lite,
        "pretrain.epochs": epochs,
        "training.seed": seed,
        "training.device": None if device == "auto" else device,
    }
    changes = dict(map(parse_setting, settings or [])) | given(options)
    plan = load_recipe(recipe, changes).with_settings(settings or []).with_settings(given(options))

    from pwoa.progress import ConsoleProgress
    from pwoa.runs.pretrain import pretrain as library

    result = library(recipe=plan, folder=out, progress=ConsoleProgress())
    summary = result.summary
    if not summary:
        _leave_to_the_first()
    _print_result({plan.method: summary["accuracy"]}, summary, plan.threat)
    say(f"run folder: {result.folder}")
    say(f"prune it: {_prune_command(plan, summary['architecture'], result.folder / 'model.safetensors')}")


def _prune_command(plan: Any, architecture: str, weights: Path) -> str:
    """Return the command that prunes what was trained: on the same data, against the same attacker."""
    from pwoa.recipe import recipe_for

    data = plan.data
    options = {"--arch": architecture, "--checkpoint": weights, "--data": data.name, "--data-folder": data.folder}
    usual = asdict(recipe_for(data.name).threat)
    other = [f"threat.{key}={value}" for key, value in asdict(plan.threat).items() if value != usual[key]]
    words = [f"{option} {shlex.quote(str(value))}" for option, value in options.items() if value]
    return " ".join(["pwoa prune", *words, *(f"--set {shlex.quote(setting)}" for setting in other)])


def sweep(
    grid: Annotated[Path, typer.Argument(help="A TOML file: recipe, and the tables set and grid.")],
    out: Annotated[Path, typer.Option("--out", help="The folder of the sweep's runs; the same again goes on.")],
    on: Annotated[str, typer.Option("--on", help="local: this machine's devices; ray: a Ray cluster.")] = "local",
    jobs: Annotated[
        int, typer.Option(min=0, help="Runs at a time on this machine; 0 is one for each GPU, or one.")
    ] = 0,
    address: Annotated[str | None, typer.Option(help="Where the Ray cluster is, as HOST:6379 or auto.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often a run that was killed is started again.")] = 2,
    settings: SetOption = None,
) -> None:
    """Prune many times: every combination of the settings in a grid.

    Example: [bold]pwoa sweep grid.toml --out runs/sweep[/bold]

    where grid.toml has, in three lines: recipe = "mnist", grid.method = \\["pwoa", "advprune"],
    grid.training.seed = \\[0, 1, 2].
    """
    from pwoa import sweep as library
    from pwoa.progress import ConsoleProgress
    from pwoa.report.table import text_table

    result = library.sweep(
        grid,
        out,
        settings=settings or (),
        on=on,
        jobs=jobs,
        address=address,
        retries=retries,
        progress=ConsoleProgress(),
    )
    if result.rows:
        print_table(text_table(result.table, "Accuracy in %, mean ± standard deviation over seeds"))
        say(f"rows: {out / library.ROWS}")
    if result.failed:
        failed = f"{len(result.failed)} of the runs failed; see the .log files in {out}"
        print(f"error: {one_line(failed)}", file=sys.stderr)
        raise typer.Exit(1)


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder of the demo's runs.")] = Path("runs/demo"),
) -> None:
    """See the paper's claim happen: prune a robust LeNet naively and by PwoA, in minutes on a CPU."""
    from pwoa import demo as library
    from pwoa.progress import ConsoleProgress
    from pwoa.report.plots import accuracy_bars
    from pwoa.report.table import accuracy_table

    print(
        "A LeNet trained to resist attacks on MNIST (l∞ radius 0.3) becomes 4× smaller, without adversarial examples."
    )
    result = library.demo(out, progress=ConsoleProgress())
    rows = {
        "teacher (dense)": result["teacher"],
        "naive pruning": result["naive"],
        "PwoA": result["pwoa"],
    }
    title = f"Accuracy in % on {counted(result['images'], 'test image')}, l∞ 0.3, rate {result['rate']:.4g}"
    print_table(accuracy_table(rows, title))
    kept = {name: 100 * result[name]["pgd20"] / result["teacher"]["pgd20"] for name in ("naive", "pwoa")}
    ours, naive = kept["pwoa"], kept["naive"]
    print(f"Of the teacher's accuracy under PGD-20, PwoA keeps {ours:.0f} %, naive pruning {naive:.0f} %.")
    try:
        accuracy_bars(rows, title, out / "robustness.png")
        say(f"plot: {out / 'robustness.png'}")
    except InputError as error:
        say(str(error))
    say(f"run folder: {out}  ({result['seconds']:.0f} s)")


def _leave_to_the_first() -> NoReturn:
    """End a process of a run whose result another one shows, at once: torch's connections may abort a slow exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _print_result(models: dict[str, dict[str, float]], summary: Mapping[str, Any], threat: Any) -> None:
    from pwoa.report.table import result_table

    images = summary["images"]
    print_table(result_table(models, images, f"Accuracy in % on {counted(images, 'test image')}, {threat}"))
    print_warnings([(warning["check"], warning["message"]) for warning in summary.get("warnings", [])])


def _print_sparsity(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table()
    for column in ("layer", "weights", "kept", "rate"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for row in rows:
        table.add_row(row["layer"], f"{row['total']:,}", f"{row['kept']:,}", f"{row['rate']:.4g}×")
    print_table(table, gap=False)
