"""The tables of the documents, built from the rows in results/."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pwoa.report.competition import competition_table, published_table
from pwoa.report.table import attack_name, markdown
from pwoa.sweep.rows import COLUMNS, TEACHER, mean_and_deviation, spread
from pwoa.words import counted

_COLUMNS = ("natural", "fgsm", "pgd10", "pgd20", "cw")
_PARTS = {"standard": "AutoAttack"}
_MODELS = {"teacher": "teacher (dense)", "ce": "naive (cross-entropy)", "pwoa": "PwoA"}


def with_tables(text: str, results: Path) -> str:
    """A document with what stands between `<!-- measured: NAME -->` and `<!-- /measured -->` made anew."""
    tables = {
        "mnist": lambda: mnist_table(results / "mnist-rate4.json"),
        "autoattack": lambda: oracle_table(results / "autoattack-oracle.json"),
        "engine": lambda: engine_table(results / "engine.json"),
        "speed": lambda: speed_table(results / "speed.json"),
        "competition": lambda: competition_table(results / "competition.json"),
        "ablations": lambda: ablation_table(results / "ablations.json"),
        "allocations": lambda: allocation_table(results / "allocations.json"),
        "published": lambda: published_table(results / "competition.json"),
    }

    def block(match: re.Match[str]) -> str:
        return f"<!-- measured: {match[1]} -->\n{tables[match[1]]()}\n<!-- /measured -->"

    return re.sub(r"<!-- measured: (\w+) -->.*?<!-- /measured -->", block, text, flags=re.DOTALL)


def mnist_table(path: Path) -> str:
    """results/mnist-rate4.json as Markdown: mean ± standard deviation over the seeds."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    seeds = len({row["seed"] for row in rows})
    head = ["model", "rate", *(attack_name(column) for column in _COLUMNS)]
    lines = []
    for model, name in _MODELS.items():
        own = [row for row in rows if row["model"] == model]
        accuracies = (mean_and_deviation([row[column] for row in own]) for column in _COLUMNS)
        lines.append([name, f"{own[0]['rate']:.4g}", *accuracies])
    device = rows[0]["device"]
    return (
        f"LeNet on the full MNIST, l∞ 0.3, rate 4, preset `mnist` (50 + 20 epochs), 10,000 test images, "
        f"{seeds} seeds, {device}; accuracy in percent, mean ± standard deviation:\n\n" + markdown(head, lines)
    )


def oracle_table(path: Path) -> str:
    """results/autoattack-oracle.json as Markdown: one row a model, ours / the oracle's robust accuracy by attack.

    Of what was measured more than once, the last is shown.
    """
    rows = json.loads(path.read_text(encoding="utf-8"))
    both = [row for row in rows if row["oracle"] is not None and row["n"] >= 1000 and not row["seed"]]
    shared = [row for row in both if _same_square(row)]
    attacks = list(dict.fromkeys(row["attack"] for row in shared))
    head = ["model", "device", *(_PARTS.get(attack) or attack_name(attack) for attack in attacks)]
    lines = []
    for model, device in dict.fromkeys((row["model"], row["device"]) for row in shared):
        own = {row["attack"]: row for row in shared if (row["model"], row["device"]) == (model, device)}
        lines.append([model, device, *(_pair(own.get(attack)) for attack in attacks)])
    whole = [row for row in rows if row["oracle"] is None][-1]
    paper = "; ".join(
        f"{_PARTS.get(row['attack']) or attack_name(row['attack'])} on {row['model']}, {row['device']}: {_pair(row)}"
        for row in both
        if row.get("square") == "paper"
    )
    return (
        "Robust accuracy in percent, ours / pyautoattack 0.2.0, on the same 1,000 test images (seed 0), and in "
        "brackets how many times faster ours was in the same run; of what was measured twice the last, all rows are in "
        "the file:\n\n" + markdown(head, lines) + "\n\n"
        "Square, alone and in AutoAttack, is that of the reference AutoAttack in both: windows do not shrink to single "
        "pixels within its 5,000 queries, nor reach the last row and column."
        + (f" As in the paper on it, ours (`square-paper`) / the other's changed to that: {paper}." if paper else "")
        + "\n\n"
        f"All {whole['n']:,} test images of CIFAR-10, {whole['model']}, {whole['device']}: {whole['ours']:.2f} % in "
        f"{whole['seconds_ours']:.0f} s."
    )


