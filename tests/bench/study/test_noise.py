"""The study of a noisy rangefinder: what is flown, and that its rows are those of two nodes of a cluster."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import pytest

from bench.study import noise
from bench.study.experiment import EpisodePlan, Results, in_order
from bench.study.running import StudyCell, measured

TYPED = ["--bits", "4", "--noise", "0,1", "--seeds", "0", "--episodes", "20", "--json"]


def grid_of(*words: str) -> list[dict[str, object]]:
    """The printed rows, in a process of its own."""
    typed = [sys.executable, "-m", "bench.study", "noise", "I", *TYPED, *words]
    rows: list[dict[str, object]] = json.loads(
        subprocess.run(typed, capture_output=True, check=True, timeout=300).stdout
    )["rows"]
    return rows


def test_each_noise_has_its_own_reference_on_the_same_episodes() -> None:
    arguments = argparse.Namespace(bits=(4,), noise=(0.0, 1.0))
    grid = noise.grid(arguments, "I")
    assert grid == [{"noise": 0.0}, {"noise": 0.0, "bits": 4}, {"noise": 1.0}, {"noise": 1.0, "bits": 4}]
    found = [
        record
        for condition in grid
        for record in measured("bench.study.noise", StudyCell("I", condition, EpisodePlan((0,), 30)))
    ]
    results = Results(noise.EXPERIMENT, in_order(noise.EXPERIMENT, found))
    float_at = {row["noise"]: row for row in results.plain() if row["bits"] is None}
    assert float_at[0.0]["return"] != float_at[1.0]["return"], "the rays are noisy"
    for row in results.plain():
        expected = row["return"]["value"] - float_at[row["noise"]]["return"]["value"]
        assert row["difference"]["value"] == pytest.approx(expected)
    (table,) = results.tables()
    assert [row[:2] for row in table.rows] == [("I", "float"), ("I", "4 bits")]
    assert set(results.figures()) == {"noise"}


@pytest.mark.slow
@pytest.mark.skipif(" " in sys.executable, reason="Ray reaches no cluster from a path with a space")
def test_two_nodes_measure_the_same_rows() -> None:
    pytest.importorskip("ray", reason="Ray is missing: make actorq")
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    nodes = {"num_cpus": 1, "object_store_memory": 1 << 27}
    there = Cluster(initialize_head=True, head_node_args={**nodes, "include_dashboard": False})
    try:
        there.add_node(**nodes)
        assert grid_of("--address", there.address) == grid_of("--jobs", "1")
    finally:
        there.shutdown()
