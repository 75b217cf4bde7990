"""The cells of an experiment on a Ray cluster of two nodes: the rows are those that are measured here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quarl.policy.bundle import Bundle

pytest.importorskip("ray", reason="Ray is missing: make actorq")
LIMIT_S = 300.0


def measured(*words: str) -> dict[str, list[object]]:
    """The printed rows of ``quarl study sweep``, in a process of its own, by condition."""
    typed = [sys.executable, "-m", "quarl.bench.study", "sweep", *words, "--json"]
    done = subprocess.run(typed, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    rows = json.loads(done.stdout)["rows"]
    return {
        f"{row['scheme']} {row['activations']} {row['bits']}": [row["episodes"], row["return"], row["error"]]
        for row in rows
    }


@pytest.mark.slow
@pytest.mark.skipif(" " in sys.executable, reason="Ray reaches no cluster from a path with a space")
def test_cells_on_two_nodes_are_those_of_this_process(balancing: Callable[..., Bundle], tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    own = str(balancing(tmp_path / "by-hand").path)
    arguments = [own, "--bits", "3", "--seeds", "1,3", "--episodes", "5"]
    here = measured(*arguments, "--jobs", "1")
    assert len(here) == 5
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    nodes = {"num_cpus": 1, "object_store_memory": 1 << 27}
    there = Cluster(initialize_head=True, head_node_args={**nodes, "include_dashboard": False})
    try:
        there.add_node(**nodes)
        assert measured(*arguments, "--address", there.address) == here
    finally:
        there.shutdown()


def test_no_cluster_is_one_message(capfd: pytest.CaptureFixture[str]) -> None:
    from quarl.bench.study import sweep

    words = ["cartpole-dqn", "--bits", "2", "--episodes", "1", "--address", "127.0.0.1:1"]
    assert sweep.main(words) == 1
    assert "no Ray cluster answers at --address 127.0.0.1:1" in capfd.readouterr().err
