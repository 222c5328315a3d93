"""The folder of an evaluation: what it takes, what it keeps, and what comes back."""

from __future__ import annotations

import dataclasses
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pwoa.attacks.autoattack import State, Verdicts, autoattack
from pwoa.attacks.fab import fab_t_rounds
from pwoa.attacks.registry import ATTACKS, Attack
from pwoa.attacks.square import square_rounds
from pwoa.errors import InputError
from pwoa.evaluation import folder
from pwoa.evaluation.checks import Finding
from pwoa.evaluation.examples import Attempts
from pwoa.evaluation.folder import EvaluationFolder, verdicts_of
from pwoa.evaluation.record import result_of
from pwoa.evaluation.robustness import Measurement
from pwoa.evaluation.scores import FILE, Scores, load_verdicts
from pwoa.storage.folder import sealed
from pwoa.threat import Threat

CPU = torch.device("cpu")
THREAT = Threat("linf", 0.1, 0.02)
ASKED: dict[str, Any] = {
    "model": "m1",
    "data": "d1",
    "images": 3,
    "attacks": ["natural", "pgd20"],
    "threat": dataclasses.asdict(THREAT),
    "seed": 0,
    "batch": 1,
    "radii": [],
}
ABOUT = {"dataset": "mine", "architecture": "net", "images_of": 3}


@pytest.fixture(autouse=True)
def _save_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SAVE_SECONDS", 0.0)


@pytest.fixture
def begun(tmp_path: Path) -> EvaluationFolder:
    place = EvaluationFolder(tmp_path / "evaluation", ASKED)
    place.begin()
    return place


def refused(path: Path, asked: dict[str, Any] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        EvaluationFolder(path, asked or ASKED)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def bits(digits: str) -> Tensor:
    return torch.tensor([digit == "1" for digit in digits])


# What it takes


def test_opening_writes_nothing_and_begin_makes_the_folder(tmp_path: Path) -> None:
    place = EvaluationFolder(tmp_path / "a" / "b", ASKED)
    assert not list(tmp_path.iterdir())
    place.begin()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["evaluation.json"]
    assert json.loads((tmp_path / "a" / "b" / "evaluation.json").read_text()) == sealed(ASKED)
    again = EvaluationFolder(tmp_path / "a" / "b", ASKED)
    assert not again.finished
    assert again.resume(CPU, 3) == []


@pytest.mark.parametrize("key", list(ASKED))
def test_another_evaluation_is_refused_by_what_differs(begun: EvaluationFolder, key: str) -> None:
    said = refused(begun.path, ASKED | {key: "other"})
    assert said.startswith(f"{begun.path} holds another evaluation ({key}: there ")
    assert said.endswith(', now "other"); choose another folder, or give the same again to resume it')


def test_numbers_and_fingerprints_that_differ_are_told(begun: EvaluationFolder) -> None:
    said = refused(begun.path, ASKED | {"model": "0123456789abcdef", "images": 1, "attacks": ["fgsm"]})
    assert ', now "0123456789ab"; images: there ' in said
    assert ", now 1; attacks: there " in said


def test_one_that_was_asked_something_more_is_named_too(begun: EvaluationFolder) -> None:
    (begun.path / "evaluation.json").write_text(json.dumps(ASKED | {"weather": "fine"}))
    assert '(weather: there "fine", now "null"); choose' in refused(begun.path)


def test_what_is_asked_is_compared_as_json_has_it(begun: EvaluationFolder) -> None:
    EvaluationFolder(begun.path, ASKED | {"attacks": ("natural", "pgd20"), "seed": 0.0})


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", "\x00"])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert refused(tmp_path) == f"{tmp_path} exists and holds no evaluation; choose another folder"
    (tmp_path / "evaluation.json").write_text(content)
    assert refused(tmp_path) == f"{tmp_path} exists and holds no evaluation; choose another folder"
    assert "exists and holds no evaluation" in refused(tmp_path / "notes.txt")


def test_one_that_is_empty_or_was_killed_while_it_began_is_taken(tmp_path: Path) -> None:
    EvaluationFolder(tmp_path, ASKED)
    (tmp_path / ".evaluation.json.part").write_text("{")
    place = EvaluationFolder(tmp_path, ASKED)
    with place.held():
        place.begin()
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert refused(tmp_path / "a" / "b") == (
        f"cannot write to {tmp_path}; choose another folder with --out (in Python: folder=)"
    )
    (tmp_path / "file").write_text("")
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"cannot write to .*file/b: "):
        EvaluationFolder(tmp_path / "file" / "b", ASKED).begin()


