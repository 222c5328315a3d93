"""The folder of an evaluation: what was asked, how far it has come, and in the end the result.

evaluation.json       what is measured: fingerprints of model and data, attacks, threat, …
progress.safetensors  while it runs: all verdicts so far, and the state of the attack in progress
                      (it says of which evaluation it is, and has a checksum)
verdicts.safetensors  which images are right under which attack
examples.safetensors  a dozen images, attacked, and what the model says of them
distances.safetensors how far the nearest broken images are, by the attacks that look for these (fmn)
result.json           accuracies, intervals, warnings, in the words RobustBench has for them
"""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from pwoa.attacks.autoattack import ROBUST, State
from pwoa.attacks.registry import AUTOATTACK, NATURAL, STRONG, find_attack
from pwoa.errors import InputError, brief, first_line
from pwoa.evaluation.agreement import Agreement
from pwoa.evaluation.checks import Finding
from pwoa.evaluation.examples import EXAMPLES
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
_BESIDE = (DISTANCES, EXAMPLES)
"""Whose checksums the result has; the verdicts have their own."""
_KEPT = (ASKED, FILE, *_BESIDE, RESULT)
"""What a finished evaluation consists of; not all have distances and examples."""
OF_MODEL, OF_TEACHER = Path("evaluation") / "model", Path("evaluation") / "teacher"
"""Where a run keeps the evaluations of its model and of its teacher."""


class FinishedEvaluation(Folder):
    """The folder of an evaluation that is done, whatever was asked."""

    kind = "evaluation"
    marks = (ASKED,)
    passing = (PROGRESS,)


