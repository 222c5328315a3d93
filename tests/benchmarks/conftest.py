"""A few images for the scripts of benchmarks/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def few(digits: Callable[[int, int], Path]) -> list[str]:
    """Options for a folder of a few images: 75 to train with, 20 to test."""
    settings = [f"data.name={digits(75, 20)}", "data.validation=25", "training.batch=25", "training.device=cpu"]
    return [word for setting in settings for word in ("--set", setting)]
