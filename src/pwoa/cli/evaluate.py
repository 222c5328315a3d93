"""Verbs that measure: evaluate, compare."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pwoa.cli.options import (
    ArchOption,
    DataFolderOption,
    DataOption,
    DeviceOption,
    MeanOption,
    RecipeOption,
    SetOption,
    StdOption,
    changes_of,
    print_notes,
    print_table,
    print_warning,
    print_warnings,
    say,
)
from pwoa.cli.report import ReportOption, write_report
from pwoa.errors import InputError, counted

ATTACKS_HELP = (
    "natural, fgsm, pgdN, cw, cwN, fmn, autoattack or its parts (apgd-ce, apgd-t, fab-t, square), square-paper, "
    "strong, transfer, replica; paper is the paper's six measures. Else those of the run's recipe, then strong."
)


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="A run, a model folder, hf:owner/name, a checkpoint, FILE.py:CLASS, MODULE:FUNCTION, an .onnx file, "
            "or what pwoa export wrote."
        ),
    ],
    arch: ArchOption = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Weights for what a factory makes.")] = None,
    mean: MeanOption = None,
    std: StdOption = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    attacks: Annotated[str | None, typer.Option(help=ATTACKS_HELP)] = None,
    images: Annotated[int | None, typer.Option(help="How many test images, from the first; 0 is all.")] = None,
    radius: Annotated[str | None, typer.Option(help="The attacker's radius, as 0.3 or 8/255.")] = None,
    radii: Annotated[str | None, typer.Option(help="A security curve over these radii, as 0,2/255,8/255.")] = None,
    surrogate: Annotated[str | None, typer.Option(help="The model the attack transfer searches on; as MODEL.")] = None,
    surrogate_arch: Annotated[str | None, typer.Option(help="Its architecture, if it is a checkpoint.")] = None,
    twin: Annotated[
        str | None, typer.Option(help="What an exported MODEL was made from, to compare with; its run is found.")
    ] = None,
    checks: Annotated[bool | None, typer.Option(help="Look for signs that the accuracy is too high.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, or float32: search in float32 as well.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images at a time.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the attacks' random starts.")] = None,
    device: DeviceOption = "auto",
    recipe: RecipeOption = None,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="The evaluation's folder; the same again resumes.")] = None,
    report: ReportOption = True,
) -> None:
    """Measure a model's natural and robust accuracy.

    Example: [bold]pwoa evaluate runs/demo/pwoa --attacks natural,pgd20,autoattack --images 500[/bold]

    Example: [bold]pwoa evaluate trades.pt --data cifar10 --attacks autoattack[/bold]
    """
    from pwoa.recipe import numbers
    from pwoa.threat import parse_radii

    options = {
        "threat.radius": radius,
        "evaluation.attacks": attacks,
        "evaluation.images": images,
        "evaluation.batch": batch,
        "evaluation.seed": seed,
        "evaluation.precision": precision,
        "evaluation.checks": checks,
        "evaluation.radii": parse_radii(radii) if radii else None,
    }
    changes = changes_of(settings, options)
    means, deviations = numbers(mean or "", "--mean"), numbers(std or "", "--std")

    from pwoa.evaluation.evaluate import AUTO
    from pwoa.evaluation.evaluate import evaluate as library
    from pwoa.progress import ConsoleProgress

    scores = library(
        model,
        data,
        recipe=recipe,
        settings=changes,
        surrogate=surrogate,
        surrogate_architecture=surrogate_arch,
        twin=twin,
        architecture=arch,
        checkpoint=checkpoint,
        mean=means,
        std=deviations,
        data_folder=data_folder,
        device=device,
        folder=out or AUTO,
        progress=ConsoleProgress(),
    )
    _print_scores(scores, f"{model}: {counted(scores.images, 'test image')}, {scores.threat}")
    if scores.curve and scores.folder is not None:
        _plot_curve(scores, scores.folder / "curve.png")
    elif scores.distances and scores.folder is not None:
        _plot_distances(scores, scores.folder / "curve.png")
    if scores.folder is not None:
        write_report(scores.folder, report)


def compare(
    a: Annotated[Path, typer.Argument(help="The folder of an evaluation, or of a run.")],
    b: Annotated[
        Path | None, typer.Argument(help="Another one, of the same data; without it a run's teacher and its model.")
    ] = None,
) -> None:
    """Compare two evaluations image by image: which is more robust, and is it chance?

    Example: [bold]pwoa compare runs/demo/naive runs/demo/pwoa[/bold]

    Example: [bold]pwoa compare runs/demo/pwoa[/bold] (its teacher with the pruned model)
    """
    from pwoa.evaluation.comparison import compare as library
    from pwoa.report.table import comparison_table

    comparison = library(a, b)
    for warning in comparison.warnings:
        print_warning(f"warning: {warning}")
    print_table(comparison_table(comparison))


def _print_scores(scores: Any, title: str) -> None:
    from pwoa.report.table import evaluation_table, score_rows

    print_table(evaluation_table(score_rows(scores), title))
    print_notes(scores, scores.threat)
    for found in scores.agreement:
        print(_agreement_text(found))
    print_warnings([(finding.check, finding.message) for finding in scores.findings])


def _agreement_text(found: Any) -> str:
    """Say how the answers are to those of the model's twin."""
    on = "natural images" if found.attack == "natural" else f"what {found.attack} finds there"
    ours, theirs = (f"{100 * right / found.images:.2f} %" for right in (found.right, found.right_of_twin))
    same, alike = (f"{number:,} of {found.images:,}" for number in (found.same_class, found.same_verdict))
    return (
        f"agrees with the network it was exported from on {on}: same class {same}, both right or both wrong {alike}; "
        f"accuracy {ours}, there {theirs}"
    )


def _plot_curve(scores: Any, path: Path) -> None:
    from pwoa.attacks.registry import attack_label
    from pwoa.report.plots import security_curve
    from pwoa.report.table import accuracy_table

    points = scores.curve
    table = {attack_label(name): {point.threat.radius_text: point[name] for point in points} for name in scores}
    print_table(accuracy_table(table, "Accuracy in % by radius"))
    curves = {name: [point[name] for point in points] for name in scores}
    intervals = {name: [point.interval(name) for point in points] for name in scores}
    norm = scores.threat.norm
    try:
        security_curve([point.threat.radius for point in points], curves, norm, path, intervals=intervals)
        say(f"security curve: {path}")
    except InputError as error:
        say(str(error))


def _plot_distances(scores: Any, path: Path) -> None:
    """Draw the accuracy at all radii, and tell how far the nearest broken images are: nothing is attacked for it."""
    from pwoa.attacks.registry import attack_label
    from pwoa.report.plots import security_curve

    radii = [scores.threat.radius * step / 10 for step in range(21)]
    for name, far in scores.distances.items():
        half = float(far.median())
        say(f"half of the images are broken by {attack_label(name)} within {half:.4g}, {scores.threat.norm}")
    curves = {
        name: [100 * float(scores.at_radius(name, radius).float().mean()) for radius in radii]
        for name in scores.distances
    }
    try:
        security_curve(radii, curves, scores.threat.norm, path)
        say(f"security curve from the distances: {path}")
    except InputError as error:
        say(str(error))