# How far it has come


def test_it_is_not_saved_more_often_than_it_should(begun: EvaluationFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SAVE_SECONDS", 1000.0)
    begun.save([Measurement()])
    assert begun.resume(CPU, 3) == []
    monkeypatch.setattr(folder, "SAVE_SECONDS", 0.0)
    begun.save([Measurement()])
    assert begun.resume(CPU, 3) == [Measurement()]


LONG = ASKED | {"attacks": ["natural", "pgd20", "autoattack"], "radii": [0.1 + i / 100 for i in range(12)]}


def state_of(broken_by: list[int], left: list[int], attack: int = 0, turn: int = 0, done: int = 0) -> State:
    tensors = torch.tensor(broken_by), torch.rand(3, 1, 2, 2), torch.tensor(left)
    return State(*tensors, attack, turn, done, {"natural": 0.5})


def test_measurements_come_back_as_they_were(tmp_path: Path) -> None:
    place = EvaluationFolder(tmp_path / "evaluation", LONG)
    place.begin()
    state = state_of([-1, 2, 0], [0, 1], 2, 1, 2)
    whole = {"natural": bits("101"), "pgd20": bits("100")}
    measured = [
        Measurement(
            {"autoattack": bits("100"), **whole}, {"apgd-ce": bits("101"), "square": bits("100")}, {"pgd20": 0.2}, 3
        ),
        Measurement(whole, {}, {"natural": 0.1, "pgd20": 0.2}, 3, state, attempts=attempts_on([0, 2], ["pgd20", ""])),
        *(Measurement({"natural": bits("100"), "pgd20": bits("000")}, done=number % 3 + 1) for number in range(10)),
    ]
    place.save(measured)
    found = EvaluationFolder(place.path, LONG).resume(CPU, 3)
    assert len(found) == len(measured)
    for one, other in zip(found, measured, strict=True):
        assert (one.seconds, one.done) == (other.seconds, other.done)
        for mine, theirs in ((one.right, other.right), (one.after, other.after)):
            assert list(mine) == list(theirs)
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    back = found[1].ensemble
    assert back is not None
    for name, value in dataclasses.asdict(state).items():
        same = torch.equal if isinstance(value, Tensor) else lambda a, b: bool(a == b)
        assert same(getattr(back, name), value)
    shown = found[1].attempts
    assert shown is not None
    assert (shown.places.tolist(), shown.attacks, shown.broken) == ([0, 2], ["pgd20", ""], [False, False])
    assert torch.equal(shown.images, torch.full((2, 1, 2, 2), 0.5))
    assert all(one.attempts is None for number, one in enumerate(found) if number != 1)
    assert all(one.ensemble is None for number, one in enumerate(found) if number != 1)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_autoattack_that_goes_on_from_the_disk_ends_with_the_same_bits(
    tmp_path: Path, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rounds in (("fab-t", partial(fab_t_rounds, steps=5)), ("square", partial(square_rounds, queries=60))):
        monkeypatch.setitem(ATTACKS, name, dataclasses.replace(ATTACKS[name], rounds=rounds))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.rand(20, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    threat = Threat(norm, {"linf": 0.05, "l2": 0.15}[norm])
    attack = partial(autoattack, model, x, model(x).argmax(1), threat, attacks=["fab-t", "square"], batch=8)
    stops = 0

    asked = ASKED | {"attacks": ["natural", "both"], "images": 20, "batch": 8}
    monkeypatch.setitem(ATTACKS, "both", Attack("both", "both", parts=("fab-t", "square")))
    place = EvaluationFolder(tmp_path / "pieces", asked)
    place.begin()

    def save(state: State) -> None:
        place.save([Measurement({"natural": torch.ones(20, dtype=torch.bool)}, done=20, ensemble=state)])
        raise Stopped

    def in_pieces() -> Verdicts:
        nonlocal stops
        for _ in range(100):
            known = EvaluationFolder(place.path, asked).resume(CPU, 3)
            try:
                return attack(state=known[0].ensemble if known else None, save=save)
            except Stopped:
                stops += 1
        raise AssertionError("it does not come to an end")

    whole, found = attack(), in_pieces()
    assert stops >= 3 + 2 * 2 + 3  # batches: all images naturally, then what is left, in 2 and 3 rounds
    assert 0 < int(whole.robust.sum()) < 20
    assert torch.equal(found.broken_by, whole.broken_by)
    assert torch.equal(found.adversarial, whole.adversarial)


@pytest.mark.parametrize("content", [b"", b"something else", None])
def test_progress_that_is_damaged_is_said_so(begun: EvaluationFolder, content: bytes | None) -> None:
    begun.save([Measurement({"natural": bits("101")})])
    file = begun.path / "progress.safetensors"
    file.write_bytes(file.read_bytes()[:-1] if content is None else content)
    with pytest.raises(InputError, match=r"progress.safetensors is damaged \(.*\); delete it to begin anew") as caught:
        begun.resume(CPU, 3)
    assert "\n" not in str(caught.value)


def rewritten(place: EvaluationFolder, **changes: Any) -> None:
    """Save progress that is whole and sound, but for what a bad disk or a stranger would have put there."""
    fields: dict[str, Any] = {"right": {"natural": bits("111"), "pgd20": bits("110")}, "done": 3}
    place.save([Measurement(**(fields | changes))])


def attempts_on(places: list[int], attacks: list[str], brightness: float = 0.5, broken: int | None = None) -> Attempts:
    """Return attempts on so many images, all of one brightness."""
    images = torch.full((len(places), 1, 2, 2), brightness)
    return Attempts(torch.tensor(places), images, attacks, [False] * (len(places) if broken is None else broken))


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "done too far": {"done": 10**9},
    "done below nothing": {"done": -1},
    "done is no number": {"done": 1.5},
    "between batches": {"done": 1},
    "robust above natural": {"right": {"natural": bits("100"), "pgd20": bits("110")}},
    "right before it was tried": {"done": 2},
    "too few images": {"right": {"natural": bits("11"), "pgd20": bits("10")}},
    "numbers, not verdicts": {"right": {"natural": torch.ones(3), "pgd20": torch.ones(3)}},
    "an attack is lost": {"right": {"natural": bits("111")}},
    "an attack too many": {"right": {"natural": bits("111"), "pgd20": bits("110"), "cw": bits("110")}},
    "shown and not there": {"attempts": attempts_on([0, 3], ["pgd20", ""])},
    "shown by an attack that was not asked for": {"attempts": attempts_on([0, 2], ["cw", ""])},
    "shown and no image": {"attempts": attempts_on([0], ["pgd20"], 1.5)},
    "shown, but not all attacks are named": {"attempts": attempts_on([0, 1], ["pgd20"])},
    "shown, but not all are decided": {"attempts": attempts_on([0, 1], ["pgd20", ""], broken=1)},
    "time runs back": {"seconds": {"natural": -1.0}},
    "time never ends": {"seconds": {"natural": float("nan")}},
    "an attack in progress before its turn": {"done": 0, "right": {}, "ensemble": state_of([-1] * 3, [0, 1, 2])},
    "an attack beyond the last": {"ensemble": state_of([-1] * 3, [0, 1, 2], 99)},
    "a round beyond the last": {"ensemble": state_of([-1] * 3, [0, 1, 2], 1, 99)},
    "more done than left": {"ensemble": state_of([-1] * 3, [0, 1, 2], 1, 0, 4)},
    "broken by what has not run": {"ensemble": state_of([-1, -1, 3], [0, 1], 1)},
    "broken by nothing known": {"ensemble": state_of([-1, -1, -7], [0, 1], 1)},
    "unbroken and never tried": {"ensemble": state_of([-1, -1, -1], [0], 1)},
    "images that are none": {"ensemble": state_of([-1, -1, -1], [0, 1, 2, 7], 1)},
    "images twice": {"ensemble": state_of([-1, -1, -1], [0, 1, 1, 2], 1)},
}


@pytest.mark.parametrize("changes", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_progress_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    attacks = ["natural", "pgd20", *(["autoattack"] if "ensemble" in changes else [])]
    place = EvaluationFolder(tmp_path / "evaluation", ASKED | {"attacks": attacks, "batch": 2})
    place.begin()
    rewritten(place)
    assert place.resume(CPU, 3)[0].done == 3
    rewritten(place, **changes)
    with pytest.raises(InputError, match=r"progress.safetensors is damaged \(.+\); delete it to begin anew$") as caught:
        place.resume(CPU, 3)
    assert "\n" not in str(caught.value)


def test_a_single_byte_of_progress_that_changed_is_found(begun: EvaluationFolder) -> None:
    rewritten(begun)
    file = begun.path / "progress.safetensors"
    content = file.read_bytes()
    for place in range(0, len(content), 3):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(InputError, match="is damaged"):
            begun.resume(CPU, 3)


def test_progress_of_another_evaluation_is_refused(begun: EvaluationFolder, tmp_path: Path) -> None:
    other = EvaluationFolder(tmp_path / "other", ASKED | {"model": "m2"})
    other.begin()
    rewritten(other)
    (other.path / "progress.safetensors").rename(begun.path / "progress.safetensors")
    with pytest.raises(InputError, match="it is of another evaluation"):
        begun.resume(CPU, 3)


# The end


def measured() -> Scores:
    right = {"natural": bits("111"), "pgd20": bits("110"), "autoattack": bits("100")}
    after = {"apgd-ce": bits("110"), "square": bits("100")}
    seconds = {"natural": 0.1, "pgd20": 0.25, "autoattack": 2.0, "autoattack:apgd-ce": 1.5, "autoattack:square": 0.5}
    zero = Scores(THREAT.at_radius(0), dict.fromkeys(right, bits("111")), {"natural": 0.1})
    far = Scores(
        THREAT.at_radius(0.25),
        {"natural": bits("111"), "pgd20": bits("010"), "autoattack": bits("000")},
        {"pgd20": 0.75, "autoattack:square": 0.5},
        {"apgd-ce": bits("010"), "square": bits("000")},
    )
    findings = (Finding("radius", "it grows"), Finding("randomised", "it is random"))
    main = Scores(THREAT, right, seconds, after)
    return dataclasses.replace(main, findings=findings, curve=(zero, main, far))


def assert_same(found: Scores, expected: Scores) -> None:
    assert (found.threat, found.seconds, found.findings) == (expected.threat, expected.seconds, expected.findings)
    for mine, theirs in ((found.right, expected.right), (found.after, expected.after)):
        assert list(mine) == list(theirs)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert len(found.curve) == len(expected.curve)
    for one, other in zip(found.curve, expected.curve, strict=True):
        assert_same(one, other)


def test_a_finished_evaluation_is_read_as_it_was(begun: EvaluationFolder) -> None:
    begun.save([Measurement()])
    scores = measured()
    begun.finish(scores, result_of(scores, nn.Flatten(), ABOUT))
    assert sorted(path.name for path in begun.path.iterdir()) == ["evaluation.json", "result.json", FILE]
    again = EvaluationFolder(begun.path, ASKED)
    assert again.finished
    assert_same(again.read(), scores)


def test_what_a_kill_after_the_end_left_goes_when_it_is_read_again(begun: EvaluationFolder) -> None:
    begun.finish(measured(), result_of(measured(), nn.Flatten(), ABOUT))
    for name in ("progress.safetensors", ".lock", ".progress.safetensors.part", ".0123456789abcdef.part"):
        (begun.path / name).write_text("left by a kill")
    begun.tidy_finished()
    assert sorted(path.name for path in begun.path.iterdir()) == ["evaluation.json", "result.json", FILE]


def test_files_of_another_evaluation_are_refused(begun: EvaluationFolder, tmp_path: Path) -> None:
    asked = ASKED | {"model": "m2"}
    other = EvaluationFolder(tmp_path / "other", asked)
    other.begin()
    for place, model in ((begun, "m1"), (other, "m2")):
        place.finish(measured(), result_of(measured(), nn.Flatten(), ABOUT | {"model": model}))
    (other.path / FILE).rename(begun.path / FILE)
    with pytest.raises(InputError, match=r"verdicts.safetensors is of another evaluation"):
        begun.read()
    begun.finish(measured(), result_of(measured(), nn.Flatten(), ABOUT | {"model": "m1"}))
    (other.path / "result.json").rename(begun.path / "result.json")
    with pytest.raises(InputError, match=r"result.json is of another evaluation"):
        begun.read()


def test_counts_that_are_not_those_of_the_verdicts_are_refused(begun: EvaluationFolder) -> None:
    result = result_of(measured(), nn.Flatten(), ABOUT)
    result["attacks"][1]["right"] += 1
    begun.finish(measured(), result)
    with pytest.raises(InputError, match="its counts are not those of the verdicts"):
        begun.read()


def test_verdicts_are_named_by_attack_part_and_radius(begun: EvaluationFolder) -> None:
    names = [
        *("natural", "pgd20", "autoattack", "autoattack:apgd-ce", "autoattack:square"),
        *("natural@0", "pgd20@0", "autoattack@0"),
        *("natural@0.25", "pgd20@0.25", "autoattack@0.25", "autoattack:apgd-ce@0.25", "autoattack:square@0.25"),
    ]
    assert list(verdicts_of(measured())) == names
    begun.finish(measured(), {})
    right, about = load_verdicts(begun.path / FILE)
    assert list(right) == names
    assert right["pgd20@0.25"].tolist() == [False, True, False]
    assert about == {key: ASKED[key] for key in ("model", "data", "images", "threat", "seed")}


def test_a_finished_one_can_be_read_where_nothing_can_be_written(
    begun: EvaluationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = measured()
    begun.finish(scores, result_of(scores, nn.Flatten(), ABOUT))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert_same(EvaluationFolder(begun.path, ASKED).read(), scores)


def test_a_damaged_result_is_said_so(begun: EvaluationFolder) -> None:
    begun.finish(measured(), result_of(measured(), nn.Flatten(), ABOUT))
    sound = (begun.path / "result.json").read_text()
    odd = ("", "{}", '{"attacks": [], "warnings": [], "curve": [{"radius": 7}]}', '{"attacks": 3}', '{"attacks": [3]}')
    for content in (*odd, sound.replace("66.6", "99.9"), "[" * 100_000, '{"a": ' + "1" * 5_000 + "}"):
        (begun.path / "result.json").write_text(content)
        with pytest.raises(InputError, match=r"result.json is damaged \(.*\); choose another folder"):
            EvaluationFolder(begun.path, ASKED).read()
    (begun.path / FILE).unlink()
    with pytest.raises(InputError, match=f"{FILE} does not exist"):
        EvaluationFolder(begun.path, ASKED).read()


@pytest.mark.parametrize(
    ("threat", "radius", "expected"),
    [
        (Threat("linf", 0.25, 0.05), 0.5, Threat("linf", 0.5, 0.1)),
        (Threat("l2", 0.5, 0.125), 2.0, Threat("l2", 2.0, 0.5)),
        (Threat("linf", 0.25, 0.05), 0.0, Threat("linf", 0.0, 0.0)),
        (Threat("linf", 0.0, 0.05), 0.5, Threat("linf", 0.5, 0.05)),
        (Threat("linf", 0.01, 0.02), 0.005, Threat("linf", 0.005, 0.01)),
        (Threat("linf", 0.01, 0.02), 1.0, Threat("linf", 1.0, 1.0)),
    ],
)
def test_the_step_is_the_same_share_of_another_radius(threat: Threat, radius: float, expected: Threat) -> None:
    assert threat.at_radius(radius) == expected
