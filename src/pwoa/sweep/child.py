"""A run of a sweep in a process of its own, or on a node: it calls the library, and leaves why it failed in a file.

Its arguments are RECIPE FOLDER TEACHER SECTION.KEY=VALUE ….
When the sweep that started it is gone, it ends as by SIGTERM.
"""

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import NoReturn

from pwoa.errors import Terminated, explain, first_line, one_line
from pwoa.progress import forgive_output
from pwoa.storage.folder import replacing, to_json

ENDED = 128 + signal.SIGTERM
"""How a run exits that was sent SIGTERM."""


def failure_file(folder: Path) -> Path:
    """Return where a run of a sweep leaves why it failed: beside its folder, which may not be there."""
    return folder.with_name(f"{folder.name}.failure.json")


def carry_out(recipe: Path, folder: Path, settings: Sequence[str] = (), teacher: Path | None = None) -> int:
    """Prune or train as a recipe says, in a run folder; return the exit code, and leave the reason if it failed.

    settings: as `section.key=value`, what names Python code; a file cannot.
    teacher: where the teacher is measured, once for all runs; if that is the folder itself, nothing else is done.
    """
    try:
        from pwoa.methods import find_method
        from pwoa.progress import ConsoleProgress
        from pwoa.recipe import load_recipe, parse_setting
        from pwoa.runs.pretrain import pretrain
        from pwoa.runs.prune import prune
        from pwoa.runs.teacher import measure_teacher

        given = dict(map(parse_setting, settings))
        plan = load_recipe(recipe, given).with_settings(given)
        if teacher == folder:
            measure_teacher(plan, folder, ConsoleProgress())
        elif find_method(plan.method).prunes:
            prune(recipe=plan, folder=folder, teacher_evaluation=teacher, progress=ConsoleProgress())
        else:
            pretrain(recipe=plan, folder=folder, progress=ConsoleProgress())
    except (KeyboardInterrupt, Terminated):
        raise
    except Exception as error:
        reason = explain(error) or one_line(f"{type(error).__name__}: {first_line(error)}")
        if explain(error) is None:
            traceback.print_exc()
        print(f"error: {reason}", file=sys.stderr)
        with replacing(failure_file(folder)) as file:
            file.write(to_json({"error": reason}).encode())
        return 2
    return 0


def _end_with(pipe: int) -> None:
    """Wait for the other end of a pipe to be closed, which the system does however its process ends."""
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated


def main() -> int:
    """Carry out the run that the command line names."""
    Thread(target=_end_with, args=(0,), daemon=True).start()
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # by which a sweep stops it, also in a background job
    forgive_output()
    try:
        recipe, folder, teacher, *settings = sys.argv[1:]
        return carry_out(Path(recipe), Path(folder), settings, Path(teacher) if teacher else None)
    except KeyboardInterrupt:
        return 130
    except Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ended by SIGTERM; start the same command again to go on", file=sys.stderr)
        return ENDED
