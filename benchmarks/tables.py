"""The tables of the documents, built from the rows in results/."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.artefacts import artefacts_table
from benchmarks.comparison import competition_table, headline_table, published_table
from benchmarks.deployment import deployment_table
from benchmarks.equal_time import equal_time_table
from benchmarks.laboratory import images_table
from benchmarks.launch import launch_table
from benchmarks.report import waiting_table
from benchmarks.robust import aims_table, before_table, robust_table
from benchmarks.rows import Row, load_rows, markdown
from pwoa.attacks.registry import attack_label
from pwoa.errors import counted
from pwoa.sweep.rows import COLUMNS, TEACHER, mean_and_deviation, spread

_MNIST_COLUMNS = ("natural", "fgsm", "pgd10", "pgd20", "cw", "autoattack")
_TORTURE = {
    "inputs": "bad command lines, files and calls",
    "kills": "kills at events and times, then the same again",
    "faults": "a failing disk, damaged files of runs, links",
}
_MNIST_MODELS = {TEACHER: "teacher (dense)", "ce": "naive (cross-entropy)", "pwoa": "PwoA"}
_CHOICES = {
    "sparsity=every_layer": "every layer, λ of the table, weight decay",
    "sparsity=convolutions": "linear layers left dense",
    "objective=by_the_rule": "λ, λx, λy by the appendix's rule",
    "training=no_weight_decay": "no weight decay",
    "training=robust_weight_decay": "`mnist-robust`, weight decay",
    "training=robust_no_decay": "`mnist-robust`, no weight decay",
}


def with_tables(text: str, results: Path) -> str:
    """Return a document with what stands between `<!-- measured: NAME -->` and `<!-- /measured -->` made anew."""

    def block(match: re.Match[str]) -> str:
        file, table = TABLES[match[1]]
        return f"<!-- measured: {match[1]} -->\n{table(results / file)}\n<!-- /measured -->"

    return re.sub(r"<!-- measured: (\w+) -->.*?<!-- /measured -->", block, text, flags=re.DOTALL)


def mnist_table(path: Path) -> str:
    """Return the pruned LeNets on MNIST, mean ± standard deviation over the seeds."""
    rows = load_rows(path)
    seeds = len({row["seed"] for row in rows})
    head = ["model", "rate", *(attack_label(column) for column in _MNIST_COLUMNS)]
    lines = []
    for model, name in _MNIST_MODELS.items():
        of_model = [row for row in rows if row["model"] == model]
        accuracies = (mean_and_deviation([row[column] for row in of_model]) for column in _MNIST_COLUMNS)
        lines.append([name, f"{of_model[0]['rate']:.4g}", *accuracies])
    return (
        f"LeNet on the full MNIST, l∞ 0.3, rate 4, preset `mnist` (50 + 20 epochs), {rows[0]['n']:,} test images "
        f"(AutoAttack: {rows[0]['n_autoattack']:,}), {seeds} seeds, {rows[0]['device']}; accuracy in percent, mean ± "
        "standard deviation:\n\n" + markdown(head, lines)
    )


def teachers_table(path: Path) -> str:
    """Return the teachers that the other tables start from."""
    lenet = next(row for row in load_rows(path) if (row["method"], row["scale"]) == (TEACHER, "paper"))
    resnet = next(row for row in load_rows(path.with_name("robust.json")) if row["architecture"] == "resnet18")
    same = [row for row in load_rows(path.with_name("competition.json")) if row["method"] == TEACHER]
    strongest = next(row for row in same if row["architecture"] == "resnet18")
    attacks = ("natural", "pgd20", "cw")
    lines = [
        ["LeNet, embedded", "PGD-AT", *(f"{lenet[name]:.2f}" for name in attacks), f"{lenet['autoattack']:.1f}"],
        [
            "ResNet-18 for CIFAR-10",
            "TRADES",
            *(f"{resnet[f'teacher_{name}']:.2f}" for name in attacks),
            f"{strongest['autoattack']:.1f}",
        ],
    ]
    fewer = {lenet["n_autoattack"], strongest["n_autoattack"]}
    return (
        f"Accuracy in percent of {lenet['n']:,} test images (AutoAttack: {', '.join(f'{n:,}' for n in sorted(fewer))}):"
        "\n\n" + markdown(["network", "method", *map(attack_label, (*attacks, "autoattack"))], lines)
    )


def oracle_table(path: Path) -> str:
    """Return robust accuracies by AutoAttack and its components, ours / the oracle's, a line for each model.

    Of what was measured more than once, the last row is shown.
    """
    rows = load_rows(path)
    compared = [row for row in rows if row["oracle"] is not None and row["n"] >= 1000 and not row["seed"]]
    alike = [row for row in compared if _has_reference_square(row)]
    attacks = list(dict.fromkeys(row["attack"] for row in alike))
    head = ["model", "device", *map(_label_of, attacks)]
    lines = []
    for model, device in dict.fromkeys((row["model"], row["device"]) for row in alike):
        by_attack = {row["attack"]: row for row in alike if (row["model"], row["device"]) == (model, device)}
        lines.append([model, device, *(_pair(by_attack.get(attack)) for attack in attacks)])
    paper = "; ".join(
        f"{_label_of(row['attack'])} on {row['model']}, {row['device']}: {_pair(row)}"
        for row in compared
        if row.get("square") == "paper"
    )
    paper = f" With the Square of its paper on both sides (ours is `square-paper`): {paper}." if paper else ""
    whole = [row for row in rows if row["oracle"] is None][-1]
    return (
        "Robust accuracy in percent, ours / pyautoattack 0.2.0, on the same 1,000 test images (seed 0). In brackets: "
        "how many times faster ours was in the same run. Of what was measured twice, the last is shown:\n\n"
        + markdown(head, lines)
        + "\n\nSquare, alone and in AutoAttack, is that of the reference AutoAttack on both sides: its windows do not "
        f"shrink to single pixels within 5,000 queries, and do not reach the last row and column.{paper}\n\n"
        f"All {whole['n']:,} test images of CIFAR-10, {whole['model']}, {whole['device']}: {whole['ours']:.2f} % in "
        f"{whole['seconds_ours']:.0f} s."
    )


def engine_table(path: Path) -> str:
    """Return the two modes of the engine side by side, and the paper's whole run."""
    rows = load_rows(path)
    head = ["mode", "loss, first epoch", "natural", "training"]
    lines = []
    modes = [row for row in rows if row["part"] == "agreement"]
    for row in modes:
        seconds = f"{row['training_seconds']:.0f} s"
        lines.append([row["mode"], f"{row['first_epoch_loss']:.4f}", f"{row['natural']}", seconds])
    apart = max(row["pgd20"] for row in modes) - min(row["pgd20"] for row in modes)
    (whole,) = (row for row in rows if row["part"] == "whole")
    teacher = whole["teacher"]
    return (
        f"ResNet-18 on CIFAR-10, rate 4, with HSIC, batches of 512, {modes[0]['epochs']} epochs from the same seed, "
        f"{modes[0]['images']:,} test images, {modes[0]['device']}; under PGD-20 they are {apart:.2f} points apart:\n\n"
        + markdown(head, lines)
        + "\n\n"
        f"The paper's {whole['epochs']} epochs take {whole['seconds']:.0f} s in mode {whole['mode']}, from loading the "
        "teacher to PGD-20 on all test images. Batches are of 512 instead of 128, at three times the paper's learning "
        f"rates. The first epoch, in which the network is compiled, takes {whole['first_epoch_seconds']:.0f} s, the "
        f"others {whole['median_epoch_seconds']:.2f} s each. Natural accuracy is {whole['natural']} % (teacher: "
        f"{teacher['natural']} %), under PGD-20 {whole['pgd20']} % (teacher: {teacher['pgd20']} %)."
    )


