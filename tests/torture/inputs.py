"""Bad inputs: command lines, Python calls and files. Each is one printable line, exit code 2, within five seconds."""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pwoa.errors import InputError
from tests.torture.trials import Part, main

LIMIT = 5.0
DIGITS = "9" * 5000
STRANGE = ("", "\x1b[31m", "a\nb", "\u202e", "x" * 300, "café\udce9", "[red]", "a\0b"[:1] + "\t")
SETTINGS = (
    *("data.name", "data.folder", "data.augment", "data.validation", "teacher.minimum", "teacher.mean", "teacher.std"),
    *("threat.norm", "threat.radius", "threat.step", "sparsity.rate", "sparsity.pattern", "sparsity.allocation"),
    *("objective.distillation", "objective.temperature", "objective.hsic", "objective.hsic_x", "objective.balance"),
    *("search.epochs", "search.learning_rate", "search.rho_growth", "search.interval", "search.allocation_epochs"),
    "finetune.epochs",
    *("training.optimizer", "training.batch", "training.group", "training.mix", "training.momentum", "training.seed"),
    *("training.mode", "training.device", "evaluation.attacks", "evaluation.images", "evaluation.batch"),
    *("evaluation.precision", "evaluation.radii", "evaluation.checks"),
)
VALUES = ("-1e400", "nan", DIGITS, "{a = 1}", "\x1b]0;x\x07")
FREE = ("data.folder", "data.name", "training.device")  # any text names something that is not there


def command_lines(place: Path) -> Iterator[list[str]]:
    """Yield command lines that are wrong."""
    for setting in SETTINGS:
        for value in VALUES:
            yield ["prune", "--set", f"{setting}={value}", "--out", str(place / "out")]
    for verb in ("prune", "pretrain", "evaluate", "compare", "sweep", "push", "card", "recipe", "models inspect"):
        yield [*verb.split(), "--no-such-option"]
        for strange in STRANGE[1:]:
            yield [*verb.split(), strange, *([strange] if verb in ("compare",) else [])]
    for option in ("--rate", "--seed"):
        for value in ("", "many", "1e", DIGITS + "x", "\x1b"):
            yield ["prune", option, value]
    for option in ("--recipe", "--method", "--data", "--arch", "--checkpoint", "--mean", "--std", "--device"):
        for value in ("no-such-thing", "\x1b[2J", "x" * 5000):
            yield ["prune", option, value, "--out", str(place / "out")]
    for option in ("--attacks", "--radius", "--radii", "--precision"):
        for value in ("no-such-thing", "\x1b[2J", f"pgd{DIGITS}", "1e9999999999", "nan"):
            yield ["evaluate", "embedded", "--data", "mnist-mini", option, value, "--out", str(place / "out")]
    yield from (["no-such-verb"], ["data", "get", "no-such-data"], ["sweep"], ["sweep", str(place), "--out", "x"])


def damaged_files(place: Path) -> Iterator[list[str]]:
    """Yield command lines that read a file or a folder which is damaged."""
    contents = {
        "empty": b"",
        "deep": b"[" * 100_000,
        "deep table": b'{"a":' * 50_000,
        "digits": b'{"format": ' + DIGITS.encode() + b"}",
        "list": b"[1, 2]",
        "null": b"null",
        "latin": b"caf\xe9",
        "types": json.dumps({"architecture": 3, "fingerprint": [], "attacks": 1, "method": {}}).encode(),
        "zeros": bytes(100),
    }
    for kind, content in contents.items():
        folder = place / kind.replace(" ", "-")
        folder.mkdir()
        for name in ("config.json", "model.json", "model.safetensors", "recipe.toml", "result.json", "teacher.json"):
            (folder / name).write_bytes(content)
        for name in ("verdicts.safetensors", "grid.toml", "net.pt", "net.onnx"):
            (folder / name).write_bytes(content)
        for verb in (["card"], ["models", "inspect"], ["evaluate"]):
            yield [*verb, str(folder)]
        yield ["compare", str(folder), str(folder)]
        yield ["recipe", str(folder / "grid.toml")] if kind != "empty" else ["recipe", str(folder)]
        yield ["sweep", str(folder / "grid.toml"), "--out", str(place / "swept")]
        yield ["models", "inspect", str(folder / "net.pt")]
        yield ["evaluate", str(folder / "net.onnx"), "--data", "mnist-mini", "--out", str(place / "out")]
        yield ["prune", "--out", str(folder)]


