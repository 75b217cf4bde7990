"""The virtual Pi itself: it boots, is deployed to like any host, flies, is measured, and ends.

The tests share one machine and its card; those that need it begin by making sure that policy I in int8 serves.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.cli import plain
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import connect
from quarl.device.deploy.deploy import deploy
from quarl.device.deploy.errors import HostError, UnknownHostKeyError
from quarl.device.deploy.hostkeys.known_hosts import KnownHosts
from quarl.device.deploy.probe import probe
from quarl.device.deploy.target import Target
from quarl.device.virtual_pi import running
from quarl.device.virtual_pi.machine import MachineSettings
from quarl.policy.bundle import Bundle
from quarl.policy.places import PROJECT_ROOT
from quarl.policy.spec import RuntimeName
from tests.virtual_pi.conftest import NEW


def test_actions_on_the_a53_equal_those_on_the_host(up: Any, bundle: Bundle) -> None:
    """All golden vectors, fp32 within the artifact's float tolerance, int8 within one step before the argmax."""
    golden, runtime = bundle.golden(), RuntimeName.LITERT
    with up.connect() as connection:
        deploy(connection, bundle, NEW, (runtime,))
        for precision in NEW:
            entry = bundle.artifact(precision, runtime.artifact_format)
            with AgentSession(connection, "I") as agent:
                found = agent.request("load", precision=precision.value, runtime=runtime.value)["golden"]
                acted = agent.request("act", observations=golden.observations.tolist())
            assert found["vectors"] == len(golden.observations)
            assert found["max_error"] <= found["tolerance"] in bundle.read_expected(entry).tolerance.astype(np.float32)
            expected = bundle.read_expected(entry).outputs
            same = np.asarray(acted["actions"]) == np.asarray(expected).argmax(axis=1)
            # Where one step decides between two actions either may come out; with these vectors it nowhere does.
            assert same.mean() >= 0.99, f"{precision.value} in {runtime.value}: vectors {np.flatnonzero(~same)} differ"


def test_it_is_a_pi_3b_as_far_as_programs_can_tell(pi: Any, old: str) -> None:
    with pi.connect() as connection:
        facts = probe(connection)
        assert (facts.machine, facts.python.series, facts.glibc) == ("aarch64", "3.11", (2, 36))
        assert 0.9e9 < facts.memory_total_bytes < 1.1e9
        cpuinfo = connection.run("cat /proc/cpuinfo").stdout
        assert cpuinfo.count("CPU part\t: 0xd03") == 4  # Cortex-A53
        features = next(line for line in cpuinfo.splitlines() if line.startswith("Features")).split()
        assert "asimd" in features
        for armv8_2 in ("asimddp", "asimdhp", "fphp", "atomics"):  # dot product, half arithmetic, LSE
            assert armv8_2 not in features
        assert "partition" in connection.run("cat /proc/swaps").stdout
        with AgentSession(connection, "I") as agent:
            device = agent.request("hello")["device"]
    assert device["emulated"] is True
    assert (device["cpu_model"], device["cores"], device["machine"]) == ("Cortex-A53", 4, "aarch64")


@pytest.mark.slow
def test_starting_again_is_the_same_machine(up: Any) -> None:
    machine = running.find(up.name)
    begun = up.start()
    assert begun.already
    assert begun.machine == machine
    with pytest.raises(HostError, match="runs already"):
        up.start(MachineSettings(memory_mb=512))


def test_nobody_trusts_it_who_did_not_start_it(up: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(UnknownHostKeyError),
        connect(Target.parse(f"pi@{up.name}"), known_hosts=KnownHosts(tmp_path / "empty")),
    ):
        pass


@pytest.mark.slow
def test_it_flies_alike_on_the_device_and_in_the_loop(pi: Any, old: str, tmp_path: Path) -> None:
    flown = {}
    for where in ("device", "loop"):
        script = [sys.executable, str(PROJECT_ROOT / "bench" / "success.py"), "--policy", "I", "--precision", "int8"]
        words = ["--episodes", "6", "--target", f"pi@{pi.name}", "--on", where]
        command = [*script, *words, "--json", "--results", str(tmp_path / "results.jsonl")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        reports = json.loads(done.stdout)["reports"]
        flown[where] = next(report for report in reports if report["policy"] == "I")
    assert flown["device"]["success"]["episodes"] == 6
    for key in ("successes", "causes"):
        assert flown["device"]["success"][key] == flown["loop"]["success"][key]
    assert flown["device"]["device"]["emulated"] is True


@pytest.mark.slow
def test_stopping_leaves_no_process(up: Any) -> None:
    machine = running.find(up.name)
    assert machine is not None
    up.stop()
    assert not machine.alive
    assert running.find(up.name) is None
    with pytest.raises(HostError), up.connect():
        pass
    assert running.stop(up.name) is False


@pytest.mark.slow
def test_fields_of_a_start_are_complete(up: Any) -> None:
    begun = up.start()
    assert set(json.loads(json.dumps(begun, default=plain))) == {field.name for field in dataclasses.fields(begun)}
