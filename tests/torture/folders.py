"""Files of a run and of an evaluation, damaged and then sealed again, as somebody would who knows how they are made."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from pwoa.cli.run import _print_result, _print_sparsity
from pwoa.evaluation import folder as evaluations
from pwoa.evaluation.comparison import compare
from pwoa.recipe import recorded_recipe
from pwoa.report.inspection import inspect
from pwoa.runs.folder import Run
from pwoa.share.publish import card_of
from pwoa.storage.folder import CHECKSUM, sealed
from tests.torture.mutations import Part, mutate, mutate_archive, mutate_json, mutate_toml
from tests.torture.trials import Bench, attempt


def run_parts(folder: Path) -> dict[str, Part]:
    """Return the files that are read back of a run and of an evaluation; `folder` is where those are made."""
    bench, run, begun, halted = Bench(), folder / "run", folder / "begun", folder / "halted"
    bench.run("pwoa", run)
    _break_off(partial(bench.run, "pwoa"), begun)
    _break_off(bench.evaluate, halted)

    def part(name: str, read: Callable[[], object], *ways: Callable[[bytes, random.Random], bytes]) -> Part:
        return Part(name, (folder / name).read_bytes(), lambda path: read(), (mutate, *ways), 2)

    of_run = evaluations.OF_MODEL.as_posix()
    measured, progress = _opener(run / of_run), _opener(halted)
    return {
        "a run's result": part("run/result.json", lambda: _read_run(run), mutate_sealed),
        "a run's model": part("run/model.json", lambda: _read_run(run), mutate_sealed),
        "a run's recipe": part("run/recipe.toml", lambda: _read_run(run), mutate_sealed_toml),
        "a run's metrics": part("run/metrics.jsonl", lambda: _read_run(run)),
        "an evaluation's result": part(f"run/{of_run}/result.json", lambda: measured().read(), mutate_sealed),
        "an evaluation's question": part(f"run/{of_run}/evaluation.json", lambda: measured().read(), mutate_sealed),
        "an evaluation's progress": part(
            f"halted/{evaluations.PROGRESS}",
            lambda: progress().resume(torch.device("cpu"), bench.data.classes),
            mutate_progress(progress()),
        ),
        "a run's state": part("begun/checkpoint/state.pt", lambda: Run(begun).load_checkpoint(), mutate_state),
    }


def _break_off(work: Callable[[Path], object], place: Path) -> None:
    """Do two thirds of some work in a folder."""
    whole = place.with_name("whole")
    events = attempt(lambda: work(whole), place.parent).events
    shutil.rmtree(whole)
    attempt(lambda: work(place), place.parent, events * 2 // 3)


def _opener(folder: Path) -> Callable[[], evaluations.EvaluationFolder]:
    """Return what opens the folder of an evaluation as the same command would that began it."""
    asked = json.loads((folder / evaluations.ASKED).read_bytes())
    asked.pop(CHECKSUM)
    return lambda: evaluations.EvaluationFolder(folder, asked)


def _read_run(folder: Path) -> None:
    """Do all that is done with a finished run, its tables among it."""
    run = Run(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        print(inspect(folder), card_of(folder), compare(folder), run.metrics())
        summary = run.result()
        _print_result({"pruned": summary["pruned"]}, summary, recorded_recipe(folder).threat)
        _print_sparsity(summary)


def mutate_sealed(content: bytes, chance: random.Random) -> bytes:
    """Put other values into a JSON object, and the checksum that fits them."""
    tree = json.loads(content)
    tree.pop(CHECKSUM)
    return json.dumps(sealed(json.loads(mutate_json(json.dumps(tree).encode(), chance)))).encode()


def mutate_sealed_toml(content: bytes, chance: random.Random) -> bytes:
    """Put other values into the recipe of a run, and the hash that fits them."""
    head, _, text = content.partition(b"\n")
    changed = mutate_toml(text, chance)
    return head[: -hashlib.sha256().digest_size * 2] + hashlib.sha256(changed).hexdigest().encode() + b"\n" + changed


def mutate_progress(place: evaluations.EvaluationFolder) -> Callable[[bytes, random.Random], bytes]:
    """Return what changes how far an evaluation has come, and makes the checksum fit."""

    def changed(content: bytes, chance: random.Random) -> bytes:
        length = int.from_bytes(content[:8], "little")
        about = json.loads(content[8 : 8 + length])["__metadata__"]
        tensors, text = from_bytes(content), about["measurements"]
        if chance.random() < 0.7:
            text = mutate_json(text.encode(), chance).decode()
        else:
            name = chance.choice(sorted(tensors))
            tensors[name] = chance.choice(
                (torch.zeros(0), torch.ones(3, 2), ~tensors[name].bool(), -tensors[name].int())
            )
        about |= {"measurements": text, "sha256": evaluations._digest(tensors, text, place._which())}
        return to_bytes(tensors, about)

    return changed


def mutate_state(content: bytes, chance: random.Random) -> bytes:
    """Damage what torch saved in the state of a run, and make the checksum fit."""
    start = content.index(b"PK\x03\x04")
    changed = mutate_archive(content[start:], chance)
    return content[: start - 32] + hashlib.sha256(changed).digest() + changed