def speed_table(path: Path) -> str:
    """Return seconds for an epoch, a line for each network, loop and batch, and how many times faster ours is."""
    rows = load_rows(path)
    seconds: dict[tuple[str, str, int], dict[bool, float]] = {}
    for row in rows:
        seconds.setdefault((row["network"], row["loop"], row["batch"]), {})[row["hsic"]] = row["seconds_per_epoch"]
    base = {network: by_hsic for (network, loop, _), by_hsic in seconds.items() if loop == "baseline"}
    shares = {(row["network"], row["loop"], row["batch"]): row["peak_fraction"] for row in rows if not row["hsic"]}
    head = ["network", "loop", "batch", "without HSIC", "with HSIC", "HSIC adds", "share of the peak"]
    lines = []
    for (network, loop, batch), by_hsic in seconds.items():
        times = {hsic: f" ({base[network][hsic] / by_hsic[hsic]:.3g}×)" if loop == "ours" else "" for hsic in by_hsic}
        cells = [f"{by_hsic[hsic]:.3g} s{times[hsic]}" for hsic in by_hsic]
        added = f"{100 * (by_hsic[True] / by_hsic[False] - 1):.0f} %"
        lines.append([network, loop, f"{batch:,}", *cells, added, f"{100 * shares[network, loop, batch]:.0f} %"])
    return (
        f"Seconds for an epoch of distillation with ADMM (50,000 images, {rows[0]['device']}), and in brackets how "
        "many times faster than the baseline in the same run:\n\n" + markdown(head, lines)
    )


