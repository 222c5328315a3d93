"""The command line: verbs only. Parse, call the library, print. torch is imported by the verb that needs it."""

from __future__ import annotations

import functools
import os
import re
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from pwoa import __version__
from pwoa.errors import InputError, ProcessDied

P = ParamSpec("P")
T = TypeVar("T")

app = typer.Typer(
    help="Prune adversarially robust networks without adversarial examples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Data sets: what is here, and get one.", no_args_is_help=True)
app.add_typer(data_app, name="data")
models_app = typer.Typer(help="Architectures that are known, and what is in a checkpoint.", no_args_is_help=True)
app.add_typer(models_app, name="models")

RecipeOption = Annotated[
    str | None,
    typer.Option("--recipe", help="A preset (mnist, cifar10, cifar100, demo) or a TOML file; else that for the data."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting of the recipe."),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="The run folder; the same one again resumes.")]
DataOption = Annotated[str | None, typer.Option("--data", help="A data set's name or a folder of images.")]
FolderOption = Annotated[Path | None, typer.Option("--folder", help="Where the data set's official files are.")]
ArchOption = Annotated[
    str | None,
    typer.Option("--arch", help="The architecture of the checkpoint: a name, auto, or MODULE:FUNCTION of your own."),
]
MeanOption = Annotated[
    str | None,
    typer.Option("--mean", help="Normalise the images: a number a channel, as 0.49,0.48,0.45, if the file does not."),
]
StdOption = Annotated[str | None, typer.Option("--std", help="What goes with --mean.")]
ATTACKS_HELP = "standard (natural,fgsm,pgd10,pgd20,cw), or any of these, pgdN, cwN, autoattack or its parts, transfer."
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, …")]


def main() -> None:
    """The console script."""
    app()


def friendly(verb: Callable[P, T]) -> Callable[P, T]:
    """A user's mistake is one line and exit code 2; Ctrl-C is exit code 130."""

    @functools.wraps(verb)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return verb(*args, **kwargs)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except ProcessDied as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return wrapped


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pwoa {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prune adversarially robust networks without adversarial examples."""


@app.command()
@friendly
def prune(
    recipe: RecipeOption = None,
    method: Annotated[
        str | None, typer.Option(help="pwoa, or to compare: advprune, hydra, apd, harp or magnitude.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Unpruned size over pruned size: 4 keeps a quarter.")] = None,
    data: DataOption = None,
    folder: FolderOption = None,
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
    from pwoa.recipe import load_recipe, recipe_for

    given = {
        "method": method,
        "sparsity.rate": rate,
        "data.name": data,
        "data.folder": folder and str(folder),
        "teacher.architecture": arch,
        "teacher.checkpoint": checkpoint and str(checkpoint),
        "teacher.mean": mean,
        "teacher.std": std,
        "training.seed": seed,
    }
    start = load_recipe(recipe) if recipe else recipe_for(data or "mnist-mini")
    plan = start.with_settings(settings or [])
    plan = plan.with_settings({key: value for key, value in given.items() if value is not None})
    if device != "auto":
        plan = plan.with_settings({"training.device": device})

    from pwoa import pipeline
    from pwoa.progress import ConsoleProgress

    result = pipeline.prune(recipe=plan, folder=out, force=force, progress=ConsoleProgress())
    summary = result.summary
    if not summary:
        _leave_to_the_first()
    rows = {"teacher": summary["teacher"], f"pruned {summary['rate']:.4g}×": summary["pruned"]}
    threat = f"{plan.threat.norm} {plan.threat.radius:.4g}"
    _print_table(rows, f"Accuracy in % on {summary['images']:,} test images, {threat}")
    _print_sparsity(summary["sparsity"])
    print(f"run folder: {result.folder}")


@app.command()
@friendly
def pretrain(
    recipe: Annotated[
        str, typer.Option("--recipe", help="A preset (teacher-mnist, teacher-cifar10, …) or a TOML file.")
    ] = "teacher-mnist",
    method: Annotated[str | None, typer.Option(help="pgd-at, trades, mart, hbar, lbgat or fast-at.")] = None,
    data: DataOption = None,
    folder: FolderOption = None,
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
    from pwoa.recipe import load_recipe

    given = {
        "method": method,
        "data.name": data,
        "data.folder": folder and str(folder),
        "teacher.architecture": arch,
        "pretrain.lite": lite,
        "pretrain.epochs": epochs,
        "training.seed": seed,
        "training.device": None if device == "auto" else device,
    }
    plan = load_recipe(recipe).with_settings(settings or [])
    plan = plan.with_settings({key: value for key, value in given.items() if value is not None})

    from pwoa import pretraining
    from pwoa.progress import ConsoleProgress

    result = pretraining.pretrain(recipe=plan, folder=out, progress=ConsoleProgress())
    summary = result.summary
    if not summary:
        _leave_to_the_first()
    threat = f"{plan.threat.norm} {plan.threat.radius:.4g}"
    _print_table({plan.method: summary["accuracy"]}, f"Accuracy in % on {summary['images']:,} test images, {threat}")
    print(f"run folder: {result.folder}")
    weights = result.folder / "model.safetensors"
    print(f"prune it: pwoa prune --arch {summary['architecture']} --checkpoint {weights} --data {plan.data.name}")


@app.command()
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
    from pwoa.recipe import load_recipe, numbers, recipe_for

    own = Path(model) / "recipe.toml"
    if recipe is None and own.is_file():
        plan = load_recipe(own)
    elif recipe is None and data is None:
        raise InputError(
            f"{model} is no run folder; give --data NAME, or --recipe, to say which images to measure it on"
        )
    else:
        plan = load_recipe(recipe) if recipe else recipe_for(str(data))
    plan = plan.with_settings(settings or [])
    if plan.data.name == "custom" and data is None:
        raise InputError(f"{model} was made from data given in Python; give --data, or use pwoa.evaluate there")
    if radius is not None:
        plan = plan.with_settings([f"threat.radius={radius}"])

    from pwoa import evaluation
    from pwoa.data import load_data
    from pwoa.evaluation.measure import identity
    from pwoa.evaluation.record import radii
    from pwoa.named import named_model
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
    asked = [*models, source, where, attacks, n, plan.threat, curve, checks, precision, batch, seed]
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
    _print_scores(scores, f"{model}: {scores.images:,} test images, ")
    if scores.curve:
        _plot_curve(scores, place / "curve.png")


@app.command()
@friendly
def compare(
    a: Annotated[Path, typer.Argument(help="The folder of an evaluation, or of a run.")],
    b: Annotated[Path, typer.Argument(help="Another one, of the same images.")],
) -> None:
    """Compare two evaluations image by image: which is more robust, and is it chance?

    Example: [bold]pwoa compare runs/demo/naive runs/demo/pwoa[/bold]
    """
    from pwoa.evaluation import compare as library
    from pwoa.report.table import comparison_table

    _console().print(comparison_table(library(a, b)))


@app.command()
@friendly
def sweep(
    grid: Annotated[Path, typer.Argument(help="A TOML file: recipe, and the tables set and grid.")],
    out: Annotated[Path, typer.Option("--out", help="The folder of the sweep's runs; the same again goes on.")],
    on: Annotated[str, typer.Option("--on", help="local: this machine's devices; ray: a Ray cluster.")] = "local",
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time on this machine; 0 is one a GPU, or one.")] = 0,
    address: Annotated[str | None, typer.Option(help="Where the Ray cluster is, as HOST:6379 or auto.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often a run that was killed is started again.")] = 2,
) -> None:
    """Prune many times: every combination of the settings in a grid.

    Example: [bold]pwoa sweep grid.toml --out runs/sweep[/bold]

    where grid.toml has, in three lines: recipe = "mnist", grid.method = \\["pwoa", "advprune"],
    grid.training.seed = \\[0, 1, 2].
    """
    from pwoa import sweep as library
    from pwoa.progress import ConsoleProgress
    from pwoa.report.table import text_table

    found = library.sweep(grid, out, on=on, jobs=jobs, address=address, retries=retries, progress=ConsoleProgress())
    if found.rows:
        print()
        _console().print(text_table(found.table, "Accuracy in %, mean ± standard deviation over seeds"))
        print(f"rows: {out / library.ROWS}")
    if found.failed:
        print(f"error: {len(found.failed)} of the runs failed; see the .log files in {out}", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
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


@app.command()
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


@app.command()
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
    print(f"{len(files) - 1} pieces and {packing.LIST} in {out}; there: pwoa unpack {out} --out {run}")


@app.command()
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


@app.command()
@friendly
def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder of the demo's runs.")] = Path("runs/demo"),
) -> None:
    """See the paper's claim happen: prune a robust LeNet naively and by PwoA, in minutes on a CPU."""
    from pwoa import demo as library
    from pwoa.progress import ConsoleProgress
    from pwoa.report.plots import accuracy_bars

    print(
        "A LeNet trained to resist attacks on MNIST (l∞ radius 0.3) becomes 4× smaller, without adversarial examples."
    )
    result = library.demo(out, progress=ConsoleProgress())
    rows = {
        "teacher (dense)": result["teacher"],
        "naive pruning": result["naive"],
        "PwoA": result["pwoa"],
    }
    title = f"Accuracy in % on {result['images']:,} test images, l∞ 0.3, rate {result['rate']:.4g}"
    _print_table(rows, title)
    kept = {name: 100 * result[name]["pgd20"] / result["teacher"]["pgd20"] for name in ("naive", "pwoa")}
    ours, naive = kept["pwoa"], kept["naive"]
    print(f"Of the teacher's accuracy under PGD-20, PwoA keeps {ours:.0f} %, naive pruning {naive:.0f} %.")
    try:
        accuracy_bars(rows, title, out / "robustness.png")
        print(f"plot: {out / 'robustness.png'}")
    except InputError as error:
        print(error)
    print(f"run folder: {out}  ({result['seconds']:.0f} s)")


@data_app.command("list")
@friendly
def data_list() -> None:
    """The known data sets, and where they are."""
    from rich.table import Table

    from pwoa.data.sources import status

    table = Table()
    for column in ("name", "images", "train", "test", "classes", "where"):
        table.add_column(column)
    for row in status():
        where = "embedded" if row.embedded else str(row.where or "not here: pwoa data get " + row.name)
        shape = "×".join(map(str, row.shape))
        table.add_row(row.name, shape, f"{row.train:,}", f"{row.test:,}", str(row.classes), where)
    _console().print(table)


@data_app.command("get")
@friendly
def data_get(name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10 or cifar100")]) -> None:
    """Download a data set into the cache, verified; a broken download goes on where it stopped."""
    from pwoa.data.sources import get
    from pwoa.progress import ConsoleProgress

    progress = ConsoleProgress()
    where = get(name, progress.reach)
    progress.close()
    print(f"{name}: {where}")


@models_app.command("list")
@friendly
def models_list() -> None:
    """The known architectures: their parameters, and at how many points hidden activations are taken."""
    from rich.table import Table

    from pwoa.models.registry import described

    table = Table()
    for column in ("name", "parameters", "hidden points"):
        table.add_column(column, justify="left" if column == "name" else "right")
    for name, parameters, points in described():
        table.add_row(name, f"{parameters:,}", str(len(points)))
    _console().print(table)


@models_app.command("inspect")
@friendly
def models_inspect(
    file: Annotated[
        str,
        typer.Argument(help="A checkpoint, a run, a model folder or hf:owner/name; nothing in it is executed."),
    ],
    kept: Annotated[
        float | None, typer.Option(help="The part of the weights that the scores of HYDRA or HARP keep; 1 for all.")
    ] = None,
) -> None:
    """What a checkpoint or a folder holds: architecture, normalisation, what does not belong to the network, results.

    Example: [bold]pwoa models inspect trades.pt[/bold]
    """
    from rich.markup import escape
    from rich.table import Table

    from pwoa.report.inspected import inspected

    rows, warnings = inspected(file, kept)
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, escape(value))
    _console().print(table)
    for warning in warnings:
        _console().print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)


def _leave_to_the_first() -> NoReturn:
    """End a process of a run whose result another one shows, at once: torch's connections may abort a slow exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def _print_table(rows: dict[str, dict[str, float]], title: str) -> None:
    from pwoa.report.table import accuracy_table

    print()
    _console().print(accuracy_table(rows, title))


def _print_scores(scores: Any, title: str) -> None:
    from rich.markup import escape

    from pwoa.evaluation.record import written
    from pwoa.report.table import evaluation_table, score_rows

    norm = {"linf": "l∞"}.get(scores.threat.norm, scores.threat.norm)
    print()
    _console().print(evaluation_table(score_rows(scores), escape(f"{title}{norm} {written(scores.threat)}")))
    for finding in scores.findings:
        _console().print(f"warning ({finding.check}): {finding.message}", style="yellow", markup=False, soft_wrap=True)


def _plot_curve(scores: Any, path: Path) -> None:
    from pwoa.evaluation.record import written
    from pwoa.report.plots import security_curve
    from pwoa.report.table import attack_name

    points = scores.curve
    table = {attack_name(name): {written(point.threat): point[name] for point in points} for name in scores.right}
    _print_table(table, "Accuracy in % by radius")
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


def _print_sparsity(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table()
    for column in ("layer", "weights", "kept", "rate"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for row in rows:
        table.add_row(row["layer"], f"{row['total']:,}", f"{row['kept']:,}", f"{row['rate']:.4g}×")
    _console().print(table)
