"""A sweep over a real Ray cluster of two nodes on this machine; where Ray is not installed, test_places.py has
the same with a stand-in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
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
"training.batch" = 25
"training.checkpoint_seconds" = 0
"data.validation" = 25
"evaluation.images" = 20
"evaluation.attacks" = ["natural"]
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without room for runs, and two nodes with room for one each."""
    from ray.cluster_utils import Cluster

    found: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        found.nodes = [found.add_node(num_cpus=1) for _ in range(2)]
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


@pytest.fixture
def write(tmp_path: Path, digits: Callable[[int, int], Path]) -> Callable[[str], Path]:
    """Writes a grid of runs on a few images."""

    def to_file(grid: str) -> Path:
        path = tmp_path / "grid.toml"
        path.write_text(f'{QUICK}"data.name" = "{digits(100, 40)}"\n{grid}')
        return path

    return to_file


def test_runs_are_spread_over_the_nodes_and_failures_told(
    tmp_path: Path, cluster: Any, write: Callable[[str], Path]
) -> None:
    path = write('"finetune.epochs" = 10\n[grid]\nsparsity.rate = [2, 4, 100000]\n')
    found = sweep(path, tmp_path / "runs", on="ray", address=cluster.address)
    assert [row["rate"] for row in found.rows] == [1.0, 2.0, 4.0]  # the teacher first
    assert all(row["natural"] > 50 for row in found.rows)
    assert "leaves layer" in found.failed["rate=100000"]
    assert "run folder" in (tmp_path / "runs" / "rate=2.log").read_text()
    again = sweep(path, tmp_path / "runs", on="ray", address=cluster.address)
    assert again.rows == found.rows


def test_a_run_whose_node_is_lost_is_resumed_on_another(
    tmp_path: Path, cluster: Any, write: Callable[[str], Path]
) -> None:
    path = write("[grid]\nfinetune.epochs = [60, 61]\n")
    logs = {epochs: tmp_path / "runs" / f"epochs={epochs}.log" for epochs in (60, 61)}

    def lose_a_node() -> None:
        while not all((log.parent / log.stem / "checkpoint" / "state.pt").exists() for log in logs.values()):
            time.sleep(0.05)
        cluster.remove_node(cluster.nodes[1], allow_graceful=False)

    losing = threading.Thread(target=lose_a_node)
    losing.start()
    found = sweep(path, tmp_path / "runs", on="ray", address=cluster.address, retries=2)
    losing.join(timeout=60)
    assert found.failed == {}
    assert len(found.rows) == 1 + 2
    resumed = [epochs for epochs, log in logs.items() if "resuming" in log.read_text()]
    assert len(resumed) == 1
