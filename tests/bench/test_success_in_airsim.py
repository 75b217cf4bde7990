"""bench/success.py --simulator airsim: the report names the simulator; what was flown is stored when it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("msgpack", reason="msgpack is not installed: make setup")

from quarl.airlearning_envs.simulators.airsim.stand_in import Server, StandIn
from quarl.bench.report import store
from quarl.bench.success import main


def test_what_was_flown_is_stored_when_the_server_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, results, resets = StandIn(), tmp_path / "results.jsonl", 0
    with Server(world) as server:
        reset = world._reset

        def ending() -> None:
            nonlocal resets
            resets += 1
            if resets == 3:
                server.__exit__(None, None, None)
            reset()

        world._reset = ending  # type: ignore[method-assign]
        world._methods = world._table()
        where = ["--simulator", "airsim", "--address", f"127.0.0.1:{server.port}", "--client", "own"]
        fly = ["--policy", "I", "--precision", "fp32,int8", "--on", "host", "--preset", "shipped", "--episodes", "5"]
        assert main([*fly, "--results", str(results), *where]) == 1
    (report,) = store.read_results(results)
    assert report.success is not None and report.success.episodes == 2
    assert report.success.simulator == "stand-in for AirSim, the project's own client"
    assert "episodes were flown" in capsys.readouterr().err
