"""What is in a checkpoint, a model folder or a run, as rows for a person."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pwoa.attacks.registry import attack_label
from pwoa.errors import counted
from pwoa.models.border import Normalisation
from pwoa.models.checkpoints.folder import CARD, Held, find_folder, holds_model, read_folder
from pwoa.models.checkpoints.inspection import Inspection, inspect_checkpoint
from pwoa.recipe import recorded_recipe
from pwoa.runs.folder import Run
from pwoa.share.card import recorded
from pwoa.storage.reading import TEXT_LIMIT, read_bytes
from pwoa.threat import Threat

Rows = list[tuple[str, str]]
"""A name and a value each, in the order in which one asks."""


def inspect(name: str | Path, kept: float | None = None) -> tuple[Rows, tuple[str, ...]]:
    """Return what is in the file or folder of that name, and what should be known before trusting it."""
    run = Run(name)
    if not run.started and not holds_model(name):
        found = inspect_checkpoint(name, kept)
        return inspection_rows(found), found.warnings
    rows = _run_rows(run) if run.started else [("folder", str(name))]
    if holds_model(name):
        folder = find_folder(name)
        rows += ([] if run.started else _card_rows(folder / CARD)) + _model_rows(read_folder(folder, str(name)))
    return rows, ()


def inspection_rows(found: Inspection) -> Rows:
    """Return what is in a checkpoint file."""
    known = found.architecture is not None
    normalisation = "none in the file; if it was done outside the network, give --mean and --std"
    if found.normalisation is not None:
        normalisation = "none (mean 0, std 1)" if found.normalisation.trivial else str(found.normalisation)
    rows = [
        ("file", found.path),
        ("architecture", found.architecture or "not a registered one"),
        ("classes", str(found.classes) if known else "unknown"),
        ("input channels", str(found.channels) if known else "unknown"),
        ("parameters", f"{found.parameters:,}"),
        ("normalisation", normalisation),
        ("saved as", found.dtype),
        ("container", found.container or "none: a bare state dict"),
        ("prefix taken off", found.prefix or "none"),
    ]
    if found.sparsity:
        rows.append(("exact zeros", f"{100 * found.sparsity:.1f} % of the weights"))
    return rows + [(f"dropped: {name}", why) for name, why in found.dropped.items()]


def _run_rows(run: Run) -> Rows:
    """Tell how far a run has come, and what it is."""
    recipe = recorded_recipe(run.path)
    state = f"not finished ({counted(len(run.metrics()), 'epoch')} done); the same command resumes it"
    rows = [
        ("run", str(run.path)),
        ("state", "finished" if run.finished else state),
        ("method", recipe.method),
        ("data", recipe.data.name),
    ]
    if run.finished:
        result = run.result()
        own = {"teacher": result.get("teacher"), "pruned": result.get("pruned"), "accuracy": result.get("accuracy")}
        rows += [(f"{name} in %", _accuracies(scores)) for name, scores in own.items() if scores]
        rows.append(("test images", f"{result['images']:,}"))
    return rows


def _card_rows(card: Path) -> Rows:
    """Return what the card of a model folder says was measured."""
    text = read_bytes(card, TEXT_LIMIT).decode(errors="replace") if card.is_file() else ""
    images, accuracy = recorded(text)
    if not accuracy:
        return []
    found = ", ".join(f"{attack} {value:.2f}" for attack, value in accuracy.items())
    return [("accuracy in %", f"{found} (by its card)"), ("test images", images)]


def _model_rows(held: Held) -> Rows:
    """Return the model of a folder, of which more is known than of a file."""
    about, width = held.about, held.about.get("width", 1)
    numbers = sum(value.numel() for value in held.tensors.values())
    rows = [
        ("architecture", about["architecture"] + ("" if width == 1 else f"@{width}")),
        ("classes", str(about.get("classes") or "unknown")),
        ("input channels", str(about.get("channels") or "unknown")),
        ("weights", f"{numbers:,} numbers in {counted(len(held.tensors), 'tensor')}"),
        ("normalisation", _normalisation(about.get("normalisation"))),
    ]
    if about.get("threat"):
        threat = Threat(**about["threat"])
        rows.append(("threat", str(threat)))
    if about.get("sparsity"):
        total = about["sparsity"][-1]
        rows.append(("pruned", f"{total['kept']:,} of {total['total']:,} prunable weights are not zero"))
    if "fingerprint" in about:
        rows.append(("fingerprint", f"{about['fingerprint'][:16]}…, which is that of the weights"))
    return rows


def _normalisation(numbers: Mapping[str, Any] | None) -> str:
    if not numbers:
        return "none outside the network"
    return str(Normalisation(tuple(numbers["mean"]), tuple(numbers["std"])))


def _accuracies(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{attack_label(attack)} {value:.2f}" for attack, value in scores.items())
