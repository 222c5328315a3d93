"""What is in a checkpoint, a model folder or a run, as rows for a person."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pwoa.attacks.registry import attack_label
from pwoa.errors import InputError, counted
from pwoa.models.border import Normalisation
from pwoa.models.checkpoints.folder import CARD, CONFIG, Held, find_folder, holds_model, read_folder
from pwoa.models.checkpoints.inspection import Inspection, TensorForm, inspect_checkpoint
from pwoa.models.checkpoints.packed import described_in, is_packed, read_packed
from pwoa.models.compiled import ARTEFACT, is_c
from pwoa.models.onnx import OnnxModel
from pwoa.recipe import recorded_recipe
from pwoa.runs.folder import Run
from pwoa.share.card import recorded
from pwoa.sparsity.selection import describe_left_out
from pwoa.storage.folder import unsealed
from pwoa.storage.reading import TEXT_LIMIT, read_bytes, read_json
from pwoa.threat import Threat

NO_NORMALISATION = "none in the file; if it was done outside the network, give --mean and --std"
Rows = list[tuple[str, str]]
"""A name and a value each, in the order in which one asks."""


class Shown(NamedTuple):
    """What is in a file or folder, what should be known before trusting it, the tensors of an unknown network.

    skeleton: Python source of a class that the tensors of a checkpoint file fit.
    """

    rows: Rows
    warnings: tuple[str, ...] = ()
    tensors: tuple[TensorForm, ...] = ()
    skeleton: str = ""


def inspect(name: str | Path, kept: float | None = None) -> Shown:
    """Return what is in the file or folder of that name. Example: `inspect("trades.pt").rows`."""
    run = Run(name)
    if not run.started and not holds_model(name):
        if Path(name).suffix == ".onnx":
            return Shown(_onnx_rows(OnnxModel(name)))
        if is_c(name):
            return Shown(_c_rows(Path(name)))
        if is_packed(name):
            held = read_packed(Path(name))
            packed = [("file", str(name)), ("kind", "packed: bit masks and kept values")]
            return Shown([*packed, *_model_rows(held), *_accuracy_rows(held.about)])
        found = inspect_checkpoint(name, kept)
        unknown = found.architecture is None
        return Shown(inspection_rows(found), found.warnings, found.layout if unknown else (), found.skeleton)
    if run.finished and not run.started and not (run.path / CONFIG).is_file():
        lost = next(file for file in run.marks if not (run.path / file).is_file())
        raise InputError(f"{name} is a finished run without its {lost}; put it back")
    rows = _run_rows(run) if run.started else [("folder", str(name))]
    if holds_model(name):
        folder = find_folder(name)
        rows += ([] if run.started else _card_rows(folder / CARD)) + _model_rows(read_folder(folder, str(name)))
    return Shown(rows)


def _c_rows(folder: Path) -> Rows:
    """Return what a folder of C says of its network; it is not compiled for that."""
    about = unsealed(read_json(folder / ARTEFACT), str(folder / ARTEFACT))
    names = {
        "shape": "input",
        "classes": "classes",
        "multiply_adds": "multiply-adds",
        "bytes": "bytes",
        "hash": "weights",
    }
    found = [(label, str(about[key])) for key, label in names.items() if key in about]
    return [("folder", str(folder)), ("kind", "C: it can be measured, which compiles it, not pruned"), *found]


def _onnx_rows(model: OnnxModel) -> Rows:
    """Return what an ONNX file says of its graph, and one of ours of its model."""
    sizes, about = [*model.shape, None, None][1:], described_in(model.path)
    known = [] if about is None else [*_known_rows(about), *_accuracy_rows(about)]
    return [
        ("file", str(model.path)),
        ("kind", "ONNX: it can be measured, not pruned"),
        ("input channels", str(sizes[0] or "unknown")),
        *model.describe().items(),
        ("normalisation", "inside the graph" if known else NO_NORMALISATION),
        *known,
    ]


def inspection_rows(found: Inspection) -> Rows:
    """Return what is in a checkpoint file."""
    normalisation, guess = NO_NORMALISATION, "" if found.architecture else " (a guess by the shapes)"
    if found.normalisation is not None:
        normalisation = "none (mean 0, std 1)" if found.normalisation.trivial else str(found.normalisation)
    rows = [
        ("file", found.path),
        ("architecture", found.architecture or "not a registered one"),
        ("classes", f"{found.classes}{guess}" if found.classes else "unknown"),
        ("input channels", f"{found.channels}{guess}" if found.channels else "unknown"),
        ("parameters", f"{found.parameters:,}"),
        ("normalisation", normalisation),
        ("saved as", found.dtype),
        ("container", found.container or "none: a bare state dict"),
        ("prefix taken off", found.prefix or "none"),
    ]
    if found.sparsity:
        rate = f"{1 / (1 - found.sparsity):.4g}" if found.sparsity < 1 else "all pruned"
        rows.append(("exact zeros", f"{100 * found.sparsity:.1f} % of the weights: rate {rate}"))
        rows.append(("overall", _overall(found.parameters, found.nonzero)))
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
        fewer = result.get("fewer", {})
        rows += [(f"{name} in %", _accuracies(scores, fewer)) for name, scores in own.items() if scores]
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
        *_known_rows(about),
    ]
    if "fingerprint" in about:
        rows.append(("fingerprint", f"{about['fingerprint'][:16]}…, which is that of the weights"))
    return rows


def _accuracy_rows(about: Mapping[str, Any]) -> Rows:
    """Return what the run of an exported model measured."""
    measured = about.get("accuracy")
    return [("accuracy in %", f"{_accuracies(measured, about.get('fewer', {}))} (in torch)")] if measured else []


def _known_rows(about: Mapping[str, Any]) -> Rows:
    """Return the threat of a model, and what is left of its weights, as far as that is known."""
    rows = []
    if about.get("threat"):
        threat = Threat(**about["threat"])
        rows.append(("threat", str(threat)))
    if about.get("sparsity"):
        total = about["sparsity"][-1]
        kept = f"{total['kept']:,} of {total['total']:,} prunable weights are not zero"
        rows.append(("pruned", f"{kept}: rate {_rate(total['total'], total['kept'])}"))
    if {"parameters", "nonzero"} <= about.keys():
        rows.append(("overall", _overall(about["parameters"], about["nonzero"])))
    if about.get("left_out"):
        rows.append(("not pruned", describe_left_out(about["left_out"])))
    return rows


def _overall(parameters: int, nonzero: int) -> str:
    return f"{nonzero:,} of all {parameters:,} parameters are not zero: rate {_rate(parameters, nonzero)}"


def _rate(total: int, kept: int) -> str:
    return f"{total / kept:.4g}" if kept else "all pruned"


def _normalisation(numbers: Mapping[str, Any] | None) -> str:
    if not numbers:
        return "none outside the network"
    return str(Normalisation(tuple(numbers["mean"]), tuple(numbers["std"])))


def _accuracies(scores: Mapping[str, float], fewer: Mapping[str, int]) -> str:
    of = {attack: f" (of {number:,})" for attack, number in fewer.items()}
    return ", ".join(f"{attack_label(attack)} {value:.2f}{of.get(attack, '')}" for attack, value in scores.items())
