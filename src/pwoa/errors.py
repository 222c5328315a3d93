"""The one error a user can cause."""


class InputError(ValueError):
    """Something given from outside is wrong. The message is one line: what, where, and what to do.

    The command line prints it without a traceback and exits with code 2; any other exception is a bug.
    """
