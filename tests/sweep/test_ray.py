"""A sweep over a real Ray cluster of two nodes on this machine; where Ray is not installed, test_places.py has
the same with a stand-in."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pwoa.sweep import sweep

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'pwoa[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

QUICK = """
recipe = "demo"
[set]
"search.epochs" = 1
"training.batch" = 100
"training.checkpoint_seconds" = 0
"data.validation" = 9800
"evaluation.images" = 20
"evaluation.attacks" = ["natural"]
"""


@pytest.fixture
def cluster() -> Iterator[tuple[Any, list[Any]]]:
    """A head without room for runs, and its two nodes with room for one each."""
    from ray.cluster_utils import Cluster

    found: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        yield found, [found.add_node(num_cpus=1) for _ in range(2)]
    finally:
        ray.shutdown()
        found.shutdown()


def write(folder: Path, grid: str) -> Path:
    path = folder / "grid.toml"
    path.write_text(QUICK + grid)
    return path


def test_runs_are_spread_over_the_nodes_and_failures_told(tmp_path: Path, cluster: tuple[Any, list[Any]]) -> None:
    path = write(tmp_path, '"finetune.epochs" = 1\n[grid]\nsparsity.rate = [2, 4, 100000]\n')
    found = sweep(path, tmp_path / "runs", on="ray", address=cluster[0].address)
    assert [row["rate"] for row in found.rows] == [1.0, 2.0, 4.0]  # the teacher first
    assert all(row["natural"] > 50 for row in found.rows)
    assert "leaves layer" in found.failed["rate=100000"]
    assert "run folder" in (tmp_path / "runs" / "rate=2.log").read_text()
    again = sweep(path, tmp_path / "runs", on="ray", address=cluster[0].address)
    assert again.rows == found.rows


def test_a_run_whose_node_is_lost_is_resumed_on_another(tmp_path: Path, cluster: tuple[Any, list[Any]]) -> None:
    path = write(tmp_path, "[grid]\nfinetune.epochs = [4, 5]\n")
    logs = {epochs: tmp_path / "runs" / f"epochs={epochs}.log" for epochs in (4, 5)}

    def lose_a_node() -> None:
        while not all((log.parent / log.stem / "checkpoint" / "state.pt").exists() for log in logs.values()):
            time.sleep(0.05)
        cluster[0].remove_node(cluster[1][1], allow_graceful=False)

    losing = threading.Thread(target=lose_a_node)
    losing.start()
    found = sweep(path, tmp_path / "runs", on="ray", address=cluster[0].address, retries=2)
    losing.join(timeout=60)
    assert found.failed == {}
    assert len(found.rows) == 1 + 2
    resumed = [epochs for epochs, log in logs.items() if "resuming" in log.read_text()]
    assert len(resumed) == 1
