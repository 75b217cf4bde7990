"""The virtual Pi: it boots, is deployed to like any host, runs out of memory, loses its power and its clock, and serves
a policy in a loop that survives a reboot, under systemd and without; systemd's limits hold.

The tests share one machine and its card, one after the other: each deployment to it takes half a minute or longer.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl import cli
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import connect
from quarl.device.deploy.deploy import deploy
from quarl.device.deploy.errors import AgentError, HostError, UnknownHostKeyError
from quarl.device.deploy.hostkeys.known_hosts import KnownHosts
from quarl.device.deploy.probe import probe
from quarl.device.deploy.releases import list_releases
from quarl.device.deploy.switching import switch_on
from quarl.device.deploy.target import Target
from quarl.device.virtual_pi import running
from quarl.device.virtual_pi.machine import MachineSettings
from quarl.device.virtual_pi.recipe import Init
from quarl.policy.bundle import Bundle
from quarl.policy.spec import Precision, RuntimeName
from tests.device_deploy.devices import eventually
from tests.virtual_pi.conftest import NEW, VirtualPi, serving, state

RUNTIME = RuntimeName.LITERT
NATIVE = (RuntimeName.NATIVE,)
YEAR_S = 365 * 86400
PATIENCE_S = 120.0
# An emulator's times say nothing of a Pi's: no deadline is on trial here, and a slow rate gives the watchdog patience.
USUAL = ("--rate", "1", "--enable", "--trial", "1", "--most-missed", "1e6")


@pytest.fixture(scope="module")
def release(pi: VirtualPi, bundle: Bundle) -> str:
    """What serves on the machine: policy I in two precisions, in LiteRT."""
    pi.up()
    with pi.connect() as connection:
        return deploy(connection, bundle, NEW, (RUNTIME,)).release


def test_actions_on_the_a53_equal_those_on_the_host(pi: VirtualPi, release: str, bundle: Bundle) -> None:
    """All golden vectors, fp32 within the artifact's float tolerance, int8 within one step before the argmax."""
    golden = bundle.golden()
    with pi.connect() as connection:
        for precision in NEW:
            entry = bundle.artifact(precision, RUNTIME.artifact_format)
            with AgentSession(connection, "I") as agent:
                found = agent.request("load", precision=precision.value, runtime=RUNTIME.value)["golden"]
                acted = agent.request("act", observations=golden.observations.tolist())
            assert found["vectors"] == len(golden.observations)
            assert found["max_error"] <= found["tolerance"] in bundle.read_expected(entry).tolerance.astype(np.float32)
            expected = bundle.read_expected(entry).outputs
            same = np.asarray(acted["actions"]) == np.asarray(expected).argmax(axis=1)
            # Where one step decides between two actions either may come out; with these vectors it nowhere does.
            assert same.mean() >= 0.99, f"{precision.value} in {RUNTIME.value}: vectors {np.flatnonzero(~same)} differ"


def test_it_is_a_pi_3b_as_far_as_programs_can_tell(pi: VirtualPi, release: str) -> None:
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
def test_an_agent_killed_for_memory_is_reported_and_leaves_the_release(pi: VirtualPi, release: str) -> None:
    """The kernel ends the agent while it loads: its control group may take half a megabyte more, loading needs two.

    Within a group the kernel has no choice of victim; filling the whole machine, it ended SSH's sessions now and then.
    """
    with pi.connect() as connection, pi.connect("root") as root:
        with AgentSession(connection, "I") as agent:
            agent.request("hello")
            root.run(
                "set -e; echo 3 >/proc/sys/vm/drop_caches; mount -t cgroup2 cgroup /sys/fs/cgroup; cd /sys/fs/cgroup; "
                "echo +memory >cgroup.subtree_control; mkdir agent; "
                "echo 512K >agent/memory.max; echo 0 >agent/memory.swap.max; "
                f"echo {agent.pid} >agent/cgroup.procs"
            )
            with pytest.raises(AgentError) as caught:
                agent.request("load", precision="int8", timeout=180)
        assert "was killed by a signal" in caught.value.message
        assert "memory ran out" in caught.value.next_step
        assert f"out of memory: Killed process {agent.pid} (python3)" in root.run("dmesg").stdout
        root.run("rmdir /sys/fs/cgroup/agent; umount /sys/fs/cgroup")
        assert state(connection)[0] == release
        assert serving(connection)["ok"]


@pytest.mark.slow
def test_starting_again_is_the_same_machine(pi: VirtualPi) -> None:
    machine = pi.up()
    begun = pi.start()
    assert begun.already
    assert begun.machine == machine
    with pytest.raises(HostError, match="runs already"):
        pi.start(MachineSettings(memory_mb=512))


def test_nobody_trusts_it_who_did_not_start_it(pi: VirtualPi, tmp_path: Path) -> None:
    pi.up()
    with (
        pytest.raises(UnknownHostKeyError),
        connect(Target.parse(f"pi@{pi.name}"), known_hosts=KnownHosts(tmp_path / "empty")),
    ):
        pass


