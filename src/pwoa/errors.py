"""The one error a user can cause, and what ends a run from outside."""

import difflib
from collections.abc import Iterable


class ProcessDied(RuntimeError):
    """Another process of the run is gone; the run folder can be resumed."""


class Terminated(BaseException):
    """SIGTERM, as Ctrl-C is KeyboardInterrupt: no error, so that nothing but the command line answers it."""


class InputError(ValueError):
    """Something given from outside is wrong. The message is one line: what, where, and what to do.

    The command line prints it without a traceback and exits with code 2; any other exception is a bug.
    """


class DefenceWarning(UserWarning):
    """A defence check found a reason to doubt an accuracy under attack. The command line prints it below the table."""


def first_line(error: Exception) -> str:
    """Return what another library's error says, in one line."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def did_you_mean(given: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the known name nearest to what was given, or all of them, each with the prefix."""
    names = list(known)
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {prefix + near[0]!r}?"
    return "known: " + ", ".join(prefix + name for name in names)


def counted(number: int, one: str, many: str = "") -> str:
    """So many of a thing: 1 image, 2 images, 1,000 images; `many` is for words that do not just take an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
