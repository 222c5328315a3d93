"""The subset of MNIST that comes with the package."""

from __future__ import annotations

import subprocess
import sys
import time

import torch

from pwoa.data.catalog import DATASETS
from pwoa.data.load import load_data
from pwoa.data.store import EMBEDDED


def test_it_is_balanced_grey_and_complete() -> None:
    data = load_data("mnist-mini")
    assert (data.name, data.classes) == ("mnist-mini", 10)
    assert data.train.pixels.shape == (10000, 1, 28, 28)
    assert data.test.pixels.shape == (2000, 1, 28, 28)
    assert data.train.labels.bincount().tolist() == [1000] * 10
    assert data.test.labels.bincount().tolist() == [200] * 10
    assert data.train.pixels.dtype == torch.uint8


def test_it_is_the_start_of_mnist() -> None:
    """Both start like the official files: every MNIST tutorial shows 5 0 4 1 9 and 7 2 1 0 4."""
    data = load_data("mnist-mini")
    assert data.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert 0.10 < data.train.batch(torch.arange(10000))[0].mean() < 0.16


def test_it_loads_fast_and_is_small() -> None:
    start = time.perf_counter()
    load_data("mnist-mini")
    assert time.perf_counter() - start < 2
    assert sum(len(file.read_bytes()) for file in EMBEDDED.iterdir()) < 2_000_000


def test_its_licence_is_there() -> None:
    text = (EMBEDDED / "LICENSE-MNIST").read_text()
    for needed in ("Yann LeCun", "Corinna Cortes", "Burges", "ShareAlike 3.0", "What was changed"):
        assert needed in text


def imported_by(code: str) -> set[str]:
    """Which of the heavy libraries a fresh Python has after running the code."""
    code += "; import sys; print(*({'torch', 'PIL'} & sys.modules.keys()))"
    command, environment = [sys.executable, "-c", code], {"PYTHONPATH": ":".join(sys.path)}
    return set(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split())


def test_loading_data_imports_no_pillow() -> None:
    assert imported_by("from pwoa.data.load import load_data; load_data('mnist-mini')") == {"torch"}


def test_listing_and_getting_data_imports_no_torch() -> None:
    assert imported_by("from pwoa.data.store import get, status; status(); get('mnist-mini')") == set()


def test_every_published_set_can_be_verified() -> None:
    for spec in DATASETS.values():
        assert spec.digests or all(len(md5) == 32 for md5 in spec.remotes.values())
        assert all(len(value) == 64 for value in spec.digests or ())
