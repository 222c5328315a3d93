"""Verbs that train: prune, pretrain, sweep, demo."""

import os
import shlex
import sys
from collections.abc import Mapping
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
    changes_of,
    print_notes,
    print_table,
    print_warnings,
    say,
)
from pwoa.cli.report import ReportOption, write_report
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
    report: ReportOption = True,
    settings: SetOption = None,
) -> None:
    """Prune a robust model with natural examples only.

    Without arguments: the embedded robust LeNet, 4× smaller, on the embedded part of MNIST.

    Example: [bold]pwoa prune --recipe cifar10 --checkpoint trades.pt --rate 8 --out runs/mine[/bold]
    """
    from pwoa.recipe import load_recipe, recorded_recipe

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
    changes = changes_of(settings, options)
    load_recipe(recipe, changes).with_settings(changes)  # a mistake is found before torch is imported

    from pwoa.progress import ConsoleProgress
    from pwoa.runs.prune import prune as library

    result = library(recipe=recipe, settings=changes, folder=out, force=force, progress=ConsoleProgress())
    summary = result.summary
    if not summary:
        _leave_to_the_first()
    rows = {"teacher": summary["teacher"], f"pruned {summary['rate']:.4g}×": summary["pruned"]}
    _print_result(rows, summary, recorded_recipe(result.folder).threat)
    _print_sparsity(summary)
    say(f"run folder: {result.folder}")
    write_report(result.folder, report)


def pretrain(
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", help="A preset (teacher-mnist, teacher-cifar10, …) or a TOML file; else that for the data."
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="pgd-at, trades, mart, hbar, lbgat, fast-at or natural.")] = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    arch: Annotated[
        str | None, typer.Option("--arch", help="The architecture to train: a name, or FILE.py:CLASS of your own.")
    ] = None,
    lite: Annotated[
        float | None, typer.Option(help="Train a Lite network: as deep, with this many times fewer parameters.")
    ] = None,
    start: Annotated[
        Path | None, typer.Option(help="Start from the weights of a checkpoint or a run of the same architecture.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="How many epochs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the network, the splits, the batches and the attacks.")] = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
    report: ReportOption = True,
    settings: SetOption = None,
) -> None:
    """Train a robust model from scratch, with adversarial examples, to have something to prune.

    Example: [bold]pwoa pretrain --recipe teacher-cifar10 --method mart --out runs/teacher[/bold]

    Example: [bold]pwoa pretrain --recipe teacher-cifar10 --lite 8 --out runs/lite[/bold]
    """
    from pwoa.recipe import load_recipe, recipe_for, recorded_recipe

    options = {
        "method": method,
        "data.name": data,
        "data.folder": data_folder,
        "teacher.architecture": arch,
        "pretrain.lite": lite,
        "pretrain.start": start,
        "pretrain.epochs": epochs,
        "training.seed": seed,
        "training.device": None if device == "auto" else device,
    }
    changes = changes_of(settings, options)
    load_recipe(recipe, changes).with_settings(changes)  # a mistake is found before torch is imported

    from pwoa.progress import ConsoleProgress
    from pwoa.runs.pretrain import pretrain as library
    from pwoa.runs.pretrain import robust_accuracy

    result = library(recipe=recipe, settings=changes, folder=out, progress=ConsoleProgress())
    summary = result.summary
    if not summary:
        _leave_to_the_first()
    plan = recorded_recipe(result.folder)
    _print_result({plan.method: summary["accuracy"]}, summary, plan.threat)
    say(f"run folder: {result.folder}")
    write_report(result.folder, report)
    robust, minimum = robust_accuracy(result), recipe_for(plan.data.name).teacher.minimum
    if robust < minimum:
        say(f"pwoa prune would refuse it: {robust:.1f} % under attack, and teacher.minimum is {minimum:g} %")
        return
    factory = ["--arch", plan.teacher.architecture] if ":" in plan.teacher.architecture else []
    say(f"prune it: {shlex.join(['pwoa', 'prune', '--checkpoint', str(result.folder), *factory])}")


def sweep(
    grid: Annotated[Path, typer.Argument(help="A TOML file: recipe, and the tables set and grid.")],
    out: Annotated[Path, typer.Option("--out", help="The folder of the sweep's runs; the same again goes on.")],
    on: Annotated[str, typer.Option("--on", help="local: this machine's devices; ray: a Ray cluster.")] = "local",
    jobs: Annotated[
        int, typer.Option(min=0, help="Runs at a time on this machine; 0 is one for each GPU, or one.")
    ] = 0,
    address: Annotated[str | None, typer.Option(help="Where the Ray cluster is, as HOST:6379 or auto.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often a run that was killed is started again.")] = 2,
    report: ReportOption = True,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes; the same command goes on later.")
    ] = None,
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
        minutes=minutes,
        progress=ConsoleProgress(),
    )
    if result.rows:
        print_table(
            text_table(
                result.table,
                "Accuracy in %, mean ± standard deviation over seeds; rates over all parameters (overall) and of "
                "multiply-adds (MACs)",
                result.fewer,
            )
        )
        say(f"rows: {out / library.ROWS}")
        write_report(out, report)
    if result.failed:
        failed = f"{len(result.failed)} of the runs failed; see the .log files in {out}"
        print(f"error: {one_line(failed)}", file=sys.stderr)
        raise typer.Exit(1)


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder of the demo's runs.")] = Path("runs/demo"),
    report: ReportOption = True,
) -> None:
    """See the paper's claim happen: prune a robust LeNet naively, by PwoA and beyond it, in minutes on a CPU."""
    from pwoa import demo as library
    from pwoa.progress import ConsoleProgress
    from pwoa.recipe import load_recipe
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
        "robust": result["robust"],
    }
    rate = f"rate {result['rate']:.4g} ({result['overall_rate']:.4g} over all parameters)"
    title = f"Accuracy in % on {counted(result['images'], 'test image')}, l∞ 0.3, {rate}"
    print_table(accuracy_table(rows, title, result["fewer"]))
    print_notes(result["teacher"], load_recipe("demo").threat)
    print_warnings([(f"{finding['check']}, {finding['model']}", finding["message"]) for finding in result["warnings"]])
    for attack, words in (("pgd20", "under PGD-20"), ("worst", "in the worst case")):
        kept = {name: 100 * result[name][attack] / result["teacher"][attack] for name in ("naive", "pwoa", "robust")}
        print(
            f"Of the teacher's accuracy {words}, naive pruning keeps {kept['naive']:.0f} %, PwoA {kept['pwoa']:.0f} %, "
            f"robust {kept['robust']:.0f} %."
        )
    print(_shipped(result["deployment"]))
    try:
        accuracy_bars(rows, title, out / "robustness.png", result["fewer"])
        say(f"plot: {out / 'robustness.png'}")
    except InputError as error:
        say(str(error))
    say(f"run folder: {out}  ({result['seconds']:.0f} s)")
    write_report(out, report)


