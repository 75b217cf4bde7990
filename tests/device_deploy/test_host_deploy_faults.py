"""Faults of a deployment, on both servers. In each the old release serves on and nothing half-written is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.errors import (
    CheckFailedError,
    ConnectionLostError,
    DeviceLockedError,
    HostError,
    RemoteCommandError,
    VerificationError,
)
from quarl.device.deploy.golden import Step
from quarl.device.deploy.helper_session import HelperSession, helper
from quarl.device.deploy.local_device import running_local_device
from quarl.device.deploy.on_device.helper import NEED_NO_LOCK, OPERATIONS
from quarl.device.deploy.probe import probe
from quarl.device.deploy.releases import list_releases, rollback
from quarl.device.deploy.signing.record import USUAL, signed_record
from quarl.device.deploy.wheels import WheelSet
from tests.device_deploy.devices import (
    Line,
    TestDevice,
    as_test_device,
    eventually,
    openssh_server,
    served_text,
    signing_key,
    stand_in_payload,
    stand_in_wheel,
)
from tests.device_deploy.needs import needs_sshd

ME = {"user": "ann", "host": "laptop", "pid": 42, "policy": "X"}


def assert_old_serves(device: TestDevice, connection: Connection, name: str) -> None:
    assert eventually(lambda: not device.leftovers(name)), device.leftovers(name)
    assert device.releases(name) == [list_releases(connection).policies[name].current]
    assert served_text(connection, name) == "old"


def begun(session: HelperSession, name: str, release: str, wheels: WheelSet) -> str:
    """The folder of an upload that has begun, with nothing in it but its signed record."""
    trust = session.call("begin", policy=name, digest="d" * 64, by=ME)["trust"]
    signed = signed_record(stand_in_payload(name), wheels, signing_key(), trust, USUAL)
    folder = session.call("receive", release=release, need_bytes=1, record=signed.text, signature=signed.signature)
    return str(folder["incoming"])


def test_a_wheel_damaged_on_the_way_is_not_unpacked(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, tmp_path: Path
) -> None:
    wheel, cache = stand_in_wheel(tmp_path / "cache", b"content")
    with helper(connection, bare.python.path) as session:
        incoming = begun(session, name, "0001-dddddddd", WheelSet(bare.python, (wheel,)))
        connection.upload((cache / wheel.file).read_bytes()[:-1] + b"#", f"{incoming}/{wheel.file}")
        with pytest.raises(VerificationError, match=wheel.file):
            session.call("unpack", file=wheel.file, folder=wheel.folder)
    assert not (device.home / "quarl" / "envs" / wheel.folder).exists()
    assert not device.leftovers(name)


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
    assert not device.releases(name) and not device.leftovers(name)
    assert not (device.policy_folder(name) / "current").is_symlink()


def test_a_file_damaged_on_the_way_is_found_by_its_hash(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    def flip_a_byte(step: Step) -> None:
        if step.unit == "B" and step.done == step.total:  # the file before the last is closed and not verified yet
            (file,) = device.policy_folder(name).glob("incoming/*/lib/agent.py")
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
    assert served_text(connection, name) == "new"


@pytest.mark.slow
def test_a_line_that_freezes_frees_the_device(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    """No FIN, no RST: a sleeping laptop. The device hears no heartbeat, discards and gives the lock back."""
    with (
        Line(device.host, device.port) as line,
        device.connect(line.port) as frozen,
        helper(frozen, bare.python.path, silence_s=4.0) as session,
    ):
        begun(session, name, "0002-dddddddd", bare)
        assert device.leftovers(name)
        assert list_releases(connection).locked_by is not None
        line.freeze()
        assert eventually(lambda: not device.leftovers(name), 60.0)
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


@pytest.mark.slow
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
    assert served_text(connection, name) == "new"


@pytest.mark.slow
def test_a_holder_that_was_killed_leaves_no_lock(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    """kill -9 on the device's side in the middle: the kernel frees the lock, the next deployment sweeps."""
    with device.connect() as other, helper(other, bare.python.path) as session:
        begun(session, name, "0002-dddddddd", bare)
        (device.policy_folder(name) / "current.999").symlink_to("releases/gone")
        os.kill(dict(list_releases(connection).locked_by or {})["device_pid"], signal.SIGKILL)
        with pytest.raises(RemoteCommandError, match="ended while the device worked on `verify`"):
            session.call("verify")
    assert len(device.leftovers(name)) == 2, "killed outright, it could not clean up"
    assert served_text(connection, name) == "old"
    install(connection, stand_in_payload(name, "new"), bare)
    assert not device.leftovers(name)
    assert served_text(connection, name) == "new"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_host_command_is_ended_in_mid_upload(
    device: TestDevice, connection: Connection, name: str, old: DeployResult, number: int, tmp_path: Path
) -> None:
    # Who runs the tests in the background of a shell hands down an ignored SIGINT, which Python then leaves ignored; a
    # terminal's Ctrl-C is not. Half way it waits for its input to end, so it never outlives the test.
    code = (
        "import signal, sys; from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tests.device_deploy.devices import TestDevice, stand_in_payload\n"
        "from quarl.device.deploy.deploy import install\n"
        "from quarl.device.deploy.probe import probe; from quarl.device.deploy.wheels import WheelSet\n"
        "host, port, identity, known, home, name = sys.argv[1:]\n"
        "device = TestDevice(host, int(port), Path(identity), Path(known), Path(home))\n"
        "def stop(step):\n"
        "    if step.unit == 'B' and step.done > 100_000: print('half way', flush=True); sys.stdin.read()\n"
        "with device.connect() as c:\n"
        "    python = probe(c).python\n"
        "    payload = stand_in_payload(name, 'new', ballast=bytes(1_000_000))\n"
        "    install(c, payload, WheelSet(python, ()), progress=stop)\n"
    )
    arguments = [device.host, str(device.port), device.identity, device.known_hosts, device.home, name]
    log = tmp_path / "stderr"
    with (
        log.open("wb") as printed,
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
        ) as command,
    ):
        assert command.stdout is not None
        try:
            assert command.stdout.readline() == b"half way\n", log.read_text()
            assert device.leftovers(name)
            command.send_signal(number)
            assert command.wait(60) == -number, log.read_text()
        finally:
            command.kill()
    assert_old_serves(device, connection, name)


