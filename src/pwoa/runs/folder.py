"""The run folder: all that is needed to believe, resume or repeat one result.

recipe.toml                        every setting, as the run resolved them
teacher.json                       fingerprints of teacher and data, and how robust the teacher was found
metrics.jsonl                      one line for each epoch
model.safetensors, model.json      the model, and what is needed to build it again
evaluation/model, …/teacher        the evaluations at the end, as `pwoa evaluate` keeps them
result.json                        the summary
report.html                        the page, where a command made the run
tensorboard/                       learning curves, with training.tensorboard
checkpoint/                        while it runs

Every write is atomic, but for the lines that are appended to metrics.jsonl.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from pwoa.attacks.registry import STRONG, attack_label
from pwoa.errors import InputError, brief, first_line
from pwoa.evaluation.folder import OF_MODEL, OF_TEACHER, FinishedEvaluation
from pwoa.evaluation.scores import WORST
from pwoa.methods import find_method
from pwoa.models.checkpoints.archive import check_torch_file
from pwoa.models.checkpoints.folder import DESCRIPTION, WEIGHTS, fingerprint, to_safetensors
from pwoa.recipe import RECIPE, Recipe, flat, recorded_recipe, sealed_toml
from pwoa.recipe.sections import INCIDENTAL
from pwoa.sparsity.selection import smaller
from pwoa.storage.folder import RESULT, Folder, appending, naming, replacing
from pwoa.storage.reading import TEXT_LIMIT, open_file, read_bytes, read_toml

CURVES = "tensorboard"
TEACHER, METRICS, _STATE = "teacher.json", "metrics.jsonl", Path("checkpoint") / "state.pt"
METRICS_CHECKSUM = "metrics_checksum"
"""The key in result.json that holds the SHA-256 of metrics.jsonl."""
_MAGIC, _HASH = b"pwoa state 2\n", 32
"""How a saved state begins: with this, the identity of its run, and the checksum of the rest, each of so many bytes."""
_OF_ANY = {"method", "example_free", "images", "seed", "device", "training_seconds"}
_OF_PRUNING = {"teacher", "pruned", "rate", "sparsity"}
_OF_TRAINING = {"accuracy", "architecture"}
"""What is in result.json: of any run, of one that pruned, and of one that trained from scratch."""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_accuracies(value: Any) -> bool:
    """Tell whether these can be accuracies by attack: in percent, and none above the natural one."""
    if not isinstance(value, Mapping) or not value or not all(_is_number(number) for number in value.values()):
        return False
    same = [number for name, number in value.items() if name not in (STRONG, WORST)]  # which may be of fewer images
    return all(0 <= number <= 100 for number in value.values()) and max(same, default=0) <= value.get("natural", 100)


def _are_layers(value: Any) -> bool:
    rows = value if isinstance(value, list) and value else [None]
    return all(
        isinstance(row, dict)
        and _is_text(row.get("layer"))
        and _is_count(row.get("total"))
        and _is_count(row.get("kept"))
        and _is_number(row.get("rate", 1))
        for row in rows
    )


def _are_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _are_warnings(value: Any) -> bool:
    rows = value if isinstance(value, list) else [None]
    return all(
        isinstance(row, dict)
        and _is_text(row.get("check"))
        and _is_text(row.get("message"))
        and _is_text(row.get("model", ""))
        for row in rows
    )


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "method": _is_text,
    "example_free": lambda value: isinstance(value, bool),
    "images": lambda value: _is_count(value) and value > 0,
    "seed": _is_count,
    "device": _is_text,
    "training_seconds": _is_number,
    "evaluation_seconds": _is_number,
    "rate": _is_number,
    "sparsity": _are_layers,
    "teacher": _are_accuracies,
    "pruned": _are_accuracies,
    "accuracy": _are_accuracies,
    "architecture": _is_text,
    "parameters": _is_count,
    "nonzero": _is_count,
    "overall_rate": _is_number,
    "macs": _is_count,
    "macs_dense": _is_count,
    "macs_rate": _is_number,
    "left_out": _are_texts,
    "fewer": _are_counts,
    "trained_epochs": _is_count,
    "validation_seconds": _is_number,
    "warnings": _are_warnings,
}
"""What the values of result.json can be."""
_TOGETHER = {"overall_rate": {"parameters", "nonzero"}, "macs_rate": {"macs", "macs_dense"}}
"""What is there wherever something else is."""


@dataclass(frozen=True, repr=False)
class Result:
    """A pruned or trained model, its run folder, what was measured (result.json) and its epochs (metrics.jsonl)."""

    model: nn.Module
    folder: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]

    def __fspath__(self) -> str:
        """Stand for the run folder wherever a run may be given, as in `pwoa.report(result)`."""
        return str(self.folder)

    def __repr__(self) -> str:
        """Write what came out in a line."""
        accuracy = self.summary.get("pruned") or self.summary.get("accuracy") or {}
        rate, overall = self.summary.get("rate", 1.0), self.summary.get("overall_rate")
        size = "" if rate == 1 else f", {smaller(rate, overall)}"
        measured = ", ".join(f"{attack_label(name)} {value:.2f} %" for name, value in accuracy.items())
        return f"<Result in {self.folder}: {type(self.model).__name__}{size}: {measured or 'measured elsewhere'}>"


class _Hashed:
    """A file to write to, and the hash of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.hash = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.hash.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


