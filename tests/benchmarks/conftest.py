"""Scripts of benchmarks/, as modules, and a few images for them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    def load(name: str) -> ModuleType:
        path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def few(digits: Callable[[int, int], Path]) -> list[str]:
    """Options for a folder of a few images: 75 to train with, 20 to test."""
    settings = [f"data.name={digits(75, 20)}", "data.validation=25", "training.batch=25", "training.device=cpu"]
    return [word for setting in settings for word in ("--set", setting)]