def engine_table(path: Path) -> str:
    """results/engine.json as Markdown: the modes side by side, and the paper's whole run."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    head = ["mode", "loss, first epoch", "natural", "PGD-20", "training"]
    lines = []
    modes = [row for row in rows if row["part"] == "agreement"]
    for row in modes:
        seconds = f"{row['training_seconds']:.0f} s"
        lines.append([row["mode"], f"{row['first_epoch_loss']:.4f}", f"{row['natural']}", f"{row['pgd20']}", seconds])
    (whole,) = (row for row in rows if row["part"] == "whole")
    teacher = whole["teacher"]
    return (
        f"ResNet-18 on CIFAR-10, rate 4, with HSIC, batches of 512, {modes[0]['epochs']} epochs from the same seed, "
        f"{modes[0]['images']:,} test images, {modes[0]['device']}:\n\n" + markdown(head, lines) + "\n\n"
        f"The paper's {whole['epochs']} epochs, in batches of 512 instead of 128 and at three times its learning "
        f"rates, take {whole['seconds']:.0f} s in mode {whole['mode']}, from loading the teacher to PGD-20 on all test "
        f"images ({whole['first_epoch_seconds']:.0f} s for the first epoch, in which the "
        f"network is compiled, {whole['median_epoch_seconds']:.2f} s for the others): natural {whole['natural']}, "
        f"PGD-20 {whole['pgd20']}, where the teacher has {teacher['natural']} and {teacher['pgd20']}."
    )


def speed_table(path: Path) -> str:
    """results/speed.json as Markdown: one row a network, loop and batch, in brackets the times that ours is faster."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    seconds: dict[tuple[str, str, int], dict[bool, float]] = {}
    for row in rows:
        seconds.setdefault((row["network"], row["loop"], row["batch"]), {})[row["hsic"]] = row["seconds_per_epoch"]
    base = {network: own for (network, loop, _), own in seconds.items() if loop == "baseline"}
    shares = {(row["network"], row["loop"], row["batch"]): row["peak_fraction"] for row in rows if not row["hsic"]}
    head = ["network", "loop", "batch", "without HSIC", "with HSIC", "HSIC adds", "share of the peak"]
    lines = []
    for (network, loop, batch), own in seconds.items():
        times = {hsic: f" ({base[network][hsic] / own[hsic]:.3g}×)" if loop == "ours" else "" for hsic in own}
        cells = [f"{own[hsic]:.3g} s{times[hsic]}" for hsic in own]
        share = shares[network, loop, batch]
        added = f"{100 * (own[True] / own[False] - 1):.0f} %"
        lines.append([network, loop, f"{batch:,}", *cells, added, f"{100 * share:.0f} %"])
    return (
        f"Seconds for an epoch of distillation with ADMM (50,000 images, {rows[0]['device']}), and in brackets how "
        "many times faster than the baseline in the same run:\n\n" + markdown(head, lines)
    )


def allocation_table(path: Path) -> str:
    """results/allocations.json as Markdown: mean ± standard deviation over the seeds of each allocation."""
    return _swept(path, "allocation", lambda row: str(row["sparsity.allocation"]))


def ablation_table(path: Path) -> str:
    """results/ablations.json as Markdown: mean ± standard deviation over the seeds of each objective."""
    return _swept(path, "objective", lambda row: str(row["label"].partition(", objective ")[2]))


def _swept(path: Path, axis: str, name: Callable[[Mapping[str, Any]], str]) -> str:
    """The rows of a sweep that differ in one axis of its grid, and in the seed; before them those of the teacher."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    seeds, strongest = {row["seed"] for row in rows}, max(row.get("n_autoattack", 0) for row in rows)
    columns = [column for column in COLUMNS if any(row.get(column) is not None for row in rows)]
    table = spread([(_MODELS["teacher"] if row["method"] == TEACHER else name(row), row) for row in rows], columns)
    lines = [[value, *accuracies.values()] for value, accuracies in table.items()]
    fewer = f" (AutoAttack: {strongest:,})" if strongest else ""
    run = next(row for row in rows if row["method"] != TEACHER)
    return (
        f"{run['architecture']} on {run['dataset']}, rate {run['rate']:g}, {run['epochs']} epochs, {run['n']:,} test "
        f"images{fewer}, {counted(len(seeds), 'seed')}, {run['device']}; accuracy in percent, mean ± standard "
        "deviation:\n\n" + markdown([axis, *map(attack_name, columns)], lines)
    )


def _same_square(row: Mapping[str, Any]) -> bool:
    """Whether Square is that of the reference on both sides; what has no Square in it need not say so."""
    unsaid = None if row["attack"] in ("square", "standard") else "as-is"
    return bool(row.get("square", unsaid) == "as-is")


def _pair(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['ours']:.1f} / {row['oracle']:.1f} ({row['seconds_oracle'] / row['seconds_ours']:.1f}×)"
