"""The virtual Pi itself: it boots, is deployed to like any host, flies, is measured, and dies at bad moments.

The tests share one machine and its card; each begins by making sure that policy I in int8 serves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.pipeline import convert_all
from device.host.agent_session import AgentSession
from device.host.connection import Connection, connect
from device.host.deploy import DeployResult, deploy
from device.host.errors import AgentError, ConnectionLostError, DeviceFullError, HostError, UnknownHostKeyError
from device.host.golden import Step
from device.host.helper_session import HelperSession
from device.host.hostkeys import KnownHosts
from device.host.probe import probe
from device.host.releases import list_releases
from device.host.target import Target
from device.virtual_pi import running
from device.virtual_pi.machine import MachineSettings
from device.virtual_pi.recipe import MachineKind
from policy.bundle import Bundle, copy_bundle
from policy.locate import PROJECT_ROOT, ZOO
from policy.spec import ArtifactFormat, Precision, RuntimeName

pytestmark = pytest.mark.integration

OLD = (Precision.INT8,)
NEW = (Precision.INT8, Precision.FP32)
YEAR_S = 365 * 86400


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The repository's policy I with its artifacts."""
    path = tmp_path_factory.mktemp("bundles") / "I"
    copy_bundle(Bundle.load(ZOO / "I"), path, "zoo")
    convert_all([Bundle.load(path)], list(NEW), list(ArtifactFormat))
    return Bundle.load(path)


@pytest.fixture
def old(pi: Any, bundle: Bundle) -> str:
    """The machine is up and serves the old release; returns its name."""
    pi.up()
    with pi.connect() as connection:
        return deploy(connection, bundle, OLD).release


def serving(connection: Connection, precision: Precision = Precision.INT8) -> dict[str, Any]:
    """What the current release's agent says after it verified every golden vector."""
    with AgentSession(connection, "I") as agent:
        return agent.request("load", precision=precision.value)


def state(connection: Connection) -> tuple[str | None, list[str], str]:
    """(current release, all releases, what lies in incoming/ and unfinished links)."""
    found = list_releases(connection).policies["I"]
    rest = connection.run("cd quarl/policies/I; ls incoming 2>/dev/null; ls -d current.* 2>/dev/null; true").stdout
    return found.current, [release.name for release in found.releases], rest.strip()


def recover(pi: Any, bundle: Bundle, precisions: tuple[Precision, ...] = NEW) -> DeployResult:
    """What a user does after a fault: the same command again. Nothing half-done is left, and it serves."""
    with pi.connect() as connection:
        result = deploy(connection, bundle, precisions)
        current, _, rest = state(connection)
        assert current == result.release
        assert rest == ""
        assert connection.run("ls quarl/envs | grep part || true").stdout == ""
        for precision in precisions:
            assert serving(connection, precision)["ok"]
    return result


def test_power_cut_while_the_runtime_is_unpacked_on_a_new_card(pi: Any, bundle: Bundle) -> None:
    """The first deployment of all is the longest; the guest is killed in the middle of it."""
    pi.stop()
    begun = pi.start(fresh=True)
    assert begun.new_card
    seen: list[str] = []

    def cut(step: Step) -> None:
        seen.append(step.name)
        if step.name.startswith("unpack ai-edge-litert") and step.done:
            pi.cut_power()

    with pi.connect() as connection, pytest.raises(ConnectionLostError) as caught:
        deploy(connection, bundle, OLD, progress=cut)
    assert "was lost" in caught.value.message
    assert "No release was serving before" in caught.value.message
    assert any(name.startswith("send numpy") for name in seen)

    again = pi.start()
    assert not again.new_card  # the same card, as it was when power went
    with pi.connect() as connection:
        assert list_releases(connection).policies.get("I") is None or state(connection)[0] is None
    result = recover(pi, bundle, OLD)
    assert any("litert" in wheel for wheel in result.wheels_sent)


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


def test_starting_again_is_the_same_machine(pi: Any, old: str) -> None:
    machine = running.find(pi.name)
    begun = pi.start()
    assert begun.already
    assert begun.machine == machine
    with pytest.raises(HostError, match="runs already"):
        pi.start(MachineSettings(memory_mb=512))


