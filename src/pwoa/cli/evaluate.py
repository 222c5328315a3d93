"""Verbs that measure: evaluate, compare."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Annotated, Any

import typer

from pwoa.cli.options import (
    ATTACKS_HELP,
    ArchOption,
    DataOption,
    DeviceOption,
    FolderOption,
    MeanOption,
    RecipeOption,
    SetOption,
    StdOption,
    console,
    friendly,
    print_table,
)
from pwoa.errors import InputError, counted


@friendly
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="A run, a model folder, hf:owner/name, a checkpoint (with --arch), MODULE:FUNCTION, or an .onnx file."
        ),
    ],
    arch: ArchOption = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Weights for what a factory makes.")] = None,
    mean: MeanOption = None,
    std: StdOption = None,
    data: DataOption = None,
    folder: FolderOption = None,
    attacks: Annotated[str, typer.Option(help=ATTACKS_HELP)] = "standard",
    n: Annotated[int, typer.Option(help="How many test images, from the first; 0 is all.")] = 0,
    radius: Annotated[str | None, typer.Option(help="The attacker's radius, as 0.3 or 8/255.")] = None,
    eps: Annotated[str | None, typer.Option(help="A security curve over these radii, as 0,2/255,8/255.")] = None,
    surrogate: Annotated[str | None, typer.Option(help="The model the attack transfer searches on; as MODEL.")] = None,
    surrogate_arch: Annotated[str | None, typer.Option(help="Its architecture, if it is a checkpoint.")] = None,
    checks: Annotated[bool, typer.Option(help="Look for signs that the accuracy is too high.")] = True,
    precision: Annotated[str, typer.Option(help="auto, or float32: search in float32 as well.")] = "auto",
    batch: Annotated[int, typer.Option(help="Images at a time.")] = 500,
    seed: Annotated[int, typer.Option(help="Of the attacks' random starts.")] = 0,
    device: DeviceOption = "auto",
    recipe: RecipeOption = None,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="The evaluation's folder; the same again resumes.")] = None,
) -> None:
    """Measure a model's natural and robust accuracy.

    Example: [bold]pwoa evaluate runs/demo/pwoa --attacks natural,pgd20,autoattack --n 500[/bold]

    Example: [bold]pwoa evaluate trades.pt --arch resnet18 --data cifar10 --attacks autoattack[/bold]
    """
    from pwoa.recipe import load_recipe, recipe_for, recorded_recipe
    from pwoa.recipe.settings import numbers

    if recipe is None and (Path(model) / "recipe.toml").is_file():
        plan = recorded_recipe(Path(model))
    elif recipe is None and data is None:
        is_name = model.startswith("hf:") or ":" in model
        there = "is no run folder" if is_name or Path(model).exists() else "does not exist, and is no run folder"
        raise InputError(f"{model} {there}; give --data NAME, or --recipe, to say which images to measure it on")
    else:
        plan = load_recipe(recipe) if recipe else recipe_for(str(data))
    plan = plan.with_settings(settings or [])
    if plan.data.name == "custom" and data is None:
        raise InputError(f"{model} was made from data given in Python; give --data, or use pwoa.evaluate there")
    if surrogate_arch is not None and surrogate is None:
        raise InputError("--surrogate-arch goes with --surrogate MODEL")
    if radius is not None:
        plan = plan.with_settings([f"threat.radius={radius}"])

    from pwoa import __version__, evaluation
    from pwoa.data.load import load_data
    from pwoa.evaluation.measure import identity
    from pwoa.evaluation.record import radii
    from pwoa.models.load import named_model
    from pwoa.progress import ConsoleProgress

    curve = radii(eps) if eps else []
    where = folder or (plan.data.folder if data is None else None) or None
    progress = ConsoleProgress()
    source = data or plan.data.name
    images = load_data(source, folder=where, progress=progress.reach)
    given = numbers(mean or "", "--mean"), numbers(std or "", "--std")
    network = named_model(model, images, architecture=arch, checkpoint=checkpoint, mean=given[0], std=given[1])
    other = None if surrogate is None else named_model(surrogate, images, architecture=surrogate_arch)
    models = [model, arch, checkpoint, surrogate, surrogate_arch, identity(network)]
    asked = [*models, source, where, attacks, n, plan.threat, curve, checks, precision, batch, seed, __version__]
    place = out or Path("runs") / "evaluate" / f"{_stem(model)}-{zlib.crc32(str(asked).encode()):08x}"
    scores = evaluation.evaluate(
        network,
        images,
        attacks=attacks,
        threat=plan.threat,
        radii=curve,
        images=n,
        batch=batch,
        seed=seed,
        device=device,
        precision=precision,
        surrogate=other,
        checks=checks,
        folder=place,
        name=_stem(model),
        progress=progress,
    )
    _print_scores(scores, f"{model}: {counted(scores.images, 'test image')}, ")
    if scores.curve:
        _plot_curve(scores, place / "curve.png")


@friendly
def compare(
    a: Annotated[Path, typer.Argument(help="The folder of an evaluation, or of a run.")],
    b: Annotated[Path, typer.Argument(help="Another one, of the same images.")],
) -> None:
    """Compare two evaluations image by image: which is more robust, and is it chance?

    Example: [bold]pwoa compare runs/demo/naive runs/demo/pwoa[/bold]
    """
    from pwoa.evaluation.comparison import compare as library
    from pwoa.report.table import comparison_table

    console().print(comparison_table(library(a, b)))


def _print_scores(scores: Any, title: str) -> None:
    from rich.markup import escape

    from pwoa.evaluation.record import written
    from pwoa.report.table import evaluation_table, norm_name, score_rows

    norm = norm_name(scores.threat.norm)
    print()
    console().print(evaluation_table(score_rows(scores), escape(f"{title}{norm} {written(scores.threat)}")))
    for finding in scores.findings:
        console().print(f"warning ({finding.check}): {finding.message}", style="yellow", markup=False, soft_wrap=True)


def _plot_curve(scores: Any, path: Path) -> None:
    from pwoa.evaluation.record import written
    from pwoa.report.plots import security_curve
    from pwoa.report.table import attack_name

    points = scores.curve
    table = {attack_name(name): {written(point.threat): point[name] for point in points} for name in scores.right}
    print_table(table, "Accuracy in % by radius")
    curves = {name: [point[name] for point in points] for name in scores.right}
    intervals = {name: [point.interval(name) for point in points] for name in scores.right}
    norm = scores.threat.norm
    try:
        security_curve([point.threat.radius for point in points], curves, norm, path, intervals=intervals)
        print(f"security curve: {path}")
    except InputError as error:
        print(error)


def _stem(model: str) -> str:
    """The last part of a model's name, as a name for a folder."""
    return re.sub(r"[^\w.+-]+", "-", Path(model).stem or "model").strip("-")