def _shipped(found: Mapping[str, Any]) -> str:
    """Say in a line or two how large and fast the pruned network is as C, beside the dense one; or how to see it."""
    if "missing" in found:
        return f"The size and speed of the pruned LeNet as C are not shown: {one_line(found['missing'])}."
    dense, ours = found["dense"], found["c"]
    smaller, faster = (dense[key] / ours[key] for key in ("bytes", "milliseconds"))
    return (
        f"As C the pruned LeNet has {ours['bytes'] / 1e6:.2f} MB of weights and takes {ours['milliseconds']:.3g} ms "
        f"for an image on one thread;\nthe dense one in torch has {dense['bytes'] / 1e6:.2f} MB and takes "
        f"{dense['milliseconds']:.3g} ms: {smaller:.1f} times as large, {faster:.1f} times as slow."
    )


def _leave_to_the_first() -> NoReturn:
    """End a process of a run whose result another one shows, at once: torch's connections may abort a slow exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _print_result(models: dict[str, dict[str, float]], summary: Mapping[str, Any], threat: Any) -> None:
    from pwoa.report.table import result_table
    from pwoa.runs.prepare import findings_in

    images = summary["images"]
    title = f"Accuracy in % on {counted(images, 'test image')}, {threat}"
    print_table(result_table(models, images, title, summary.get("fewer")))
    attacks = [attack for accuracies in models.values() for attack in accuracies]
    print_notes({name: max(scores.get(name, 0.0) for scores in models.values()) for name in attacks}, threat)
    print_warnings(findings_in(summary))


def _print_sparsity(summary: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table()
    for column in ("layer", "weights", "kept", "rate"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    rows = list(summary["sparsity"])
    if "overall_rate" in summary:  # a run of an earlier version has none
        parameters, nonzero = summary["parameters"], summary["nonzero"]
        overall = {"total": parameters, "kept": nonzero, "rate": summary["overall_rate"]}
        rows.append({"layer": "all parameters", **overall})
    if "macs_rate" in summary:
        compute = {"total": summary["macs_dense"], "kept": summary["macs"], "rate": summary["macs_rate"]}
        rows.append({"layer": "multiply-adds", **compute})
    for row in rows:
        table.add_row(row["layer"], f"{row['total']:,}", f"{row['kept']:,}", f"{row['rate']:.4g}×")
    print_table(table, gap=False)
