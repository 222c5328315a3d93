"""The folder of an evaluation: what was asked, how far it has come, and in the end the result.

evaluation.json       what is measured: fingerprints of model and data, attacks, threat, …
progress.safetensors  while it runs: all verdicts so far, and the state of the attack in progress
                      (it says of which evaluation it is, and has a checksum)
verdicts.safetensors  which images are right under which attack
examples.safetensors  a dozen images, what the attacks made of them, and what the model says of both
distances.safetensors how far the nearest broken images are, by the attacks that look for these (fmn)
result.json           accuracies, intervals, warnings, in the words RobustBench has for them
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from pwoa.attacks.registry import NATURAL, STRONG, find_attack
from pwoa.errors import InputError, brief, first_line
from pwoa.evaluation.agreement import Agreement
from pwoa.evaluation.checks import Finding
from pwoa.evaluation.examples import EXAMPLES
from pwoa.evaluation.resuming import check_possible, pack, unpack
from pwoa.evaluation.robustness import Measurement
from pwoa.evaluation.scores import FILE, Scores, load_verdicts, save_verdicts
from pwoa.storage.folder import RESULT, Folder, naming, replacing, unsealed
from pwoa.storage.identity import identity
from pwoa.storage.reading import TEXT_LIMIT, parse_json, read_bytes, read_json, read_safetensors
from pwoa.threat import Threat

ASKED = "evaluation.json"
PROGRESS, DISTANCES = "progress.safetensors", "distances.safetensors"
SAVE_SECONDS = 15.0
_OF_VERDICTS = ("model", "data", "images", "threat", "seed")
"""What the file of verdicts says of the evaluation it is of."""
_KEPT = (ASKED, FILE, DISTANCES, EXAMPLES, RESULT)
"""What a finished evaluation consists of; not all have distances and examples."""
OF_MODEL, OF_TEACHER = Path("evaluation") / "model", Path("evaluation") / "teacher"
"""Where a run keeps the evaluations of its model and of its teacher."""


class FinishedEvaluation(Folder):
    """The folder of an evaluation that is done, whatever was asked."""

    kind = "evaluation"
    marks = (ASKED,)
    passing = (PROGRESS,)

    def distances(self) -> dict[str, Tensor]:
        """Return how far the nearest broken image is from each, by the attacks that looked for these; often by none."""
        file = self.path / DISTANCES
        if not file.is_file():
            return {}
        known = self.read_json(RESULT).get("checksums")  # not there before version 0.4
        if isinstance(known, dict) and known.get(DISTANCES) != identity(file):
            raise InputError(f"{file} is not the one that the evaluation wrote; choose another folder")
        try:
            return from_bytes(read_safetensors(file)[0])
        except SafetensorError as error:
            raise InputError(f"{file} is damaged ({first_line(error)}); choose another folder") from None


class EvaluationFolder(FinishedEvaluation):
    """The folder of one evaluation. Opening it checks, and writes nothing; `begin` does."""

    def __init__(self, path: str | Path, asked: Mapping[str, Any]) -> None:
        super().__init__(path)
        self.asked = json.loads(json.dumps(asked))
        self._saved, self._saving = time.monotonic(), 0.0
        known = self._known()
        keys = [key for key in {**self.asked, **known} if known.get(key) != self.asked.get(key)] if self.started else []
        self.check({key: (_brief(known.get(key)), _brief(self.asked.get(key))) for key in keys})

    @property
    def started(self) -> bool:
        return bool(self._known())

    def _known(self) -> dict[str, Any]:
        file = self.path / ASKED
        try:
            known = read_json(file) if file.is_file() else {}
        except InputError:  # a file of the same name that is not ours
            known = {}
        return unsealed(known, str(file)) if isinstance(known, dict) and known else {}

    def begin(self) -> None:
        """Create the folder, and write down what is measured."""
        self.make()
        self.write_json(ASKED, self.asked)

    def save(self, measurements: Sequence[Measurement]) -> None:
        """Keep how far it has come, if the last time was a while ago: the longer a save takes, the more rarely."""
        start = time.monotonic()
        if start - self._saved >= SAVE_SECONDS * max(1.0, self._saving):
            tensors, about = pack(measurements)
            text, which = json.dumps(about), self._which()
            metadata = {"measurements": text, "evaluation": which, "sha256": _digest(tensors, text, which)}
            with replacing(self.path / PROGRESS) as file:
                file.write(to_bytes(tensors, metadata))
            self._saved = time.monotonic()
            self._saving = self._saved - start

    def _which(self) -> str:
        """Hash what tells this evaluation from others, the fingerprint of its model among it."""
        return hashlib.sha256(json.dumps(self.asked, sort_keys=True).encode()).hexdigest()

    def resume(self, device: torch.device, classes: int) -> list[Measurement]:
        """Return the measurements so far, finished or not; none if there is nothing to go on from.

        Progress of another evaluation, or that cannot be, is an error: it would end as a wrong accuracy.
        """
        path = self.path / PROGRESS
        if not path.is_file():
            return []
        try:
            content, metadata = read_safetensors(path)
            tensors = dict(sorted(from_bytes(content).items()))
            text, which = metadata["measurements"], metadata.get("evaluation", "")
            if which != self._which():
                raise ValueError("it is of another evaluation")
            if metadata.get("sha256") != _digest(tensors, text, which):
                raise ValueError("its checksum is wrong")
            measurements = unpack(tensors, parse_json(text, "it"), device)
            radius = self.asked["threat"]["radius"]
            radii, images = [radius, *(other for other in self.asked["radii"] if other != radius)], self.asked["images"]
            if len(measurements) > len(radii):
                raise ValueError(f"it has {len(measurements)} radii, not {len(radii)}")
            for measured, at in zip(measurements, radii, strict=False):
                counts = self._images_by_attack(at == radius) if at else {NATURAL: images}
                check_possible(measured, self.asked, counts, classes)
            return measurements
        except Exception as error:  # a damaged file can hold anything
            raise InputError(f"{path} is damaged ({first_line(error)}); delete it to begin anew") from None

    def _images_by_attack(self, first: bool) -> dict[str, int]:
        """Return on how many images each attack is run, in the order in which the longer ones are.

        first: at the attacker's own radius; from there the distances are known for others.
        """
        images, few = self.asked["images"], self.asked.get("strong", 0)
        long = self.asked.get("long", images)
        names = [name for name in self.asked["attacks"] if first or not find_attack(name).nearest]
        counts = {name: images if find_attack(name).short else long for name in names}
        return counts | ({STRONG: few} if few else {})

    def finish(self, scores: Scores, result: Mapping[str, Any]) -> None:
        """Write verdicts and result, and drop the progress: the evaluation is done."""
        save_verdicts(self.path / FILE, verdicts_of(scores), {key: self.asked[key] for key in _OF_VERDICTS})
        checksums = {}
        if scores.distances:
            with replacing(self.path / DISTANCES) as file:
                file.write(to_bytes({name: far.clone() for name, far in scores.distances.items()}))
            checksums[DISTANCES] = identity(self.path / DISTANCES)
        self.write_json(RESULT, {**result, "checksums": checksums})
        self.tidy()

    def read(self) -> Scores:
        """Return the scores of a finished evaluation; verdicts or a result of another one are refused."""
        right, about = load_verdicts(self.path / FILE)
        if about != {key: self.asked[key] for key in _OF_VERDICTS}:
            raise InputError(f"{self.path / FILE} is of another evaluation; choose another folder")
        result = self.read_json(RESULT)
        if any(key in result and result[key] != self.asked[key] for key in _OF_VERDICTS):
            raise InputError(f"{self.path / RESULT} is of another evaluation; choose another folder")
        try:
            scores = _scores_from(right, result, Threat(**self.asked["threat"]))
            return dataclasses.replace(scores, distances=self._distances(scores))
        except InputError:
            raise
        except (AttributeError, LookupError, OSError, TypeError, ValueError, OverflowError, SafetensorError) as error:
            raise InputError(f"{self.path / RESULT} is damaged ({first_line(error)}); choose another folder") from None

    def _distances(self, scores: Scores) -> dict[str, Tensor]:
        """Return the distances of a finished evaluation, which must be those of its verdicts."""
        names = [name for name in scores.right if find_attack(name).nearest]
        if not names or not scores.threat.radius:
            return {}
        tensors = self.distances()
        if not tensors:
            raise InputError(f"{self.path / DISTANCES} is missing; choose another folder")
        distances = {name: tensors[name] for name in names}
        for name, far in distances.items():
            if far.dtype != torch.float32 or not torch.equal(far > scores.threat.radius, scores.right[name]):
                raise ValueError(f"the distances of {name} are not those of its verdicts")
        return distances


def check_shared(folder: str | Path) -> None:
    """Refuse what is neither the folder of an evaluation, finished or not, nor free to become one."""
    free = isinstance(folder, (str, Path)) and (not Path(folder).exists() or (Path(folder) / ASKED).is_file())
    if not free:
        raise InputError(f"{brief(folder)} is no folder of an evaluation, as RUN/{OF_TEACHER} is")


def copy_finished(source: str | Path, target: Path) -> None:
    """Copy a finished evaluation; its result comes last, so that a copy that was broken off is measured anew."""
    with naming(target):
        target.mkdir(parents=True)
    for path in (Path(source) / name for name in _KEPT):
        if path.is_file():
            content = read_bytes(path, TEXT_LIMIT)
            with replacing(target / path.name) as file:
                file.write(content)


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
    same = tuple(Agreement(**one) for one in result.get("agreement", []))
    return dataclasses.replace(main, findings=findings, curve=tuple(points), agreement=same)


def _point_from(named: Mapping[str, Tensor], rows: Sequence[Mapping[str, Any]], threat: Threat) -> Scores:
    """Return the scores at one radius, from the verdicts there and the rows of the result."""
    right = {name: value for name, value in named.items() if ":" not in name}
    if {row["attack"]: row["right"] for row in rows} != {name: int(value.sum()) for name, value in named.items()}:
        raise ValueError("its counts are not those of the verdicts")
    after = {name.partition(":")[2]: value for name, value in named.items() if ":" in name}
    seconds = {row["attack"]: row["seconds"] for row in rows if row["seconds"] is not None}
    return Scores(threat, right, seconds, after)


def _digest(tensors: Mapping[str, Tensor], text: str, which: str) -> str:
    digest = hashlib.sha256(f"{which}\0{text}".encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"\0{name}\0{value.dtype}\0{list(value.shape)}\0".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
