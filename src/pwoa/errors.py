"""The one error a user can cause."""

from __future__ import annotations


class InputError(ValueError):
    """Something given from outside is wrong. The message is one line: what, where, and what to do.

    The command line prints it without a traceback and exits with code 2; any other exception is a bug.
    """


def first_line(error: Exception) -> str:
    """What another library's error says, in one line."""
    return next(iter(str(error).splitlines()), type(error).__name__)
