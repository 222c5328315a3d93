"""The one error a user can cause, what ends a run from outside, and how a person is told in one line."""

import difflib
import os
from collections.abc import Iterable


class ProcessDied(RuntimeError):
    """Another process of the run is gone; the run folder can be resumed."""


class Terminated(BaseException):
    """SIGTERM, as Ctrl-C is KeyboardInterrupt: no error, so that nothing but the command line answers it."""


class InputError(ValueError):
    """Something given from outside is wrong. The message is one line: what, where, and what to do.

    The command line prints it without a traceback and exits with code 2; what `explain` does not know is a bug.
    """


class Diverged(InputError):
    """A training whose loss is not finite any more: nothing of its run is worth resuming."""


class DefenceWarning(UserWarning):
    """A defence check found a reason to doubt an accuracy under attack. The command line prints it below the table."""


class ThreatWarning(UserWarning):
    """Nobody chose the threat, so a default holds. Where progress is shown, a line of it says so instead."""


MEMORY = "out of memory; take a smaller batch: --set training.batch=N, in an evaluation --batch N"
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_LONGEST = 2000
"""Characters of a message that are shown."""


def explain(error: BaseException) -> str | None:
    """Return the one line that a person is told of an error by bad input or by the machine; None if it is a bug."""
    text = str(error)
    if isinstance(error, (InputError, ProcessDied)):
        return one_line(text)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(map(text.__contains__, _NO_MEMORY))):
        return MEMORY
    if isinstance(error, OSError):
        where = "cannot read or write" if error.filename is None else f"cannot use {os.fsdecode(error.filename)}"
        return one_line(f"{where}: {error.strerror or text or type(error).__name__}")
    if isinstance(error, RuntimeError) and "home directory" in text:  # of Path.expanduser
        return "there is no home folder; set HOME, or PWOA_CACHE to a folder for data sets"
    return None


def printable(text: str, kept: str = "") -> str:
    """Return a text that cannot steer a terminal: control characters and other invisible ones are shown as escapes.

    Example: `printable("a\x1b[2J")` is `a\\x1b[2J`. kept: characters that stay as they are, such as a line's end.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in kept else letter.encode("unicode_escape").decode()
        for letter in text
    )


def brief(value: object) -> str:
    """Return a value as Python writes it, cut off; also a number of so many digits that Python refuses to write it."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 100 else text[:100] + "…"


def one_line(text: str) -> str:
    """Return a message as one printable line, cut off where nobody would read on."""
    return printable(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


def first_line(error: Exception) -> str:
    """Return what another library's error says, in one line."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def did_you_mean(given: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the known name nearest to what was given, or all of them, each with the prefix."""
    names = list(known)
    if near := nearest(given, names):
        return f"did you mean {prefix + near!r}?"
    return "known: " + ", ".join(prefix + name for name in names)


def nearest(given: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to what was given; None if none is near."""
    return next(iter(difflib.get_close_matches(given.lower(), list(known), n=1, cutoff=0.5)), None)


def counted(number: int, one: str, many: str = "") -> str:
    """So many of a thing: 1 image, 2 images, 1,000 images; `many` is for words that do not just take an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