def test_nobody_trusts_it_who_did_not_start_it(pi: Any, old: str, tmp_path: Path) -> None:
    with (
        pytest.raises(UnknownHostKeyError),
        connect(Target.parse(f"pi@{pi.name}"), known_hosts=KnownHosts(tmp_path / "empty")),
    ):
        pass


@pytest.mark.parametrize("runtime", [RuntimeName.LITERT, RuntimeName.TFLITE_RUNTIME, RuntimeName.ONNXRUNTIME])
def test_actions_on_the_a53_equal_those_on_the_host(pi: Any, old: str, bundle: Bundle, runtime: RuntimeName) -> None:
    """All golden vectors, fp32 within the artifact's float tolerance, int8 within one step before the argmax."""
    golden = bundle.golden()
    with pi.connect() as connection:
        deploy(connection, bundle, NEW, (runtime,))
        for precision in NEW:
            entry = bundle.artifact(precision, runtime.artifact_format)
            with AgentSession(connection, "I") as agent:
                found = agent.request("load", precision=precision.value, runtime=runtime.value)["golden"]
                acted = agent.request("act", observations=golden.observations.tolist())
            assert found["vectors"] == len(golden.observations)
            assert found["max_error"] <= found["tolerance"] == entry.tolerance
            expected = bundle.expected_outputs(entry)
            same = np.asarray(acted["actions"]) == np.asarray(expected).argmax(axis=1)
            # Where one step decides between two actions either may come out; with these vectors it nowhere does.
            assert same.mean() >= 0.99, f"{precision.value} in {runtime.value}: vectors {np.flatnonzero(~same)} differ"


def bench(script: str, *arguments: str, results: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROJECT_ROOT / "bench" / script), *arguments, "--json", "--results", str(results)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_flies_alike_on_the_device_and_in_the_loop(pi: Any, old: str, tmp_path: Path) -> None:
    results = tmp_path / "results.sqlite"
    common = ("--policy", "I", "--precision", "int8", "--episodes", "24", "--target", f"pi@{pi.name}")
    flown = {
        where: next(
            report
            for report in bench("success.py", *common, "--on", where, results=results)["reports"]
            if report["policy"] == "I"
        )
        for where in ("device", "loop")
    }
    assert flown["device"]["success"]["episodes"] == 24
    for key in ("successes", "causes"):
        assert flown["device"]["success"][key] == flown["loop"]["success"][key]
    assert flown["device"]["device"]["emulated"] is True


def test_measurements_say_that_they_were_emulated(pi: Any, old: str, tmp_path: Path) -> None:
    results = tmp_path / "results.sqlite"
    common = ("--policy", "I", "--target", f"pi@{pi.name}")
    reports = bench("latency.py", *common, "--runs", "100", "--warmup", "10", results=results)["reports"]
    assert {report["precision"] for report in reports if report["kind"] == "latency"} == {"fp32", "int8"}
    assert all(report["device"]["emulated"] for report in reports)
    memory = bench("memory.py", *common, "--precision", "int8", results=results)["reports"][0]["memory"]
    assert 10e6 < memory["before_load"] <= memory["after_load"] < 200e6


def test_power_cut_while_files_are_sent(pi: Any, old: str, bundle: Bundle) -> None:
    def cut(step: Step) -> None:
        if step.name == "send I" and step.done:
            pi.cut_power()

    with pi.connect() as connection:
        other_than(old, connection, bundle)
        with pytest.raises(ConnectionLostError) as caught:
            deploy(connection, bundle, NEW, progress=cut)
    assert f"Release {old} still serves" in caught.value.message
    pi.start()
    with pi.connect() as connection:
        assert state(connection)[0] == old
        assert serving(connection)["ok"]
    recover(pi, bundle)


_CALL = HelperSession.call


