"""The C code computes what torch computes, on every kind of vector, and reads nothing outside, whatever it is given."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pwoa.deploy.c.blob import checksum
from pwoa.deploy.c.layout import ADD, KINDS, SCATTER
from tests.deploy.conftest import NETWORKS, Program

SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DMODEL_THREADS", "-pthread")
Build = Callable[..., Program]


def all_right(program: Program, pairs: list[Path]) -> None:
    """Check networks in one process: each is right."""
    ended = program(*pairs)
    lines = ended.stdout.splitlines()
    assert [line for line in lines if ": right" not in line] == []
    assert (ended.returncode, ended.stderr, len(lines)) == (0, "", len(pairs) // 2)


@pytest.fixture(scope="module")
def sanitized(build: Build) -> Program:
    return build(*SANITIZED, "-march=native")


def test_the_networks_have_every_kind_of_step(networks: list[Path]) -> None:
    steps = np.concatenate([steps_of(weights) for weights in networks[::2]])
    kinds, pooled, scattered = steps[:, 0], steps[:, 18], steps[steps[:, 0] == SCATTER]
    assert set(kinds.tolist()) == {*KINDS.values(), ADD, SCATTER}
    assert 10 < np.count_nonzero(pooled) < np.count_nonzero(kinds == KINDS["convolution"])
    eights, singles = scattered[:, 11], scattered[:, 15]
    assert len(scattered) >= 10
    assert np.count_nonzero(eights) >= 5
    assert np.count_nonzero(singles) >= 5


def steps_of(weights: Path) -> NDArray[np.uint32]:
    """Return the table of operators, a row each."""
    words = np.frombuffer(weights.read_bytes(), "<u4")
    start = int(words[11]) * 16
    return words[start : start + 20 * int(words[7])].reshape(-1, 20)


def test_networks_are_right_under_sanitizers_with_two_threads(sanitized: Program, networks: list[Path]) -> None:
    assert len(networks) == 2 * NETWORKS
    all_right(sanitized, networks)


def test_threads_do_not_race(build: Build, networks: list[Path]) -> None:
    program = build("-O1", "-g", "-fsanitize=thread", "-DMODEL_THREADS", "-pthread", "-march=native")
    all_right(program, networks[:80])


def flags_of_this_machine() -> list[tuple[str, ...]]:
    """Return the ways to build for this machine: each kind of vector that it has."""
    try:
        able = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        able = []
    ways: list[tuple[str, ...]] = [("-O3",)]
    if "avx2" in able:
        ways.append(("-O2", "-mavx2", "-mfma"))
    return [*ways, ("-O2", "-mavx512f")] if "avx512f" in able else ways


@pytest.mark.parametrize("flags", flags_of_this_machine(), ids=" ".join)
def test_networks_are_right_on_every_kind_of_vector(flags: tuple[str, ...], build: Build, networks: list[Path]) -> None:
    all_right(build(*flags), networks)


@pytest.mark.skipif(not shutil.which("clang"), reason="clang is not installed")
def test_clang_builds_it_without_a_warning(build: Build, networks: list[Path]) -> None:
    all_right(build("-O2", "-march=native", compiler="clang"), networks[:40])


CROSS = "aarch64-linux-gnu-gcc"


@pytest.mark.skipif(not shutil.which(CROSS), reason="gcc-aarch64-linux-gnu is not installed")
@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="qemu-user is not installed")
def test_networks_are_right_on_aarch64(build: Build, networks: list[Path]) -> None:
    all_right(build("-O2", "-static", compiler=CROSS, prefix=("qemu-aarch64",)), networks)


def test_any_changed_word_is_refused(sanitized: Program, networks: list[Path], tmp_path: Path) -> None:
    draw, pairs = random.Random(0), list[Path]()
    for i in range(100):
        content = bytearray(networks[2 * i].read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        pairs += [tmp_path / f"{i}.weights", networks[2 * i + 1]]
        pairs[-2].write_bytes(content)
    ended = sanitized(*pairs)
    refused = [
        line for line in ended.stdout.splitlines() if "damaged: " in line or "no weights of this version" in line
    ]
    assert (ended.returncode, ended.stderr, len(refused)) == (1, "", 100)


def test_forged_weights_are_refused_or_run_inside_their_bounds(
    sanitized: Program, networks: list[Path], tmp_path: Path
) -> None:
    """With a right checksum only what is checked of sizes and places keeps reads inside; the sanitizers watch them."""
    draw, pairs = random.Random(1), list[Path]()
    for i in range(600):
        source = draw.randrange(NETWORKS)
        pairs += [tmp_path / f"{i}.weights", networks[2 * source + 1]]
        pairs[-2].write_bytes(forged(networks[2 * source].read_bytes(), draw))
    ended = sanitized(*pairs)
    lines = ended.stdout.splitlines()
    refused = [line for line in lines if "damaged" in line or "no memory" in line]
    assert (ended.stderr, len(lines)) == ("", 600)
    assert 200 < len(refused) < 500  # the others changed a weight, or where one reads


def forged(content: bytes, draw: random.Random) -> bytes:
    """Return weights with a few words changed, or cut off, whose header is right again."""
    words = np.frombuffer(content, "<u4").copy()
    if draw.random() < 0.1:
        words = words[: draw.randrange(16, len(words))]
    tables = list(range(6, 12)) + list(range(16, min(400, len(words))))
    for _ in range(draw.randint(1, 3)):
        place = draw.choice(tables) if draw.random() < 0.8 else draw.randrange(6, len(words))
        if draw.random() < 0.5:
            words[place] = draw.choice((0, 1, 2, 3, 7, 255, 65535, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF))
        else:
            words[place] = (int(words[place]) + draw.choice((-2, -1, 1, 2, 16))) & 0xFFFFFFFF
    body = words[6:].tobytes()
    return content[:8] + struct.pack("<QQ", 4 * len(words), checksum(body)) + body
