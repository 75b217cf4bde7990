"""The ROS 2 example and a robot's node, two processes on the loopback: through Cyclone DDS, in ROS 2's wire names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarl.policy.bundle import Bundle
from quarl.policy.places import PROJECT_ROOT as ROOT
from tests.device_agent.loop.loops import LoopProcess, in_python, until

cyclonedds = pytest.importorskip("cyclonedds", reason="cyclonedds is not installed; type make robots")

# Loopback alone, without multicast, whatever networks this machine has.
LOOPBACK = """<CycloneDDS><Domain><General><Interfaces><NetworkInterface address="127.0.0.1"/></Interfaces>
<AllowMulticast>false</AllowMulticast></General><Discovery><ParticipantIndex>auto</ParticipantIndex>
<Peers><Peer address="127.0.0.1"/></Peers></Discovery></Domain></CycloneDDS>"""
ROBOT = """
import importlib.util, json, sys, time
spec = importlib.util.spec_from_file_location("ros2", "examples/ros2.py")
ros2 = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ros2)
ros2.OBSERVATION, ros2.ACTION = ros2.ACTION, ros2.OBSERVATION  # the other side of both topics
robot = ros2.DdsTopics()
observation, deadline = json.loads(sys.argv[1]), time.monotonic() + 60
robot_sends = [observation, [1.0, 2.0]]  # the second is no observation of the policy
while time.monotonic() < deadline:
    robot.act(robot_sends[0])
    robot.act(robot_sends[1])
    heard = robot.observation()
    if heard is not None and list(heard) != [19.0]:
        print(json.dumps(list(heard)))
        break
    time.sleep(0.02)
"""


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[LoopProcess]:
    """A loop over the committed policy I."""
    from quarl.convert.pipeline import convert_all
    from quarl.policy.bundle import copy_bundle
    from quarl.policy.places import ZOO
    from quarl.policy.spec import ArtifactFormat, Precision

    copy_bundle(Bundle.load(ZOO / "I"), tmp_path / "I", "zoo")
    convert_all([Bundle.load(tmp_path / "I")], [Precision.INT8], [ArtifactFormat.TFLITE])
    made = LoopProcess(in_python(tmp_path / "I"), tmp_path / "I.sock", "--rate=20", "--priority=0")
    made.connect().socket.close()
    until(lambda: not made.status()["controller"], "the end of the first connection")
    yield made
    made.process.kill()
    made.process.wait()


def test_two_processes_meet_on_the_loopback(loop: LoopProcess, tmp_path: Path) -> None:
    bundle = Bundle.load(tmp_path / "I")
    golden = bundle.golden()
    # One whose action is not the fallback's, 19.
    index = next(i for i, action in enumerate(golden.actions) if action != 19)
    domain = str(100 + os.getpid() % 100)
    environment = {**os.environ, "CYCLONEDDS_URI": LOOPBACK, "ROS_DOMAIN_ID": domain, "PYTHONPATH": str(ROOT)}
    log = (tmp_path / "node.log").open("w")
    node = subprocess.Popen(
        [sys.executable, "examples/ros2.py", str(loop.socket), "90"], cwd=ROOT, env=environment, stderr=log
    )
    try:
        until(lambda: loop.status()["controller"] or node.poll() is not None, "the node at the loop's socket")
        values = str(golden.observations[index].tolist())
        robot = subprocess.run(
            [sys.executable, "-c", ROBOT, values], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90
        )
        assert robot.stdout == f"[{float(golden.actions[index])}]\n", robot.stderr
    finally:
        node.terminate()
        node.wait()
        log.close()
    assert "an observation of 2 values is ignored" in (tmp_path / "node.log").read_text()


def test_without_a_loop_it_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "CYCLONEDDS_URI": LOOPBACK, "ROS_DOMAIN_ID": "99", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "examples/ros2.py", str(tmp_path / "none.sock")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Is the policy being served?" in done.stderr