class Run(Folder):
    """One run folder. Opening it creates nothing; `begin` does, once everything given has been checked."""

    kind = "run"
    marks = (TEACHER, RECIPE)
    passing = (_STATE.parent.name,)

    @classmethod
    def choose(cls, folder: str | Path | None, recipe: Recipe, identity: Mapping[str, str]) -> Run:
        """Open the given folder; else the first under runs/ with a telling name that is free or holds this very run."""
        if folder is not None:
            run = cls(folder)
        else:
            name, at, width = recipe.teacher.architecture.rpartition(":")[2].lower().partition("@")
            architecture = name.rpartition(".")[2] + at + width
            rate = f"-x{recipe.sparsity.rate:g}" if find_method(recipe.method).prunes else ""
            name = f"{Path(recipe.data.name).name}-{architecture}-{recipe.method}{rate}-seed{recipe.training.seed}"
            for number in itertools.count(1):
                run = cls(Path("runs") / (name if number == 1 else f"{name}-{number}"))
                if not run.path.exists() or (run.started and not run.differences(recipe, identity)):
                    break
        run.check(run.differences(recipe, identity) if run.started else {})
        return run

    def differences(self, recipe: Recipe, identity: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
        """Return in what a started run is not this one: settings, the teacher, the data; there, and here."""
        known, recorded = self.teacher(), recorded_recipe(self.path)
        recorded = find_method(recorded.method).complete(recorded)  # a version before may have had fewer settings
        settings = recorded.differences(recipe)
        for name, now in identity.items():
            if name in known and str(known[name]) == now:
                settings.pop(name, None)  # the same file, wherever it lies
            elif name in known or name not in flat(recipe):
                settings[name] = (str(known.get(name, ""))[:12], now[:12])
        return settings

    def begin(self, recipe: Recipe, teacher: Mapping[str, Any]) -> None:
        """Create the folder; its recipe is written last, so a folder with a recipe is complete."""
        self.make()
        self.write_json(TEACHER, teacher)
        self.write_text(RECIPE, sealed_toml(recipe))

    def teacher(self, *numbers: str) -> dict[str, Any]:
        """Return what teacher.json says, these numbers among it."""
        known = self.read_json(TEACHER)
        if odd := [name for name in numbers if not _is_number(known.get(name))]:
            raise InputError(f"{self.path / TEACHER} is damaged: its {odd[0]} cannot be; run it anew elsewhere")
        return known

    def result(self) -> dict[str, Any]:
        """Return what result.json says, which is all that a finished run writes there."""
        summary = self.read_json(RESULT)
        wanted = _OF_ANY | (_OF_PRUNING if "pruned" in summary else _OF_TRAINING)
        wanted = wanted.union(*(others for key, others in _TOGETHER.items() if key in summary))
        if lost := wanted - summary.keys():
            raise InputError(f"{self.path / RESULT} is damaged: it has no {min(lost)}; run it anew elsewhere")
        if odd := [key for key, check in _CHECKS.items() if key in summary and not check(summary[key])]:
            raise InputError(f"{self.path / RESULT} is damaged: its {odd[0]} cannot be; run it anew elsewhere")
        if "model" in summary and summary["model"] != self.read_json(DESCRIPTION).get("fingerprint"):
            raise InputError(f"{self.path / RESULT} is of another model than {DESCRIPTION}; run it anew elsewhere")
        if "identity" in summary and summary["identity"] != self._files_hash():
            raise InputError(f"{self.path / RESULT} is of another recipe, teacher or data; put back its own files")
        return summary

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with naming(self.path), appending(self.path / METRICS) as file:
            file.write(json.dumps(line).encode() + b"\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl."""
        path = self.path / METRICS
        content = read_bytes(path, TEXT_LIMIT).splitlines() if path.exists() else []
        lines = [self.parse(line, METRICS) for line in content]
        result = self.read_json(RESULT) if self.finished else {}
        epochs = result.get("trained_epochs", len(lines))
        if epochs != len(lines):
            raise InputError(
                f"{path} has {len(lines)} lines, and its run {brief(epochs)} epochs; put it back, or run it anew"
            )
        self.check_metrics(result)
        return lines

    def check_metrics(self, result: Mapping[str, Any]) -> None:
        """Refuse a metrics.jsonl that is not the one this result was written with; before version 0.4 nothing says it.

        Example: `Run("runs/mine").check_metrics(Run("runs/mine").result())`.
        """
        if METRICS_CHECKSUM in result and result[METRICS_CHECKSUM] != self._metrics_hash():
            raise InputError(f"{self.path / METRICS} is not as its run wrote it; put it back, or run it anew")

    def _metrics_hash(self) -> str:
        path = self.path / METRICS
        return hashlib.sha256(read_bytes(path, TEXT_LIMIT) if path.exists() else b"").hexdigest()

    def keep_metrics(self, lines: Sequence[Mapping[str, Any]]) -> bool:
        """Leave exactly these lines in metrics.jsonl; tell whether they were all there."""
        path, wanted = self.path / METRICS, "".join(json.dumps(line) + "\n" for line in lines)
        content = read_bytes(path, TEXT_LIMIT) if path.is_file() else b""
        if content != wanted.encode():
            self.write_text(METRICS, wanted)
        return content.startswith(wanted.encode())

    def resuming(self) -> str:
        """Tell from where a run that was begun goes on."""
        kept = (self.path / _STATE, self.path / WEIGHTS)
        return "resuming" if any(file.exists() for file in kept) else "resuming from the start: nothing was saved yet"

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Keep the state of the engine, behind whose it is and its checksum."""
        with naming(self.path):
            (self.path / _STATE).parent.mkdir(exist_ok=True)
        with replacing(self.path / _STATE) as file:
            file.write(_MAGIC + self._identity())
            place = file.tell()
            file.write(bytes(_HASH))
            hashed = _Hashed(file)
            torch.save(dict(state), hashed)  # type: ignore[arg-type]  # it writes and flushes, and no more
            file.seek(place)
            file.write(hashed.hash.digest())

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the last checkpoint, or None; one that is not this run's, or was changed, is refused unread."""
        path = self.path / _STATE
        if not path.exists():
            return None
        with open_file(path) as file:
            magic, identity, digest = file.read(len(_MAGIC)), file.read(_HASH), file.read(_HASH)
            content = file.read() if magic == _MAGIC else b""
        if magic.startswith(b"PK"):
            raise InputError(f"{path} was written by an earlier version; delete it, and the run begins anew")
        if magic == _MAGIC and identity != self._identity():
            raise InputError(
                f"{path} is of a run with another recipe, teacher or data; put back its own, or delete it, and the run "
                "begins anew"
            )
        try:
            if magic != _MAGIC or hashlib.sha256(content).digest() != digest:
                raise ValueError("its checksum is another" if content else "it is no state of a run")
            archive = io.BytesIO(content)
            check_torch_file(archive, "it")
            state = torch.load(archive, map_location="cpu", weights_only=True)
            if not isinstance(state, dict):
                raise ValueError("it is no state of a run")
        except Exception as error:  # torch raises anything on a damaged file
            raise InputError(f"{path} is damaged ({first_line(error)}); delete it, and the run begins anew") from None
        return state

    def _identity(self) -> bytes:
        """Return a hash of what the run is: its recipe but for where it is computed, its teacher and its data.

        Settings that a later version has added are no part of it.
        """
        recipe, tree = flat(recorded_recipe(self.path)), read_toml(self.path / RECIPE)
        written = {f"{name}.{key}" for name, section in tree.items() if isinstance(section, dict) for key in section}
        kept = {key: value for key, value in recipe.items() if key in written | tree.keys() and key not in INCIDENTAL}
        text = json.dumps(kept)
        return hashlib.sha256(text.encode() + read_bytes(self.path / TEACHER, TEXT_LIMIT)).digest()

    def _files_hash(self) -> str:
        """Return a hash of what the run is, as its files say it: these stay when settings are added later."""
        parts = (read_bytes(self.path / name, TEXT_LIMIT) for name in (RECIPE, TEACHER))
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def discard(self) -> None:
        """Remove all that the run has written so far, so that the folder can be given to another."""
        for name in (*reversed(self.marks), METRICS):
            (self.path / name).unlink(missing_ok=True)
        for folder in ((self.path / _STATE).parent, self.path / CURVES):
            shutil.rmtree(folder, ignore_errors=True)

    def save_model(self, model: nn.Module, about: Mapping[str, Any]) -> str:
        """Write model.safetensors, and what it is into model.json; return its fingerprint."""
        written = fingerprint(model)
        with replacing(self.path / WEIGHTS) as file:
            file.write(to_safetensors(model.state_dict()))
        self.write_json(DESCRIPTION, {**about, "fingerprint": written})
        return written

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write result.json, with what run it is of, and drop the checkpoint: the run is done."""
        summary = {**result, "identity": self._files_hash(), METRICS_CHECKSUM: self._metrics_hash()}
        self.write_json(RESULT, summary)
        self.tidy()
        return summary

    def tidy_finished(self) -> None:
        """Drop what is left of a process that could not do it when it had finished, in the evaluations as well."""
        super().tidy_finished()
        for place in (OF_MODEL, OF_TEACHER):
            FinishedEvaluation(self.path / place).tidy_finished()
