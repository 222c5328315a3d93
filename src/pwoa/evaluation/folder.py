"""The folder of an evaluation: what was asked, how far it has come, and in the end the result.

evaluation.json       what is measured: fingerprints of model and data, attacks, threat, …
progress.safetensors  while it runs: all verdicts so far, and the state of the attack in progress
verdicts.safetensors  which images are right under which attack
result.json           accuracies, intervals, warnings, in the words RobustBench has for them
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from pwoa.attacks.autoattack import State
from pwoa.errors import InputError, first_line
from pwoa.evaluation.checks import Finding
from pwoa.evaluation.robustness import Measurement
from pwoa.evaluation.scores import FILE, Scores, load_verdicts, save_verdicts
from pwoa.storage.folder import RESULT, Folder, replacing
from pwoa.threat import Threat

ASKED = "evaluation.json"
PROGRESS = "progress.safetensors"
SAVE_SECONDS = 15.0
OF_MODEL, OF_TEACHER = Path("evaluation") / "model", Path("evaluation") / "teacher"
"""Where a run keeps the evaluations of its model and of its teacher."""


class EvaluationFolder(Folder):
    """The folder of one evaluation. Opening it checks, and writes nothing; `begin` does."""

    kind = "evaluation"
    marks = (ASKED,)

    def __init__(self, path: str | Path, asked: Mapping[str, Any]) -> None:
        super().__init__(path)
        self.asked = json.loads(json.dumps(asked))
        self._saved = time.monotonic()
        known = self._known()
        keys = [key for key in {**self.asked, **known} if known.get(key) != self.asked.get(key)] if self.started else []
        self.check({key: (_brief(known.get(key)), _brief(self.asked.get(key))) for key in keys})

    @property
    def started(self) -> bool:
        return bool(self._known())

    def _known(self) -> dict[str, Any]:
        file = self.path / ASKED
        try:
            known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError:  # a file of the same name that is not ours
            known = {}
        return known if isinstance(known, dict) else {}

    def begin(self) -> None:
        """Create the folder, and write down what is measured."""
        self.make()
        self.write_json(ASKED, self.asked)

    def save(self, measurements: Sequence[Measurement]) -> None:
        """Keep how far it has come, if the last time was a while ago."""
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            tensors, about = _packed(measurements)
            with replacing(self.path / PROGRESS) as file:
                file.write(to_bytes(tensors, {"measurements": json.dumps(about)}))
            self._saved = time.monotonic()

    def resume(self, device: torch.device) -> list[Measurement]:
        """Return the measurements so far, finished or not; none if there is nothing to go on from."""
        path = self.path / PROGRESS
        if not path.is_file():
            return []
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads(file.metadata()["measurements"])
                names = file.keys()
                tensors = {name: file.get_tensor(name) for name in names}
            return _unpacked(tensors, about, device)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged ({first_line(error)}); delete it to begin anew") from None

    def finish(self, scores: Scores, result: Mapping[str, Any]) -> None:
        """Write verdicts and result, and drop the progress: the evaluation is done."""
        about = {key: self.asked[key] for key in ("model", "data", "images", "threat", "seed")}
        save_verdicts(self.path / FILE, verdicts_of(scores), about)
        self.write_json(RESULT, result)
        for name in (PROGRESS, f".{PROGRESS}.part"):  # the second is of a process killed while it saved
            (self.path / name).unlink(missing_ok=True)

    def read(self) -> Scores:
        """Return the scores of a finished evaluation."""
        right, _ = load_verdicts(self.path / FILE)
        try:
            result = json.loads((self.path / RESULT).read_text(encoding="utf-8"))
            return _scores_from(right, result, Threat(**self.asked["threat"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.path / RESULT} is damaged ({first_line(error)}); choose another folder") from None


def _brief(value: Any) -> Any:
    """Shorten a value for a sentence; of a fingerprint to its beginning."""
    if isinstance(value, str):
        return value[:12]
    return value if isinstance(value, (int, float)) else json.dumps(value)


def verdicts_of(scores: Scores) -> dict[str, Tensor]:
    """Return all verdicts by name: `pgd20`; a part of AutoAttack `autoattack:fab-t`; another radius `pgd20@0.1`."""
    named: dict[str, Tensor] = {}
    for point in (scores, *scores.curve):
        end = "" if point.threat.radius == scores.threat.radius else f"@{point.threat.radius:.6g}"
        named |= {attack + end: right for attack, right in point.right.items()}
        named |= {f"autoattack:{part}{end}": right for part, right in point.after.items()}
    return named


def _scores_from(named: Mapping[str, Tensor], result: Mapping[str, Any], threat: Threat) -> Scores:
    at: dict[str, dict[str, Tensor]] = {}
    for name, right in named.items():
        attack, _, radius_text = name.partition("@")
        at.setdefault(radius_text, {})[attack] = right
    main = _point_from(at[""], result["attacks"], threat)
    points = []
    for radius in dict.fromkeys(row["radius"] for row in result["curve"]):
        rows = [row for row in result["curve"] if row["radius"] == radius]
        own = radius == threat.radius
        points.append(main if own else _point_from(at[f"{radius:.6g}"], rows, threat.at_radius(radius)))
    findings = tuple(Finding(**warning) for warning in result["warnings"])
    return dataclasses.replace(main, findings=findings, curve=tuple(points))


def _point_from(named: Mapping[str, Tensor], rows: Sequence[Mapping[str, Any]], threat: Threat) -> Scores:
    """Return the scores at one radius, from the verdicts there and the rows of the result."""
    right = {name: value for name, value in named.items() if ":" not in name}
    after = {name.partition(":")[2]: value for name, value in named.items() if ":" in name}
    seconds = {row["attack"]: row["seconds"] for row in rows if row["seconds"] is not None}
    return Scores(threat, right, seconds, after)


def _packed(measurements: Sequence[Measurement]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    tensors: dict[str, Tensor] = {}
    about = []
    for number, measured in enumerate(measurements):
        for kind, verdicts in (("right", measured.right), ("after", measured.after)):
            tensors |= {f"{number}/{kind}/{name}": right.clone() for name, right in verdicts.items()}
        entry: dict[str, Any] = {"seconds": measured.seconds, "done": measured.done, "ensemble": None}
        if (state := measured.ensemble) is not None:
            parts = {"broken_by": state.broken_by, "best": state.best, "left": state.left}
            tensors |= {f"{number}/state/{name}": value.cpu().contiguous() for name, value in parts.items()}
            entry["ensemble"] = {name: getattr(state, name) for name in ("attack", "round", "done", "seconds")}
        about.append(entry)
    return tensors, about


def _unpacked(
    tensors: Mapping[str, Tensor], about: Sequence[Mapping[str, Any]], device: torch.device
) -> list[Measurement]:
    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    found = []
    for number, entry in enumerate(about):
        state = None
        if entry["ensemble"] is not None:
            parts = {name: value.to(device) for name, value in under(f"{number}/state/").items()}
            state = State(parts["broken_by"], parts["best"], parts["left"], **entry["ensemble"])
        right, after = under(f"{number}/right/"), under(f"{number}/after/")
        found.append(Measurement(right, after, dict(entry["seconds"]), entry["done"], state))
    return found
