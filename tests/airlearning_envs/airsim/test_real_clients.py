"""AirSim's own Python clients against the stand-in: airsim 1.8.1, and cosysairsim 3.5.0 for Cosys-AirSim."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("msgpack", reason="msgpack is not installed: make setup")

from quarl.airlearning_envs.simulators.airsim.dialects import Dialect
from quarl.airlearning_envs.simulators.airsim.stand_in import Server, StandIn

PYTHON = Path(__file__).parents[3] / ".venv-airsim" / "bin" / "python"


@pytest.mark.skipif(not PYTHON.exists(), reason="AirSim's Python clients are not installed: make airsim")
@pytest.mark.parametrize(("package", "dialect"), [("airsim", Dialect.AIRSIM), ("cosysairsim", Dialect.COSYS)])
def test_a_flight_with_the_real_client(package: str, dialect: Dialect) -> None:
    script = Path(__file__).with_name("real_client.py")
    with Server(StandIn(dialect, speed=20.0)) as server:
        command = [str(PYTHON), "-I", str(script), package, str(server.port)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"Server Ver:{dialect.version}" in run.stdout and "upgrade" not in run.stdout
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["first"] == "Ground"
    assert (found["armed without control"], found["control"], found["armed"]) == (False, True, True)
    assert found["takeoff"] is False and found["altitude"] == pytest.approx(-1.84, abs=0.01)
    assert found["paused"] and found["assets"]
    assert found["objects"] == ["wall", "wall1"] and found["scene"] == ["Ground", "SimpleFlight", "wall", "wall1"]
    assert found["moved"] and found["object at"] == 40.0 and found["nowhere"]
    assert found["destroyed"] == [True, False]
    assert found["passed"] == pytest.approx(0.25, abs=1e-6)
    assert found["answers"] == [False, True]
    ahead, aside = found["velocity"][1], found["velocity"][0]
    assert 0.5 < ahead < 3.0 and abs(aside) < 0.01, "yaw is 90 degrees"
    assert found["yaw"] == pytest.approx(math.pi / 2, abs=0.01)
    assert found["image"] == [144, 256, 144 * 256]
    # Straight ahead is the wall's face at y = 8, seen a little obliquely by a tilted camera.
    assert found["ahead"] == pytest.approx(8.0, rel=0.1) and found["top"] == 65504.0
    assert "map::at" in found["camera"] and "Nonsense" in found["asset"]
    assert found["clear"] is False and found["collision"] == [True, "wall", False]
    assert found["after reset"] == [False, True, "Ground"]
