"""Deployment and its faults, on both servers, with a small stand-in agent. In each fault the old release goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from device.host.agent_session import AgentSession
from device.host.connection import Connection
from device.host.deploy import DeployResult, Step, install
from device.host.errors import (
    CheckFailedError,
    ConnectionLostError,
    DeviceLockedError,
    HostError,
    ReleaseError,
    RemoteCommandError,
    VerificationError,
)
from device.host.helper_session import helper
from device.host.probe import probe
from device.host.releases import list_releases, rollback
from device.host.testing import Line, TestDevice, openssh_server, stand_in_payload, stand_in_wheel
from device.host.wheels import WheelSet

ME = {"user": "ann", "host": "laptop", "pid": 42, "policy": "X"}


def serving(connection: Connection, name: str) -> str:
    """The text of the release whose agent answers."""
    with AgentSession(connection, name) as agent:
        return str(agent.request("hello")["text"])


def folder(device: TestDevice, name: str) -> Path:
    return device.home / "quarl" / "policies" / name


def releases(device: TestDevice, name: str) -> list[str]:
    return sorted(path.name for path in (folder(device, name) / "releases").iterdir())


def leftovers(device: TestDevice, name: str) -> list[str]:
    """What an unfinished deployment would leave."""
    inside = [str(path) for path in (folder(device, name) / "incoming").glob("*")]
    return inside + [str(path) for path in folder(device, name).glob("current.*")]


def eventually(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not true():
        time.sleep(0.05)
    return true()


@pytest.fixture
def old(connection: Connection, name: str, bare: WheelSet) -> DeployResult:
    """An old release that serves."""
    return install(connection, stand_in_payload(name, "old"), bare)


def assert_old_serves(device: TestDevice, connection: Connection, name: str) -> None:
    assert eventually(lambda: not leftovers(device, name)), leftovers(device, name)
    assert releases(device, name) == [list_releases(connection).policies[name].current]
    assert serving(connection, name) == "old"


def test_first_deployment(device: TestDevice, connection: Connection, name: str, bare: WheelSet) -> None:
    steps: list[Step] = []
    ballast = os.urandom(300_000)
    payload = stand_in_payload(name, ballast=ballast)
    result = install(connection, payload, bare, progress=steps.append)
    assert (result.previous, result.unchanged) == (None, False)
    assert result.release == f"0001-{payload.digest[:8]}"
    # What other tests have deployed before (the starter, for example) is not sent again.
    assert result.sent_files + result.reused_files == 4
    assert len(ballast) < result.sent_bytes <= payload.size
    assert [(check.precision, check.vectors, check.max_error) for check in result.checks] == [("int8", 8, 0.5)]
    sent = [step for step in steps if step.unit == "B"]
    assert [step.done for step in sent] == sorted({step.done for step in sent}), "progress only grows"
    assert sent[-1].done == sent[-1].total == result.sent_bytes
    assert (folder(device, name) / "current").readlink() == Path("releases", result.release)
    assert (folder(device, name) / "current" / "bundle" / "ballast.bin").read_bytes() == ballast
    assert not leftovers(device, name)
    assert serving(connection, name) == "one"


def test_the_same_again_is_recognised(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    again = install(connection, stand_in_payload(name, "old"), bare)
    assert again.unchanged and again.release == old.release and again.sent_bytes == 0
    assert releases(device, name) == [old.release]


def test_a_damaged_release_is_not_taken_for_the_same(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    (folder(device, name) / "current" / "bundle" / "policy.json").write_bytes(b"[]")
    again = install(connection, stand_in_payload(name, "old"), bare)
    assert not again.unchanged and again.release.startswith("0002-")
    assert (folder(device, name) / "current" / "bundle" / "policy.json").read_bytes() == b"{}"


def test_an_update_sends_only_what_is_new(connection: Connection, name: str, bare: WheelSet) -> None:
    ballast = os.urandom(300_000)
    install(connection, stand_in_payload(name, "old", ballast=ballast), bare)
    result = install(connection, stand_in_payload(name, "new", ballast=ballast), bare)
    assert (result.sent_files, result.reused_files) == (1, 3)
    assert result.sent_bytes < 10_000
    assert serving(connection, name) == "new"


def test_three_releases_are_kept(device: TestDevice, connection: Connection, name: str, bare: WheelSet) -> None:
    results = [install(connection, stand_in_payload(name, f"text {number}"), bare) for number in range(5)]
    assert releases(device, name) == [result.release for result in results[2:]]
    assert results[3].removed == (results[0].release,)
    assert [result.release[:4] for result in results] == ["0001", "0002", "0003", "0004", "0005"]


def test_current_is_never_absent(device: TestDevice, connection: Connection, name: str, bare: WheelSet) -> None:
    """Read it as fast as we can while releases come and go: every reading names a release that is there."""
    first = install(connection, stand_in_payload(name, "text 0"), bare).release
    link, ended, seen, wrong = folder(device, name) / "current", threading.Event(), {first}, list[str]()

    def watch() -> None:
        while not ended.is_set():
            try:
                target = link.readlink()
                if not (link.parent / target / "run-agent").is_file():
                    wrong.append(f"{target} is not whole")
                seen.add(target.name)
            except FileNotFoundError:
                wrong.append("absent")

    watcher = threading.Thread(target=watch)
    watcher.start()
    results = [install(connection, stand_in_payload(name, f"text {number}"), bare) for number in (1, 2)]
    results_back = [rollback(connection, name) for _ in range(2)]
    ended.set()
    watcher.join()
    assert not wrong
    assert seen == {first, *(result.release for result in results)}
    assert results_back[-1].release == first


def test_a_wheel_damaged_on_the_way_is_not_unpacked(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, tmp_path: Path
) -> None:
    wheel, cache = stand_in_wheel(tmp_path / "cache", b"content")
    with helper(connection, bare.python.path) as session:
        session.call("begin", policy=name, digest="d" * 64, by=ME)
        incoming = session.call("receive", release="0001-dddddddd", need_bytes=1, folders=[])["incoming"]
        connection.upload((cache / wheel.file).read_bytes()[:-1] + b"#", f"{incoming}/{wheel.file}")
        with pytest.raises(VerificationError, match=wheel.file):
            session.call("unpack", file=wheel.file, sha256=wheel.sha256, folder=wheel.folder)
    assert not (device.home / "quarl" / "envs" / wheel.folder).exists()
    assert not leftovers(device, name)


def test_rollback_and_forward(device: TestDevice, connection: Connection, name: str, bare: WheelSet) -> None:
    first, second, third = (install(connection, stand_in_payload(name, text), bare) for text in ("a", "b", "c"))
    back = rollback(connection, name)
    assert (back.release, back.previous) == (second.release, third.release)
    assert len(back.checks) == 1
    assert serving(connection, name) == "b"
    assert rollback(connection, name).release == first.release
    with pytest.raises(ReleaseError, match=f"no release of {name} before {first.release}"):
        rollback(connection, name)
    assert rollback(connection, name, third.release).release == third.release
    with pytest.raises(ReleaseError, match="there is no release 0099-x"):
        rollback(connection, name, "0099-x")
    # Deploying what a kept release holds switches to it and sends nothing.
    again = install(connection, stand_in_payload(name, "a"), bare)
    assert (again.release, again.sent_bytes, again.unchanged) == (first.release, 0, False)
    assert serving(connection, name) == "a"
    assert releases(device, name) == [first.release, second.release, third.release]


def test_rollback_to_a_damaged_release_is_refused(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    new = install(connection, stand_in_payload(name, "new"), bare)
    (folder(device, name) / "releases" / old.release / "lib" / "agent.py").write_text("")
    with pytest.raises(VerificationError, match=f"lib/agent.py.*Release {new.release} still serves"):
        rollback(connection, name)
    assert serving(connection, name) == "new"


def test_policies_live_side_by_side(connection: Connection, name: str, bare: WheelSet) -> None:
    install(connection, stand_in_payload(f"{name}-I", "one"), bare)
    install(connection, stand_in_payload(f"{name}-II", "two"), bare)
    found = list_releases(connection)
    assert {f"{name}-I", f"{name}-II"} <= set(found.policies)
    assert (serving(connection, f"{name}-I"), serving(connection, f"{name}-II")) == ("one", "two")
    assert found.locked_by is None


def test_a_release_that_fails_its_check_is_not_switched_on(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    with pytest.raises(CheckFailedError, match="vector 3 differs") as caught:
        install(connection, stand_in_payload(name, "new", refuse="load"), bare)
    assert f"Release {old.release} still serves" in caught.value.message
    assert caught.value.next_step == "Convert again."
    assert_old_serves(device, connection, name)


def test_an_agent_that_does_not_start_is_not_switched_on(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    payload = stand_in_payload(name, "new", python="/no/such/python")
    with pytest.raises(CheckFailedError, match=r"ended with status 12[67].*no/such/python|/no/such/python"):
        install(connection, payload, bare)
    assert_old_serves(device, connection, name)


def test_a_first_release_that_fails_leaves_nothing(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    with pytest.raises(CheckFailedError, match="No release was serving before"):
        install(connection, stand_in_payload(name, refuse="hello"), bare)
    assert not releases(device, name) and not leftovers(device, name)
    assert not (folder(device, name) / "current").is_symlink()


def test_a_file_damaged_on_the_way_is_found_by_its_hash(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    def flip_a_byte(step: Step) -> None:
        if step.unit == "B" and step.done == step.total:  # the file before the last is closed and not verified yet
            (file,) = folder(device, name).glob("incoming/*/lib/agent.py")
            file.write_bytes(file.read_bytes()[:-1] + b"#")

    with pytest.raises(VerificationError, match=r"lib/agent.py.*still serves"):
        install(connection, stand_in_payload(name, "new", ballast=os.urandom(500_000)), bare, progress=flip_a_byte)
    assert_old_serves(device, connection, name)


def test_a_connection_cut_in_mid_upload(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    ballast = os.urandom(3_000_000)
    with Line(device.host, device.port, cut_after=1_000_000) as line, device.connect(line.port) as cut:
        with pytest.raises(ConnectionLostError, match=r"sending .*still serves"):
            install(cut, stand_in_payload(name, "new", ballast=ballast), bare)
        assert 1_000_000 <= line.passed < len(ballast)
    assert_old_serves(device, connection, name)
    assert install(connection, stand_in_payload(name, "new", ballast=ballast), bare).previous == old.release
    assert serving(connection, name) == "new"


def test_a_line_that_freezes_frees_the_device(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    """No FIN, no RST: a sleeping laptop. The device hears no heartbeat, discards and gives the lock back."""
    with (
        Line(device.host, device.port) as line,
        device.connect(line.port) as frozen,
        helper(frozen, bare.python.path, silence_s=1.0) as session,
    ):
        session.call("begin", policy=name, digest="d" * 64, by=ME)
        session.call("receive", release="0002-dddddddd", need_bytes=1, folders=["lib"])
        assert leftovers(device, name)
        assert list_releases(connection).locked_by is not None
        line.freeze()
        assert eventually(lambda: not leftovers(device, name))
        assert eventually(lambda: list_releases(connection).locked_by is None)
        line.cut()
    assert_old_serves(device, connection, name)


def test_the_second_of_two_deployments_is_refused_and_told_who(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    with device.connect() as other, helper(other, bare.python.path) as session:
        session.call("begin", policy="X", digest=None, by=ME)
        with pytest.raises(DeviceLockedError, match=r"by ann@laptop \(pid 42\), policy X, since 2") as caught:
            install(connection, stand_in_payload(name, "new"), bare)
        assert "--wait" in caught.value.next_step
        with pytest.raises(DeviceLockedError):
            rollback(connection, name)
        assert dict(list_releases(connection).locked_by or {})["user"] == "ann"
    assert_old_serves(device, connection, name)


def test_waiting_for_the_other_deployment(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    with device.connect() as other, contextlib.ExitStack() as stack:
        session = stack.enter_context(helper(other, bare.python.path))
        session.call("begin", policy="X", digest=None, by=ME)
        # Its holder is ended while we wait.
        holder = dict(list_releases(connection).locked_by or {})["device_pid"]
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.7; kill -KILL {holder}"])
        result = install(connection, stand_in_payload(name, "new"), bare, wait_s=20)
        assert result.previous == old.release
        killer.wait()
    assert serving(connection, name) == "new"


def test_a_holder_that_was_killed_leaves_no_lock(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    """kill -9 on the device's side in the middle: the kernel frees the lock, the next deployment sweeps."""
    with device.connect() as other, helper(other, bare.python.path) as session:
        session.call("begin", policy=name, digest="d" * 64, by=ME)
        session.call("receive", release="0002-dddddddd", need_bytes=1, folders=["lib"])
        (folder(device, name) / "current.999").symlink_to("releases/gone")
        os.kill(dict(list_releases(connection).locked_by or {})["device_pid"], signal.SIGKILL)
        with pytest.raises(RemoteCommandError, match="ended while the device worked on `verify`"):
            session.call("verify", files={}, executable=[])
    assert len(leftovers(device, name)) == 2, "killed outright, it could not clean up"
    assert serving(connection, name) == "old"
    install(connection, stand_in_payload(name, "new"), bare)
    assert not leftovers(device, name)
    assert serving(connection, name) == "new"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_host_command_is_ended_in_mid_upload(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult, number: int
) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from device.host.testing import TestDevice, stand_in_payload; from device.host.deploy import install\n"
        "from device.host.probe import probe; from device.host.wheels import WheelSet\n"
        "host, port, identity, known, home, name = sys.argv[1:]\n"
        "device = TestDevice(host, int(port), Path(identity), Path(known), Path(home))\n"
        "def stop(step):\n"
        "    if step.unit == 'B' and step.done > 100_000: print('half way', flush=True); time.sleep(60)\n"
        "with device.connect() as c:\n"
        "    python = probe(c).python\n"
        "    payload = stand_in_payload(name, 'new', ballast=bytes(1_000_000))\n"
        "    install(c, payload, WheelSet(python, ()), progress=stop)\n"
    )
    arguments = [device.host, str(device.port), device.identity, device.known_hosts, device.home, name]
    command = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert command.stdout is not None
    assert command.stdout.readline() == b"half way\n"
    assert leftovers(device, name)
    command.send_signal(number)
    command.wait(30)
    command.stdout.close()
    assert_old_serves(device, connection, name)