def python_calls(place: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield calls of the library that are wrong, by what they are."""
    import pwoa

    large = 10**5000
    wrong: dict[str, list[Any]] = {
        "rate": [large, "x", None.__class__, -1, float("nan"), [4]],
        "method": [large, "nothing", ["pwoa"], {}],
        "recipe": [3, "nothing", place, b"x"],
        "settings": [3, "a=b", {"a": 1}, {"training.seed": large}, {"training": 3}],
        "teacher_evaluation": [3, place, b"x", {}, ["x"]],
        "teacher": [3, "nothing", place, b"x"],
        "data": [3, "nothing", place, [], (1, 2)],
    }
    for name, values in wrong.items():
        for number, value in enumerate(values):
            yield f"prune {name} {number}", partial(pwoa.prune, folder=place / "out", **{name: value})
    measured: dict[str, list[Any]] = {
        "attacks": [3, "nothing", [3], "", []],
        "threat": [3, "linf", {}],
        "radii": [3, ["x"], [large], [float("nan")], [-1]],
        "images": [-1, large, "x", 1.5],
        "batch": [0, large, "x"],
        "seed": [-2, large, "x"],
        "precision": [3, "float8"],
        "surrogate": [3, "nothing"],
        "device": ["abacus"],
        "checks": [3, "x"],
    }
    for name, values in measured.items():
        for number, value in enumerate(values):
            yield (
                f"evaluate {name} {number}",
                partial(pwoa.evaluate, "embedded", "mnist-mini", **{name: value}),
            )
    names: list[Any] = [3, "nothing", place, 2.5, b"x"]
    for number, wrong_name in enumerate(names):
        yield f"load_model {number}", partial(pwoa.load_model, wrong_name)
        yield f"load_recipe {number}", partial(pwoa.load_recipe, wrong_name)
    threats: list[Any] = [(3, 0.1, 0.1), ("linf", "x", 0.1), ("linf", large, 0.1), ("linf", 0.1, -1)]
    for number, numbers in enumerate(threats):
        yield f"Threat {number}", partial(pwoa.Threat, *numbers)


def judge_line(text: str) -> str:
    """Say what is wrong with a message: it is one line, printable, and not endless."""
    if not text or "\n" in text:
        return f"not one line: {text[:300]!r}"
    return "" if text.isprintable() and len(text) < 3000 else f"not printable: {text[:300]!r}"


def torture(short: bool, every: int = 1) -> Part:
    """Give bad inputs in this process; the table is the same in the short form, of which every third is tried."""
    from typer.testing import CliRunner

    from pwoa.cli import app
    from pwoa.errors import explain
    from pwoa.runs.prune import prune as _loaded_before_the_clock_starts  # noqa: F401

    part, before = Part("inputs", every), Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        place = Path(name)
        lines = [*command_lines(place), *damaged_files(place)]
        calls = [*python_calls(place)]
        step = 3 if short else every
        for arguments in lines[::step]:
            start = time.perf_counter()
            result = CliRunner().invoke(app, arguments)
            violation = judge_line(result.stderr.removesuffix("\n"))
            if result.exit_code != 2:
                violation = f"exit code {result.exit_code}: {result.output[-300:]!r} {result.exception!r:.300}"
            part.note(f"{arguments!r:.200}", violation or _slow(start, partial(CliRunner().invoke, app, arguments)))
        for what, call in calls[::step]:
            start, violation = time.perf_counter(), "it was accepted"
            try:
                call()
            except InputError as error:
                violation = judge_line(explain(error) or "")
            except BaseException:
                violation = traceback.format_exc(limit=-2)
            part.note(what, violation or _slow(start, call))
        os.chdir(before)
    return part


def _slow(start: float, again: Callable[[], object]) -> str:
    """Say how long it took since the start, if too long; a busy machine is slow, too, so that it is tried once more."""
    if time.perf_counter() - start <= LIMIT:
        return ""
    start = time.perf_counter()
    with suppress(InputError):
        again()
    seconds = time.perf_counter() - start
    return f"it took {seconds:.1f} s" if seconds > LIMIT else ""


if __name__ == "__main__":
    main(torture)