class EvaluationFolder(FinishedEvaluation):
    """The folder of one evaluation. Opening it checks, and writes nothing; `begin` does."""

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
            known = read_json(file) if file.is_file() else {}
        except InputError:  # a file of the same name that is not ours
            known = {}
        return unsealed(known, str(file)) if isinstance(known, dict) and known else {}

    def begin(self) -> None:
        """Create the folder, and write down what is measured."""
        self.make()
        self.write_json(ASKED, self.asked)

    def save(self, measurements: Sequence[Measurement]) -> None:
        """Keep how far it has come, if the last time was a while ago."""
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            tensors, about = _packed(measurements)
            text, which = json.dumps(about), self._which()
            metadata = {"measurements": text, "evaluation": which, "sha256": _digest(tensors, text, which)}
            with replacing(self.path / PROGRESS) as file:
                file.write(to_bytes(tensors, metadata))
            self._saved = time.monotonic()

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
            measurements = _unpacked(tensors, parse_json(text, "it"), device)
            radius = self.asked["threat"]["radius"]
            radii, images = [radius, *(other for other in self.asked["radii"] if other != radius)], self.asked["images"]
            if len(measurements) > len(radii):
                raise ValueError(f"it has {len(measurements)} radii, not {len(radii)}")
            for measured, at in zip(measurements, radii, strict=False):
                counts = self._images_by_attack(at == radius) if at else {NATURAL: images}
                _check_possible(measured, self.asked, counts, classes)
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
        if scores.distances:
            with replacing(self.path / DISTANCES) as file:
                file.write(to_bytes({name: far.clone() for name, far in scores.distances.items()}))
        beside = {name: identity(self.path / name) for name in _BESIDE if (self.path / name).is_file()}
        self.write_json(RESULT, {**result, "checksums": beside})
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
            return dataclasses.replace(scores, distances=self._distances(scores, result))
        except (AttributeError, LookupError, OSError, TypeError, ValueError, OverflowError, SafetensorError) as error:
            raise InputError(f"{self.path / RESULT} is damaged ({first_line(error)}); choose another folder") from None

    def _distances(self, scores: Scores, result: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the distances of a finished evaluation, which must be those of its verdicts."""
        names = [name for name in scores.right if find_attack(name).nearest]
        if not names or not scores.threat.radius:
            return {}
        tensors = from_bytes(read_safetensors(self.path / DISTANCES)[0])
        check_beside(self.path / DISTANCES, result)
        distances = {name: tensors[name] for name in names}
        for name, far in distances.items():
            if far.dtype != torch.float32 or not torch.equal(far > scores.threat.radius, scores.right[name]):
                raise ValueError(f"the distances of {name} are not those of its verdicts")
        return distances


def check_beside(path: Path, result: Mapping[str, Any]) -> None:
    """Refuse a file beside a result that is not the one it was written with; before version 0.4 nothing says it."""
    known = result.get("checksums")
    if isinstance(known, dict) and path.name in known and known[path.name] != identity(path):
        raise InputError(f"{path} is not the one that its evaluation wrote")


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


def _packed(measurements: Sequence[Measurement]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    tensors: dict[str, Tensor] = {}
    about = []
    for number, measured in enumerate(measurements):
        for kind, verdicts in (("right", measured.right), ("after", measured.after)):
            tensors |= {f"{number}/{kind}/{name}": right.clone() for name, right in verdicts.items()}
        tensors |= {f"{number}/distance/{name}": far.clone() for name, far in measured.distances.items()}
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
        distances = under(f"{number}/distance/")
        found.append(Measurement(right, after, dict(entry["seconds"]), entry["done"], state, distances))
    return found


def _digest(tensors: Mapping[str, Tensor], text: str, which: str) -> str:
    digest = hashlib.sha256(f"{which}\0{text}".encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"\0{name}\0{value.dtype}\0{list(value.shape)}\0".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_possible(measured: Measurement, asked: Mapping[str, Any], counts: Mapping[str, int], classes: int) -> None:
    """Raise ValueError for what no evaluation by these attacks comes to: it would be taken for verdicts.

    counts: on how many images each attack is run.
    """
    images, batch = asked["images"], asked["batch"]
    if not _is_reached(measured.done, images, batch):
        raise ValueError(f"{measured.done} of {images} images are done")
    attacks = {name: find_attack(name) for name in counts}
    expected = dict.fromkeys(measured.after, counts.get(AUTOATTACK, images)) | dict(counts)
    for name, right in (*measured.right.items(), *measured.after.items()):
        if right.dtype != torch.bool or right.shape != (expected.get(name, images),):
            raise ValueError(f"the verdicts of {name} are not those of {expected.get(name, images)} images")
    near = {name for name, attack in attacks.items() if attack.nearest and name in measured.right}
    if measured.distances.keys() != near or any(
        far.shape != (images,) or far.dtype != torch.float32 or bool((far < 0).any() or far.isnan().any())
        for far in measured.distances.values()
    ):
        raise ValueError("its distances are not those of its attacks")
    short = {name for name, attack in attacks.items() if attack.short}
    if not measured.right.keys() <= attacks.keys() or (measured.done and not short <= measured.right.keys()):
        raise ValueError(f"its verdicts are of {', '.join(measured.right)}")
    natural = measured.right.get(NATURAL, torch.zeros(images, dtype=torch.bool))
    for name, right in measured.right.items():
        if name in short and bool((right & ~natural).any() or right[measured.done :].any()):
            raise ValueError(f"images are right under {name} that are not right naturally, or were not tried")
    if not all(math.isfinite(value) and value >= 0 for value in measured.seconds.values()):
        raise ValueError("its seconds are no times")
    left = [name for name, attack in attacks.items() if not attack.short and name not in measured.right]
    if measured.ensemble is not None:
        if measured.done < images or not left:
            raise ValueError("an attack is in progress whose turn it is not")
        _check_state(measured.ensemble, (NATURAL, *find_attack(left[0]).parts), counts[left[0]], batch, classes)


def _check_state(state: State, names: Sequence[str], images: int, batch: int, classes: int) -> None:
    """Raise ValueError for a state that AutoAttack with these attacks does not come to."""
    broken, left = state.broken_by, state.left
    if broken.shape != (images,) or len(state.best) != images or {broken.dtype, left.dtype} != {torch.int64}:
        raise ValueError(f"its tensors are not those of {images} images")
    if not (0 <= state.attack < len(names) and _is_reached(state.done, len(left), batch)):
        raise ValueError("it counts beyond what there is")
    if not 0 <= state.round < len(find_attack(names[state.attack]).rounds_for(classes)):
        raise ValueError(f"it is in round {state.round} of {names[state.attack]}")
    if bool((broken < ROBUST).any() or (broken > state.attack).any()):
        raise ValueError("images are broken by attacks that have not run")
    whole = torch.arange(images, device=left.device)
    if not torch.equal(left, whole[torch.isin(whole, left)]):
        raise ValueError("images are left that are none")
    unbroken = whole[broken == ROBUST]
    if not bool(torch.isin(unbroken, left).all() and (broken[left[state.done :]] == ROBUST).all()):
        raise ValueError("images are unbroken that were not tried")
    if state.best.dtype != torch.float32 or not bool(((state.best >= 0) & (state.best <= 1)).all()):
        raise ValueError("its images are none")


def _is_reached(done: Any, total: int, batch: int) -> bool:
    """Tell whether so many images can be done of all, batch by batch."""
    return type(done) is int and 0 <= done <= total and (done % batch == 0 or done == total)
