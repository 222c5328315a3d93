"""Faults: a disk that fails, files that are damaged, missing, or another run's. One line, or the right result.

`python -m tests.torture.faults` tries a fault at every event, and flips bits all over every file of a run.
"""

from __future__ import annotations

import errno
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.torture.trials import Bench, Ended, Part, attempt, content, difference, fresh, main

FAULTS = (errno.ENOSPC, errno.EIO)


def torture(short: bool, every: int = 1) -> Part:
    """Let things fail; a violation is a traceback, more than one line, or a wrong result."""
    part, bench = Part("faults", every), Bench()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        works: dict[str, Callable[[Path], object]] = {"evaluate": bench.evaluate, "pwoa": partial(bench.run, "pwoa")}
        if not short:
            works["trades"] = partial(bench.run, "trades")
        for what, work in works.items():
            _fail_at_events(part, what, work, place, 2 if short else 1000)
        _damage_finished(part, bench, place, 1 if short else 40)
        _damage_evaluation(part, bench, place, 2 if short else 60)
        _damage_broken_off(part, bench, place, 1 if short else 40)
    return part


def _fail_at_events(part: Part, what: str, work: Callable[[Path], object], place: Path, most: int) -> None:
    """Let the disk be full, or fail, at one event; then, when it is well again, the same ends well."""
    with fresh(place / "whole") as whole:
        events = attempt(lambda: work(whole / "run"), whole).events
        expected = content(whole / "run")
    for number, event in enumerate(range(0, events, max(1, events // most))):
        fault = FAULTS[number % len(FAULTS)]
        if not part.due():
            continue
        with fresh(place / "failed") as folder:
            failed = attempt(lambda: work(folder / "run"), folder, event, fault)
            violation = "" if failed.code == 0 or failed.one_line else f"{failed.code}: {failed.output[-500:]}"
            again = attempt(lambda: work(folder / "run"), folder)
            violation = violation or (f"afterwards {again.output[-500:]}" if again.code else "")
            violation = violation or difference(expected, content(folder / "run"))
            part.note(f"{what} with {errno.errorcode[fault]} at event {event}", violation)


def _readers(bench: Bench, folder: Path) -> dict[str, Callable[[], object]]:
    """Return everything that reads a finished run."""
    from pwoa.evaluation.comparison import compare
    from pwoa.evaluation.evaluate import evaluate
    from pwoa.report.inspection import inspect
    from pwoa.runs.folder import Run
    from pwoa.share.publish import card_of
    from tests.conftest import TinyNet

    def measure() -> None:
        scores = evaluate(folder, bench.data, architecture=TinyNet(), device="cpu")
        print({name: round(value, 4) for name, value in scores.items()}, scores.threat)

    return {
        "the same again": lambda: bench.run("pwoa", folder),
        "evaluate": measure,
        "inspect": lambda: print(inspect(folder)),
        "card": lambda: print(card_of(folder)),
        "compare": lambda: print(compare(folder, folder).rows),
        "epochs": lambda: print(Run(folder).metrics()),
    }


def _judge(reader: Callable[[], object], folder: Path, expected: Ended) -> str:
    """Say what is wrong with how a reader of a damaged folder ends: only one line, or what it said before, is right."""
    ended = attempt(reader, folder)
    if ended.one_line or (ended.code == 0 and (ended.output == expected.output or "not finished" in ended.output)):
        return ""  # a run without result.json is one that has not finished
    return f"{ended.code}: {ended.output[-500:]}"


def _damage_finished(part: Part, bench: Bench, place: Path, flips: int) -> None:
    """Flip bits in each file of a finished run, cut it, empty it, remove it, or take that of another run."""
    run, other, chance = place / "finished", place / "other", random.Random(0)
    bench.run("pwoa", run)
    bench.run("pwoa", other, **{"training.seed": 9, "sparsity.rate": 16.0})
    shutil.copytree(run, place / "pristine")
    readers = _readers(bench, run)
    with fresh(place / "trial") as folder:
        expected = {name: attempt(reader, folder) for name, reader in readers.items()}
        for file in sorted(path for path in run.rglob("*") if path.is_file()):
            sound, foreign = file.read_bytes(), (other / file.relative_to(run)).read_bytes()
            damages: dict[str, bytes | None] = {
                f"bit {place}": _flipped(sound, place) for place in chance.sample(range(8 * len(sound)), flips)
            }
            damages |= {"another run's": foreign, "cut": sound[: len(sound) // 2], "empty": b"", "missing": None}
            for damage, damaged in damages.items():
                name = chance.choice(list(readers)) if flips == 1 else ""
                for what, reader in readers.items():
                    if name not in ("", what) or not part.due():
                        continue
                    file.unlink()
                    if damaged is not None:
                        file.write_bytes(damaged)
                    trial = f"{what} of a run with {file.relative_to(run)} {damage}"
                    part.note(trial, _judge(reader, folder, expected[what]))
                    shutil.rmtree(run)  # a reader that goes on with a run writes into it
                    shutil.copytree(place / "pristine", run)
                    extra = {path.name for path in run.iterdir()} - {path.name for path in other.iterdir()}
                    assert not extra, extra


def _flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _damage_evaluation(part: Part, bench: Bench, place: Path, flips: int) -> None:
    """Flip bits in the progress of an evaluation that was killed: it goes on to the right result, or says a line."""
    with fresh(place / "whole") as whole:
        bench.evaluate(whole / "run")
        expected = content(whole / "run")
    with fresh(place / "killed") as killed:
        events = attempt(lambda: bench.evaluate(killed / "run"), killed).events
        shutil.rmtree(killed / "run")
        attempt(lambda: bench.evaluate(killed / "run"), killed, events - 12)
        chance = random.Random(1)
        for name in ("progress.safetensors", "evaluation.json"):
            sound = (killed / "run" / name).read_bytes()
            for bit in filter(lambda bit: part.due(), chance.sample(range(8 * len(sound)), flips)):
                with fresh(place / "trial") as folder:
                    shutil.copytree(killed / "run", folder / "run")
                    (folder / "run" / name).write_bytes(_flipped(sound, bit))
                    ended = attempt(lambda: bench.evaluate(folder / "run"), folder)
                    wrong = difference(expected, content(folder / "run")) if ended.code == 0 else ""
                    violation = wrong or ("" if ended.code == 0 or ended.one_line else ended.output[-500:])
                    part.note(f"an evaluation with bit {bit} of {name} flipped", violation)


def _damage_broken_off(part: Part, bench: Bench, place: Path, flips: int) -> None:
    """Flip bits in the files of a run that was killed, or put links in their places."""
    work = partial(bench.run, "pwoa")
    with fresh(place / "whole") as whole:
        events = attempt(lambda: work(whole / "run"), whole).events
        expected = content(whole / "run")
    with fresh(place / "killed") as killed:
        attempt(lambda: work(killed / "run"), killed, events // 2)
        chance = random.Random(2)
        inside = [path for path in (killed / "run").rglob("*") if path.is_file()]
        files = sorted(path for path in inside if path.name != ".lock")
        for file in files:
            sound = file.read_bytes()
            bits = chance.sample(range(8 * len(sound)), min(flips, 8 * len(sound)))
            for bit in filter(lambda bit: part.due(), bits):
                with fresh(place / "trial") as folder:
                    shutil.copytree(killed / "run", folder / "run")
                    (folder / "run" / file.relative_to(killed / "run")).write_bytes(_flipped(sound, bit))
                    ended = attempt(lambda: work(folder / "run"), folder)
                    wrong = difference(expected, content(folder / "run")) if ended.code == 0 else ""
                    violation = wrong or ("" if ended.code == 0 or ended.one_line else ended.output[-500:])
                    part.note(f"a run resumed with bit {bit} of {file.name} flipped", violation)
        for name in ("metrics.jsonl", "checkpoint", ".lock", "evaluation", "model.safetensors", "result.json"):
            with fresh(place / "trial") as folder:
                shutil.copytree(killed / "run", folder / "run")
                precious, link = folder / "precious", folder / "run" / name
                precious.mkdir()
                (precious / "file").write_text("mine")
                target = precious if name in ("checkpoint", "evaluation") else precious / "file"
                shutil.rmtree(link) if link.is_dir() else link.unlink(missing_ok=True)
                link.symlink_to(target)
                ended = attempt(lambda: work(folder / "run"), folder)
                kept = {path.name: path.read_text() for path in precious.iterdir()} == {"file": "mine"}
                violation = "" if kept and (ended.one_line or not ended.code) else f"{kept}: {ended.output[-500:]}"
                part.note(f"a run resumed with a link for {name}", violation)


if __name__ == "__main__":
    main(torture)