IN_THE_MIDDLE_OF_A_PACKET = """
import os, signal, sys, threading, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from quarl.device.deploy.connection import Connection
from quarl import cli
from quarl.device.deploy.options import DeviceOptions
from tests.device_deploy.devices import TestDevice
host, port, identity, known, home, server = sys.argv[1:]
device = TestDevice(host, int(port), Path(identity), Path(known), Path(home))
Connection.sftp.__defaults__ = (3600.0,)  # who waits for the server's answer waits for ever
sent = 0

def moved(more):  # 200 kB have come through: from now on the server reads nothing more
    global sent
    sent += more
    if sent - more < 200_000 <= sent:
        os.kill(int(server), signal.SIGSTOP)
        threading.Thread(target=press, daemon=True).start()

def press():  # Ctrl-C when the window is used up, within a packet; the server reads on when the file is being closed
    until_in("_wait_for_send_window")
    os.kill(os.getpid(), signal.SIGINT)
    until_in("close")
    os.kill(int(server), signal.SIGCONT)

def until_in(function):
    main = threading.main_thread().ident
    while True:
        frame = sys._current_frames()[main]
        while frame is not None and frame.f_code.co_name != function:
            frame = frame.f_back
        if frame is not None:
            return
        time.sleep(0.01)

@cli.verb(left="nothing is left.")
def send(options: DeviceOptions):
    with device.connect() as connection:
        connection.upload(bytes(60_000_000), "sent", progress=moved)
        return {}, "sent"

cli.VERBS["Devices"]["send"] = cli.Verb("__main__:send", "send")
sys.exit(cli.main(["send"]))
"""


def test_ctrl_c_in_the_middle_of_a_packet_is_no_network_fault(tmp_path: Path) -> None:
    """What closes the file on the way out a server takes for the rest of the packet: it waits for more, or hangs up."""
    with running_local_device(tmp_path / "device") as local:
        device = as_test_device(local)
        arguments = [device.host, device.port, device.identity, device.known_hosts, device.home, local.pid]
        command = [sys.executable, "-c", IN_THE_MIDDLE_OF_A_PACKET, *map(str, arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        finally:
            os.kill(local.pid, signal.SIGCONT)
    assert (done.returncode, done.stderr) == (130, "interrupted; nothing is left.\n")


@needs_sshd
def test_a_login_shell_that_greets(tmp_path: Path) -> None:
    """Start-up files that print are found on many devices; what they print is not taken for an answer."""
    with openssh_server(tmp_path / "sshd") as server, server.connect() as connection:
        (server.home / ".bashrc").write_text("echo Welcome aboard; echo have = fun\n")
        assert connection.run("true").stdout.startswith("Welcome aboard"), "bash is the login shell of this test"
        install(connection, stand_in_payload("S", "greeted"), WheelSet(probe(connection).python, ()))
        assert served_text(connection, "S") == "greeted"


def test_the_helper_refuses_what_it_does_not_know(connection: Connection, bare: WheelSet) -> None:
    with helper(connection, bare.python.path) as session:
        for op in ("__init__", "folder", "lock", ""):  # attributes of the same object, but no operations
            with pytest.raises(HostError, match=f"there is no operation '{op}'"):
                session.call(op)


@pytest.mark.parametrize("op", sorted(set(OPERATIONS) - set(NEED_NO_LOCK)))
def test_nothing_is_changed_without_the_lock(connection: Connection, bare: WheelSet, op: str) -> None:
    with helper(connection, bare.python.path) as session:
        with pytest.raises(HostError, match=f"{op} without the lock"):
            session.call(op)
        session.call("begin", policy="S", digest=None, by=ME)
        session.call("discard")
        with pytest.raises(HostError, match=f"{op} without the lock"):
            session.call(op)


def test_looking_needs_no_lock() -> None:
    assert set(NEED_NO_LOCK) == {"show", "begin", "discard", "signers", "serving"}


def test_an_interpreter_in_a_folder_with_any_name(connection: Connection, bare: WheelSet, tmp_path: Path) -> None:
    python = tmp_path / "ann's new; $HOME" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {bare.python.path} "$@"\n')
    python.chmod(0o755)
    with helper(connection, str(python)) as session:
        assert session.call("show")["ok"]


def test_a_device_without_that_python(connection: Connection) -> None:
    with pytest.raises(RemoteCommandError, match="does not start"), helper(connection, "/no/python3"):
        pass