def at_switch_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave switches alone again."""
    monkeypatch.setattr(HelperSession, "call", _CALL)


def at_switch(monkeypatch: pytest.MonkeyPatch, before: Callable[[], object], after: Callable[[], object]) -> None:
    """Do something right before the device is told to switch, and right after it said that it has."""

    def wrapped(self: HelperSession, op: str, **fields: Any) -> dict[str, Any]:
        if op == "switch":
            before()
        reply = _CALL(self, op, **fields)
        if op == "switch":
            after()
        return reply

    monkeypatch.setattr(HelperSession, "call", wrapped)


def nothing() -> None:
    """Do nothing."""


def other_than(old: str, connection: Connection, bundle: Bundle) -> None:
    """Remove every release but the old one, so that the next deployment has to upload."""
    others = [release for release in state(connection)[1] if release != old]
    for release in others:
        connection.run(f"rm -r quarl/policies/I/releases/{release}")


def test_power_cut_between_upload_and_switch(
    pi: Any, old: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_switch(monkeypatch, pi.cut_power, nothing)
    with pi.connect() as connection, pytest.raises(ConnectionLostError) as caught:
        other_than(old, connection, bundle)
        deploy(connection, bundle, NEW)
    assert f"Release {old} still serves" in caught.value.message
    pi.start()
    with pi.connect() as connection:
        current, releases, _ = state(connection)
        assert current == old
        assert len(releases) == 2  # uploaded and complete, never switched on
        assert serving(connection)["ok"]
    at_switch_off(monkeypatch)
    assert recover(pi, bundle).sent_bytes == 0  # what was complete is checked again and used


@pytest.mark.parametrize("milliseconds", [0, 15])
def test_power_cut_during_the_switch(
    pi: Any, old: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, milliseconds: int
) -> None:
    """Whenever it happens: afterwards one whole release serves, the old or the new."""
    timers: list[threading.Timer] = []

    def soon() -> None:
        timers.append(threading.Timer(milliseconds / 1000, pi.cut_power))
        timers[-1].start()

    at_switch(monkeypatch, soon, lambda: timers[-1].join())
    # A switch that was quicker than the cut is reported as made, and what comes after it may be left for the next time.
    with pi.connect() as connection, contextlib.suppress(HostError):
        deploy(connection, bundle, NEW)
    timers[-1].join()
    assert running.find(pi.name) is None
    at_switch_off(monkeypatch)
    pi.start()
    with pi.connect() as connection:
        current, releases, _ = state(connection)
        assert current in releases
        assert serving(connection)["ok"]
    recover(pi, bundle)


def test_a_switch_that_was_reported_survives_a_power_cut(
    pi: Any, old: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_switch(monkeypatch, nothing, pi.cut_power)
    # What comes after the switch (pruning) may fail or be left for the next time; the switch was made.
    with pi.connect() as connection, contextlib.suppress(HostError):
        deploy(connection, bundle, NEW)
    assert running.find(pi.name) is None
    at_switch_off(monkeypatch)
    pi.start()
    with pi.connect() as connection:
        assert state(connection)[0] != old
        assert serving(connection, Precision.FP32)["ok"]


def fill(connection: Connection, leave_bytes: int) -> None:
    """Let somebody's film fill the card but for so many bytes; 0: to the last block."""
    spare = max(leave_bytes, 2_000_000)  # the film's own index takes blocks too
    command = f"free=$(df --output=avail -B1 . | tail -n 1); fallocate -l $((free - {spare})) film.mkv"
    connection.run(command if leave_bytes else f"{command}; cat /dev/zero >>film.mkv 2>/dev/null || true", timeout=120)


@pytest.fixture
def clear_card(pi: Any) -> Iterator[None]:
    yield
    with pi.connect() as connection:
        connection.run("rm -f film.mkv")


def test_a_full_card_is_found_before_anything_is_sent(pi: Any, old: str, bundle: Bundle, clear_card: None) -> None:
    with pi.connect() as connection:
        other_than(old, connection, bundle)
        fill(connection, 3_000_000)
        with pytest.raises(DeviceFullError) as caught:
            deploy(connection, bundle, NEW)
        assert "full" in caught.value.message
        assert f"Release {old} still serves" in caught.value.message
        assert "df -h" in caught.value.next_step
        assert state(connection) == (old, [old], "")
        assert serving(connection)["ok"]
        connection.run("rm film.mkv")
    recover(pi, bundle)


