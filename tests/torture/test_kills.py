"""The short form of the kills, in a process of its own: its forks need one without threads."""

import subprocess
import sys


def test_a_killed_process_is_resumed_to_the_same_content() -> None:
    command = [sys.executable, "-m", "tests.torture.kills", "--short"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