def allocation_table(path: Path) -> str:
    """Return the accuracies by allocation."""
    return _sweep_table(path, "allocation", lambda row: str(row["sparsity.allocation"]))


def ablation_table(path: Path) -> str:
    """Return the paper's table of the terms of the objective on MNIST, at its epochs, with its AutoAttack beside.

    Rows with settings of their own, which are older than the preset, are left out.
    """
    of_table = [row for row in load_rows(path) if (row["table"], row["scale"]) == ("ablation-mnist", "paper")]
    rows = [row for row in of_table if not row.get("settings")]
    teacher = next(row["autoattack"] for row in rows if row["method"] == TEACHER)
    published = next(row["paper_autoattack"] for row in rows if row["method"] == TEACHER)
    objectives = list(dict.fromkeys(row["objective"] for row in rows))
    lines = []
    for row in sorted(rows, key=lambda row: (row["rate"], objectives.index(row["objective"]))):
        dense = row["method"] == TEACHER
        name = ["1", _MNIST_MODELS[TEACHER]] if dense else [f"{row['rate']:g}", row["objective"]]
        kept = "" if dense else f"{100 * row['autoattack'] / teacher:.0f} %"
        there = "" if dense else f"{100 * row['paper_autoattack'] / published:.0f} %"
        accuracies = (f"{row[column]:.2f}" for column in _MNIST_COLUMNS)
        lines.append([*name, *accuracies, kept, f"{row['paper_autoattack']:.2f}", there])
    run, devices = rows[-1], dict.fromkeys(row["device"] for row in rows)
    head = [
        "rate",
        "objective",
        *map(attack_label, _MNIST_COLUMNS),
        "of the teacher's",
        "in the paper",
        "of its teacher's",
    ]
    return (
        f"{run['architecture']} on {run['dataset']}, {run['epochs']} epochs, seed {run['seed']}, {run['n']:,} test "
        f"images (AutoAttack: {run['n_autoattack']:,}), {' and '.join(devices)}; accuracy in percent:\n\n"
        + markdown(head, lines)
    )


def choices_table(path: Path) -> str:
    """Return what some choices of the paper's preset are worth, a line for each rate and choice."""
    rows, columns = load_rows(path), ("natural", "pgd20", "cw", "strong")
    teacher, *runs = sorted(rows, key=lambda row: float(row["rate"]))
    lines = [["1", _MNIST_MODELS[TEACHER], "1×", "1×", *(f"{teacher[column]:.2f}" for column in columns)]]
    for row in runs:
        (choice,) = (text for name, text in _CHOICES.items() if row["name"].endswith(name))
        smaller = (f"{row[key]:.4g}×" for key in ("overall_rate", "macs_rate"))
        lines.append([f"{row['rate']:g}", choice, *smaller, *(f"{row[column]:.2f}" for column in columns)])
    return (
        f"{teacher['architecture']} on {teacher['dataset']}, {runs[0]['epochs']} epochs, seed {runs[0]['seed']}, "
        f"{teacher['n']:,} test images (strong: {teacher['n_strong']:,}); how many times fewer parameters and "
        "multiply-adds there are, and accuracy in percent:\n\n"
        + markdown(["rate", "choice", "parameters", "multiply-adds", *map(attack_label, columns)], lines)
    )


def _sweep_table(path: Path, axis: str, name: Callable[[Row], str]) -> str:
    """Return the rows of a sweep that differ in one axis and in the seed; before them those of the teacher."""
    rows = load_rows(path)
    seeds, strongest = {row["seed"] for row in rows}, max(row.get("n_autoattack", 0) for row in rows)
    columns = [column for column in COLUMNS if any(row.get(column) is not None for row in rows)]
    named = [(_MNIST_MODELS[TEACHER] if row["method"] == TEACHER else name(row), row) for row in rows]
    lines = [[value, *accuracies.values()] for value, accuracies in spread(named, columns).items()]
    fewer = f" (AutoAttack: {strongest:,})" if strongest else ""
    run = next(row for row in rows if row["method"] != TEACHER)
    return (
        f"{run['architecture']} on {run['dataset']}, rate {run['rate']:g}, {run['epochs']} epochs, {run['n']:,} test "
        f"images{fewer}, {counted(len(seeds), 'seed')}, {run['device']}; accuracy in percent, mean ± standard "
        "deviation:\n\n" + markdown([axis, *map(attack_label, columns)], lines)
    )


