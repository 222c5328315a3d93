"""The short form of the faults, in a process of its own: its forks need one without threads."""

import subprocess
import sys


def test_what_fails_is_one_line_or_the_right_result() -> None:
    command = [sys.executable, "-m", "tests.torture.faults", "--short"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