def test_wheels_are_shared_mended_and_removed_with_the_last_release(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, tmp_path: Path
) -> None:
    wheel, cache = stand_in_wheel(tmp_path / "cache", name.encode() * 1000)
    with_wheel = dataclasses.replace(bare, wheels=(wheel,))
    needs = (wheel.folder,)
    unpacked = device.home / "quarl" / "envs" / wheel.folder / "numpy" / "content.bin"

    def bring(policy: str, text: str, wheels: WheelSet, environments: tuple[str, ...]) -> DeployResult:
        payload = stand_in_payload(policy, text, environments=environments)
        return install(connection, payload, wheels, wheel_cache=cache)

    assert bring(f"{name}-I", "one", with_wheel, needs).wheels_sent == (str(wheel),)
    assert unpacked.read_bytes() == name.encode() * 1000
    assert bring(f"{name}-II", "one", with_wheel, needs).wheels_sent == (), "shared between policies"

    unpacked.write_bytes(b"")  # a power cut can leave empty files behind
    mended = bring(f"{name}-I", "one", with_wheel, needs)
    assert mended.wheels_sent == (str(wheel),) and not mended.unchanged
    assert unpacked.read_bytes() == name.encode() * 1000

    for policy in (f"{name}-I", f"{name}-II"):
        assert unpacked.exists(), "a release of the other policy, or an older one, still needs it"
        for text in ("two", "three", "four"):
            bring(policy, text, bare, ())
    assert not unpacked.exists()


@pytest.mark.integration
def test_a_login_shell_that_greets(tmp_path: Path) -> None:
    """Start-up files that print are found on many devices; what they print is not taken for an answer."""
    with openssh_server(tmp_path / "sshd") as server, server.connect() as connection:
        (server.home / ".bashrc").write_text("echo Welcome aboard; echo have = fun\n")
        assert connection.run("true").stdout.startswith("Welcome aboard"), "bash is the login shell of this test"
        install(connection, stand_in_payload("S", "greeted"), WheelSet(probe(connection).python, ()))
        assert serving(connection, "S") == "greeted"


def test_the_helper_refuses_what_it_does_not_know(connection: Connection, bare: WheelSet) -> None:
    with helper(connection, bare.python.path) as session:
        for op in ("__init__", "folder", "switch"):  # neither an attribute, nor an operation without the lock
            with pytest.raises(HostError):
                session.call(op, policy="S")


def test_a_device_without_that_python(connection: Connection) -> None:
    with pytest.raises(RemoteCommandError, match="does not start"), helper(connection, "/no/python3"):
        pass