def export_table(path: Path) -> str:
    """Return the sizes of artefacts, and how near they are to their networks in torch."""
    rows = load_rows(path)
    head = ["network", "rate", "artefact", "bytes", "dense ÷ it", "difference", "same class", "natural", "in torch"]
    lines = [
        [
            row["network"],
            f"{row['rate']:.4g}",
            row["kind"] if row["values"] is None else f"{row['kind']}, {row['values']}",
            f"{row['bytes']:,}",
            f"{row['dense_bytes'] / row['bytes']:.2f}",
            f"{row['difference']:.1e}" if row["difference"] else "0",
            f"{row['same']:,} of {row['images']:,}",
            f"{row['natural']:.2f}",
            f"{row['natural_torch']:.2f}",
        ]
        for row in rows
    ]
    return (
        "Difference: of the logits, relative to the largest. Natural accuracy in percent. Pruned by magnitude at one "
        "uniform rate and not trained after it, so that accuracies are low and only the artefacts are compared:\n\n"
        + markdown(head, lines)
    )


def torture_table(path: Path) -> str:
    """Return how often each part of the torture was tried, and how often something broke; all readers in a line."""
    rows = load_rows(path)
    readers = [row for row in rows if row["part"].startswith("reader: ")]
    parts = {row["part"]: [row] for row in rows if row not in readers} | {f"{len(readers)} readers": readers}
    lines = [
        [
            _TORTURE.get(part, f"damaged files, by {part}"),
            f"{sum(row['tried'] for row in own):,}",
            f"{sum(row['violations'] for row in own):,}",
            f"{sum(row['seconds'] for row in own) / 60:.1f}",
        ]
        for part, own in parts.items()
    ]
    return markdown(["what was tried", "how often", "violations", "minutes"], lines)


def startup_table(path: Path) -> str:
    """Return processor times of start and of loading, before and after, and their ratio."""
    rows = load_rows(path)
    lines = [
        [row["part"], f"{row['before_ms']:.2f}", f"{row['after_ms']:.2f}", f"{row['ratio']:.3f}", f"{row['runs']}"]
        for row in rows
    ]
    return markdown(["what is done", "before, ms", "now, ms", "ratio", "runs"], lines)


def _label_of(attack: str) -> str:
    """Return an attack as papers write it; in the oracle's rows the whole of AutoAttack is `standard`."""
    return attack_label("autoattack" if attack == "standard" else attack)


def _has_reference_square(row: Row) -> bool:
    """Tell whether Square is that of the reference on both sides; an attack without Square may leave it open."""
    missing = None if row["attack"] in ("square", "standard") else "as-is"
    return bool(row.get("square", missing) == "as-is")


def _pair(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['ours']:.1f} / {row['oracle']:.1f} ({row['seconds_oracle'] / row['seconds_ours']:.1f}×)"


TABLES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "mnist": ("mnist-rate4.json", mnist_table),
    "autoattack": ("autoattack-oracle.json", oracle_table),
    "engine": ("engine.json", engine_table),
    "speed": ("speed.json", speed_table),
    "competition": ("competition.json", competition_table),
    "headline": ("competition.json", headline_table),
    "published": ("competition.json", published_table),
    "ablations": ("paper.json", ablation_table),
    "allocations": ("allocations.json", allocation_table),
    "choices": ("choices.json", choices_table),
    "robust": ("robust.json", robust_table),
    "aims": ("robust.json", aims_table),
    "before": ("robust.json", before_table),
    "images": ("robust-lab.json", images_table),
    "equal": ("equal-time.json", equal_time_table),
    "launch": ("launch.json", launch_table),
    "teachers": ("paper.json", teachers_table),
    "deployment": ("deployment.json", deployment_table),
    "artefacts": ("artefacts.json", artefacts_table),
    "export": ("export.json", export_table),
    "waiting": ("report.json", waiting_table),
    "torture": ("torture.json", torture_table),
    "startup": ("startup.json", startup_table),
}
"""Name of a table → its file in results/, and the function that builds it."""