def test_a_card_that_becomes_full_while_sending(pi: Any, old: str, bundle: Bundle, clear_card: None) -> None:
    with pi.connect() as connection, pi.connect() as beside:
        other_than(old, connection, bundle)

        def film(step: Step) -> None:
            if step.name == "send I" and step.done and not beside.run("ls").stdout.count("film"):
                fill(beside, 0)

        with pytest.raises(DeviceFullError) as caught:
            deploy(connection, bundle, (*NEW,), (RuntimeName.LITERT, RuntimeName.ONNXRUNTIME), progress=film)
        assert f"Release {old} still serves" in caught.value.message
        assert state(connection) == (old, [old], "")
        assert serving(connection)["ok"]
        connection.run("rm film.mkv")
    recover(pi, bundle)


def test_an_agent_killed_for_memory_is_reported_and_leaves_the_release(pi: Any, old: str, bundle: Bundle) -> None:
    """The kernel ends the agent while it loads: its control group may take half a megabyte more, loading needs two.

    Within a group the kernel has no choice of victim; filling the whole machine, it ended SSH's sessions now and then.
    """
    with pi.connect() as connection, pi.connect("root") as root:
        with AgentSession(connection, "I") as agent:
            agent.request("hello")
            root.run(
                "set -e; mount -t cgroup2 cgroup /sys/fs/cgroup; cd /sys/fs/cgroup; "
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
        assert state(connection)[0] == old
        assert serving(connection)["ok"]


def test_a_clock_that_is_a_year_off(pi: Any, old: str, bundle: Bundle, years: int = -1) -> None:
    """As on a Pi whose battery-less clock has not met the network yet."""
    pi.stop()
    now = int(subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True).stdout)
    begun = pi.start(MachineSettings(clock_unix=now + years * YEAR_S))
    try:
        with pi.connect() as connection:
            theirs = int(connection.run("date +%s").stdout)
            assert abs(theirs - now - years * YEAR_S) < 3600
            other_than(old, connection, bundle)
            result = deploy(connection, bundle, NEW)
            assert result.previous == old
            assert serving(connection, Precision.FP32)["ok"]
            # Releases are numbered, and dated by the host: the order holds whatever the device believes.
            found = list_releases(connection).policies["I"]
            assert [release.name for release in found.releases] == [old, result.release]
            year = subprocess.run(["date", "+%Y"], capture_output=True, text=True, check=True).stdout.strip()
            assert found.releases[-1].created.startswith(year)
    finally:
        pi.stop()
    assert begun.machine.settings.clock_unix is not None


def test_two_machines_at_once_and_one_of_them_killed(pi: Any, old: str) -> None:
    """QEMU's own Raspberry Pi 3B beside the first one; its death touches neither the other nor the image."""
    settings = MachineSettings(MachineKind.RASPI3B)
    begun = running.start("raspi-under-test", settings)
    try:
        first = running.find(pi.name)
        assert first is not None
        assert begun.machine.port != first.port
        with connect(Target.parse("pi@raspi-under-test")) as connection:
            facts = probe(connection)
            assert facts.model == "Raspberry Pi 3 Model B"
            assert facts.machine == "aarch64"
            # What the agent knows an emulator by, here too.
            assert "125.00" in connection.run("grep -m 1 BogoMIPS /proc/cpuinfo").stdout
        running.cut_power("raspi-under-test")
        assert not begun.machine.alive
        with pi.connect() as connection:
            assert serving(connection)["ok"]
        again = running.start("raspi-under-test", settings)
        assert not again.new_card
        assert running.stop("raspi-under-test")  # in good order: the watchdog's driver powers it off
        assert not again.machine.alive
    finally:
        running.cut_power("raspi-under-test")


def test_stopping_leaves_no_process(pi: Any, old: str) -> None:
    machine = running.find(pi.name)
    assert machine is not None
    pi.stop()
    assert not machine.alive
    assert running.find(pi.name) is None
    with pytest.raises(HostError), pi.connect():
        pass
    assert running.stop(pi.name) is False


def test_fields_of_a_start_are_complete(pi: Any, old: str) -> None:
    begun = pi.start()
    assert set(running.to_json(begun)) == {field.name for field in dataclasses.fields(begun)}