@pytest.mark.slow
@pytest.mark.not_in_ci
def test_a_reported_switch_survives_a_power_cut_and_a_wrong_clock(
    pi: VirtualPi, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a Pi whose battery-less clock has not met the network yet when power comes back."""

    def switch_and_cut(*arguments: Any) -> Any:
        switched = switch_on(*arguments)
        pi.cut_power()
        return switched

    pi.up()
    with pi.connect() as connection:
        old = deploy(connection, bundle, [Precision.INT8], NATIVE, without_python=True).release
    # What comes after the switch (pruning) may fail or be left for the next time; the switch was made.
    with monkeypatch.context() as patch, pi.connect() as connection, contextlib.suppress(HostError):
        patch.setattr("quarl.device.deploy.deploy.switch_on", switch_and_cut)
        deploy(connection, bundle, [Precision.FP32], NATIVE, without_python=True)
    assert running.find(pi.name) is None
    now = int(time.time())
    begun = pi.start(MachineSettings(clock_unix=now - YEAR_S))
    assert begun.machine.settings.clock_unix is not None
    with pi.connect() as connection:
        theirs = int(connection.run("date +%s").stdout)
        assert abs(theirs - now + YEAR_S) < 3600
        switched = state(connection)[0]
        assert switched is not None and switched != old
        assert serving(connection, Precision.FP32)["ok"]
        for release in state(connection)[1]:
            if release != switched:  # so that the next deployment has to upload
                connection.run(f"rm -r quarl/policies/I/releases/{release}")
        result = deploy(connection, bundle, [Precision.INT8], NATIVE, without_python=True)
        assert result.previous == switched
        assert serving(connection)["ok"]
        # Releases are numbered, and dated by the host: the order holds whatever the device believes.
        found = list_releases(connection).policies["I"]
        assert [release.name for release in found.releases] == [switched, result.release]
        assert found.releases[-1].created.startswith(time.strftime("%Y"))


def verb(pi: VirtualPi, capsys: pytest.CaptureFixture[str], name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """One verb on the machine: exit status and reply."""
    capsys.readouterr()
    status = cli.main([name, "--target", f"pi@{pi.name}", "--policy", "I", "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


def is_active(pi: VirtualPi, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the loop is active, and answers."""
    status, reply = verb(pi, capsys, "serving")
    return status == 0 and reply["state"] == "active" and reply["loop"] is not None


def boot_id(pi: VirtualPi) -> str:
    with pi.connect() as connection:
        return str(connection.run("cat /proc/sys/kernel/random/boot_id").stdout)


def reached(pi: VirtualPi) -> bool:
    try:
        with pi.connect():
            return True
    except HostError:
        return False


@pytest.mark.slow
@pytest.mark.not_in_ci
def test_without_systemd_a_supervisor_does_it_and_cron_starts_it(
    pi: VirtualPi, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    pi.up()
    with pi.connect() as connection:
        release = deploy(connection, bundle, [Precision.INT8], NATIVE, without_python=True).release
        status, served = verb(pi, capsys, "serve", *USUAL)
        assert (status, served.get("manager"), served.get("state")) == (0, "supervisor", "active"), served
        assert connection.run("crontab -l").stdout.count("@reboot") == 1
        assert connection.run("pgrep -f 'policy-agent [s]upervise'").stdout
    running.reboot(pi.name)
    assert eventually(lambda: reached(pi) and is_active(pi, capsys), PATIENCE_S)
    assert verb(pi, capsys, "serving")[1]["loop"]["release"] == release
    assert verb(pi, capsys, "unserve")[0] == 0
    with pi.connect() as connection:
        assert connection.run("crontab -l", check=False).stdout == ""
        assert connection.run("pgrep -f 'policy-agent [s]upervise' || true").stdout == ""


@pytest.mark.slow
def test_stopping_leaves_no_process(pi: VirtualPi) -> None:
    machine = pi.up()
    pi.stop()
    assert not machine.alive
    assert running.find(pi.name) is None
    with pytest.raises(HostError), pi.connect():
        pass
    assert running.stop(pi.name) is False


@pytest.mark.slow
def test_under_systemd_it_is_served_after_a_reboot_and_within_limits(
    pi: VirtualPi, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    pi.start(MachineSettings(init=Init.SYSTEMD))
    assert pi.root("readlink /proc/1/exe").strip().endswith("/lib/systemd/systemd")
    with pi.connect() as connection:
        release = deploy(connection, bundle, [Precision.INT8], NATIVE, without_python=True).release
    status, served = verb(pi, capsys, "serve", *USUAL)
    assert (status, served["manager"], served["release"], served["state"]) == (0, "systemd", release, "active")

    # What the refusal prints, typed as root, gives the loop its priority and its memory, from the next boot on too.
    assert not any(each["granted"] for each in served["loop"]["granted"])
    grants = served["loop"]["what_grants_it"]
    assert "/etc/security/limits.d/quarl.conf" in grants.splitlines()[0]
    lines = "".join(f"{line}\\n" for line in grants.splitlines()[1:])
    pi.root(f"printf '{lines}' > /etc/security/limits.d/quarl.conf")

    before = boot_id(pi)
    running.reboot(pi.name)
    assert boot_id(pi) != before
    assert eventually(lambda: is_active(pi, capsys), PATIENCE_S)
    assert all(each["granted"] for each in verb(pi, capsys, "serving")[1]["loop"]["granted"])

    hanging = verb(pi, capsys, "serving")[1]
    pi.root(f"kill -STOP {hanging['pid']}")  # no heartbeat: the watchdog's

    def started_again() -> bool:
        state = verb(pi, capsys, "serving")[1]
        return state["restarts"] > hanging["restarts"] and state["state"] == "active" and state["loop"] is not None

    assert eventually(started_again, PATIENCE_S)

    status, refused = verb(pi, capsys, "serve", *USUAL, "--memory-max", "1")
    assert status == 1 and "did not start" in refused["error"]["message"]
    assert "oom-kill" in pi.root("journalctl -b --no-pager _UID=1000 + _PID=1 | grep -m1 oom-kill")
    assert eventually(lambda: is_active(pi, capsys), PATIENCE_S)  # as it was served before
    assert verb(pi, capsys, "unserve") == (0, {"ok": True, "was_served": True})
    running.stop(pi.name)
