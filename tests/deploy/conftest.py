"""Programs of C that several tests run, and networks for them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from pwoa.deploy.c.blob import pack
from pwoa.deploy.graph import trace
from tests.deploy.networks import random_network

WARNINGS = ("-std=c11", "-ffp-contract=fast", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
NETWORKS = 200


class Program(NamedTuple):
    """A built check.c, and how it is started."""

    path: Path
    prefix: tuple[str, ...] = ()

    def __call__(self, *pairs: Path) -> subprocess.CompletedProcess[str]:
        """Check files of weights and of vectors, in pairs."""
        environment = {**os.environ, "ASAN_OPTIONS": "exitcode=99", "UBSAN_OPTIONS": "halt_on_error=1:exitcode=99"}
        command = [*self.prefix, str(self.path), *map(str, pairs)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Program]:
    """Builds check.c with these flags by this compiler, without a warning; its own weights are one network's."""

    def make(*flags: str, compiler: str = "cc", prefix: tuple[str, ...] = ()) -> Program:
        folder = tmp_path_factory.mktemp("program")
        for name in ("model.c", "model.h", "check.c", "weights.S"):
            shutil.copy(str(files("pwoa.deploy.c") / name), folder)
        model, images = random_network(0)
        (folder / "weights.bin").write_bytes(pack(trace(model, images)))
        command = [compiler, *WARNINGS, *flags, "-o", "check", "check.c", "model.c", "weights.S"]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
        return Program(folder / "check", prefix)

    return make


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The weights and the vectors of all random networks, in pairs."""
    folder, pairs = tmp_path_factory.mktemp("networks"), list[Path]()
    for seed in range(NETWORKS):
        model, images = random_network(seed)
        with torch.no_grad():
            logits = model(images).numpy()
        weights, vectors = folder / f"{seed}.weights", folder / f"{seed}.vectors"
        weights.write_bytes(pack(trace(model, images)))
        head = struct.pack("<5I", *images.shape, logits.shape[1])
        vectors.write_bytes(
            head + images.numpy().astype("<f4").tobytes() + np.ascontiguousarray(logits, "<f4").tobytes()
        )
        pairs += [weights, vectors]
    return pairs
