"""Faults of a deployment, on both servers. In each the old release serves on and nothing half-written is left."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.device import Device, open_device
from quarl.device.deploy.errors import (
    CheckFailedError,
    ConnectionLostError,
    DeviceLockedError,
    RemoteCommandError,
    VerificationError,
)
from quarl.device.deploy.local_device import running_local_device
from quarl.device.deploy.probe import probe
from quarl.device.deploy.releases import list_releases
from quarl.device.deploy.signing.record import USUAL, sign_record
from quarl.device.deploy.wheels import WheelSet
from tests.device_deploy.devices import (
    Line,
    Site,
    as_test_device,
    eventually,
    needs_sshd,
    openssh_server,
    served_text,
    signing_key,
    stand_in_payload,
    stand_in_wheel,
)

ME = {"user": "ann", "host": "laptop", "pid": 42, "policy": "X"}


def assert_old_serves(site: Site) -> None:
    assert eventually(lambda: not site.leftovers()), site.leftovers()
    assert site.releases() == [site.state().current]
    assert site.served() == "old"


def begin_upload(session: Device, name: str, release: str, wheels: WheelSet) -> None:
    """Begin an upload, with nothing in it but its signed record."""
    trust = session.begin(name, "d" * 64, ME, 0.0)["trust"]
    signed = sign_record(stand_in_payload(name), wheels, signing_key(), trust, USUAL)
    session.receive(release, signed.text, signed.signature, 1)


def test_a_wheel_damaged_on_the_way_is_not_unpacked(site: Site, tmp_path: Path) -> None:
    wheel, cache = stand_in_wheel(tmp_path / "cache", b"content")
    with open_device(site.connection, site.bare.python.path) as session:
        begin_upload(session, site.name, "0001-dddddddd", WheelSet(site.bare.python, (wheel,)))
        session.send(f"{session.incoming}/{wheel.file}", (cache / wheel.file).read_bytes()[:-1] + b"#")
        with pytest.raises(VerificationError, match=wheel.file):
            session.unpack(wheel.file, wheel.folder, lambda done, total: None)
    assert not (site.device.home / "quarl" / "envs" / wheel.folder).exists()
    assert not site.leftovers()


def test_what_fails_its_check_or_does_not_start_is_not_switched_on(site: Site, old: DeployResult) -> None:
    with pytest.raises(CheckFailedError, match="vector 3 differs") as caught:
        site.install("new", refuse="load")
    assert f"Release {old.release} still serves" in caught.value.message
    assert caught.value.next_step == "Convert again."
    assert_old_serves(site)
    with pytest.raises(CheckFailedError, match=r"ended with status 12[67].*no/such/python|/no/such/python"):
        site.install("new", python="/no/such/python")
    assert_old_serves(site)


def test_a_first_release_that_fails_leaves_nothing(site: Site) -> None:
    with pytest.raises(CheckFailedError, match="No release was serving before"):
        site.install(refuse="hello")
    assert not site.releases() and not site.leftovers()
    assert not (site.folder / "current").is_symlink()


def test_a_file_damaged_on_the_way_is_found(site: Site, old: DeployResult, monkeypatch: pytest.MonkeyPatch) -> None:
    send_files = Device.send_files

    def flip_a_byte(session: Device, *arguments: Any) -> int:
        sent = send_files(session, *arguments)
        (file,) = site.folder.glob("incoming/*/lib/agent.py")
        file.write_bytes(file.read_bytes()[:-1] + b"#")
        return sent

    monkeypatch.setattr(Device, "send_files", flip_a_byte)

    with pytest.raises(VerificationError, match=r"lib/agent.py.*still serves"):
        site.install("new", ballast=os.urandom(1000))
    assert_old_serves(site)


def test_a_connection_cut_in_mid_upload(site: Site, old: DeployResult) -> None:
    ballast = os.urandom(3_000_000)
    with Line(site.device.host, site.device.port, cut_after=1_000_000) as line, site.device.connect(line.port) as cut:
        with pytest.raises(ConnectionLostError, match=r"sending .*still serves"):
            site.through(cut).install("new", ballast=ballast)
        assert 1_000_000 <= line.passed < len(ballast)
    assert_old_serves(site)
    assert site.install("new", ballast=ballast).previous == old.release
    assert site.served() == "new"


@pytest.mark.slow
def test_a_line_that_freezes_frees_the_device(site: Site, old: DeployResult) -> None:
    """No FIN, no RST: a sleeping laptop. The device hears no heartbeat, discards and gives the lock back."""
    with (
        Line(site.device.host, site.device.port) as line,
        site.device.connect(line.port) as frozen,
        open_device(frozen, site.bare.python.path, silence_s=4) as session,
    ):
        begin_upload(session, site.name, "0002-dddddddd", site.bare)
        assert site.leftovers()
        assert list_releases(site.connection).locked_by is not None
        line.freeze()
        assert eventually(lambda: not site.leftovers(), 60.0)
        assert eventually(lambda: list_releases(site.connection).locked_by is None)
        line.cut()
    assert_old_serves(site)


def test_the_second_of_two_deployments_is_refused_and_told_who(site: Site, old: DeployResult) -> None:
    with site.device.connect() as other, open_device(other) as session:
        session.begin("X", None, ME, 0.0)
        with pytest.raises(DeviceLockedError, match=r"ann@laptop \(pid 42\).*policy X, since 2") as caught:
            site.install("new")
        assert "--wait" in caught.value.next_step
        with pytest.raises(DeviceLockedError):
            site.rollback()
        assert dict(list_releases(site.connection).locked_by or {})["user"] == "ann"
    assert_old_serves(site)


@pytest.mark.slow
def test_waiting_for_the_other_deployment(site: Site, old: DeployResult) -> None:
    with site.device.connect() as other, contextlib.ExitStack() as stack:
        stack.enter_context(open_device(other)).begin("X", None, ME, 0.0)
        # Its holder is ended while we wait.
        holder = dict(list_releases(site.connection).locked_by or {})["device_pid"]
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.7; kill -KILL {holder}"])
        result = site.install("new", wait_s=20)
        assert result.previous == old.release
        killer.wait()
    assert site.served() == "new"


@pytest.mark.slow
def test_a_holder_that_was_killed_leaves_no_lock(site: Site, old: DeployResult) -> None:
    """kill -9 on the device's side in the middle: the kernel frees the lock, the next deployment sweeps."""
    with site.device.connect() as other, open_device(other) as session:
        begin_upload(session, site.name, "0002-dddddddd", site.bare)
        (site.folder / "current.999").symlink_to("releases/gone")
        os.kill(dict(list_releases(site.connection).locked_by or {})["device_pid"], signal.SIGKILL)
        with pytest.raises(RemoteCommandError):
            session.verify("incoming/0002-dddddddd")
    assert len(site.leftovers()) == 2, "killed outright, it could not clean up"
    assert site.served() == "old"
    site.install("new")
    assert not site.leftovers()
    assert site.served() == "new"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_host_command_is_ended_in_mid_upload(site: Site, old: DeployResult, number: int, tmp_path: Path) -> None:
    # Who runs the tests in the background of a shell hands down an ignored SIGINT, which Python then leaves ignored; a
    # terminal's Ctrl-C is not. Half way it waits for its input to end, so it never outlives the test.
    code = (
        "import signal, sys; from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tests.device_deploy.devices import Site, TestDevice\n"
        "from quarl.device.deploy.probe import probe; from quarl.device.deploy.wheels import WheelSet\n"
        "host, port, identity, known, home, name = sys.argv[1:]\n"
        "device = TestDevice(host, int(port), Path(identity), Path(known), Path(home))\n"
        "def stop(step):\n"
        "    if step.unit == 'B' and step.done > 100_000: print('half way', flush=True); sys.stdin.read()\n"
        "with device.connect() as c:\n"
        "    site = Site(device, c, name, WheelSet(probe(c).python, ()))\n"
        "    site.install('new', ballast=bytes(1_000_000), progress=stop)\n"
    )
    device = site.device
    arguments = [device.host, device.port, device.identity, device.known_hosts, device.home, site.name]
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
            assert site.leftovers()
            command.send_signal(number)
            assert command.wait(60) == -number, log.read_text()
        finally:
            command.kill()
    assert_old_serves(site)


IN_THE_MIDDLE_OF_A_FILE = """
import os, signal, sys, threading, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from quarl import cli
from quarl.device.deploy.options import DeviceOptions
from tests.device_deploy.devices import Site, TestDevice
host, port, identity, known, home, server = sys.argv[1:]
device = TestDevice(host, int(port), Path(identity), Path(known), Path(home))
sent = 0

def moved(more):  # 200 kB have come through: from now on the server reads nothing more
    global sent
    sent += more
    if sent - more < 200_000 <= sent:
        os.kill(int(server), signal.SIGSTOP)
        threading.Thread(target=press, daemon=True).start()

def press():  # Ctrl-C when the window is used up, within a packet
    frame, main = None, threading.main_thread().ident
    while frame is None:
        time.sleep(0.01)
        frame = sys._current_frames()[main]
        while frame is not None and frame.f_code.co_name != "_wait_for_send_window":
            frame = frame.f_back
    os.kill(os.getpid(), signal.SIGINT)

@cli.verb(left="nothing is left.")
def send(options: DeviceOptions):
    with device.connect() as connection:
        connection.stream("cat > sent", bytes(60_000_000), moved)
        return {}, "sent"

cli.VERBS["Devices"]["send"] = cli.Verb("__main__:send", "send")
sys.exit(cli.main(["send"]))
"""


def test_ctrl_c_in_the_middle_of_a_file_is_no_network_fault(tmp_path: Path) -> None:
    """The server reads nothing, not even that the file is given up."""
    with running_local_device(tmp_path / "device") as local:
        device = as_test_device(local)
        arguments = [device.host, device.port, device.identity, device.known_hosts, device.home, local.pid]
        command = [sys.executable, "-c", IN_THE_MIDDLE_OF_A_FILE, *map(str, arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        finally:
            os.kill(local.pid, signal.SIGCONT)
    assert (done.returncode, done.stderr) == (130, "interrupted; nothing is left.\n")


@needs_sshd
def test_a_login_shell_that_greets(tmp_path: Path) -> None:
    """Start-up files that print are found on many devices; what they print is not taken for an answer."""
    with openssh_server(tmp_path / "sshd") as server, server.connect() as connection:
        (server.home / ".bashrc").write_text("touch ~/read; printf 'home=/evil\\nend=1\\nno line end'\n")
        assert connection.run("echo in").stdout == "in\n" and (server.home / "read").exists(), "bash is the login shell"
        facts = probe(connection)
        assert facts.home == str(server.home)
        install(connection, stand_in_payload("S", "greeted"), WheelSet(facts.python, ()))
        assert served_text(connection, "S") == "greeted"


def test_an_interpreter_in_a_folder_with_any_name(site: Site, tmp_path: Path) -> None:
    python = tmp_path / "ann's new; $HOME" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {site.bare.python.path} "$@"\n')
    python.chmod(0o755)
    with open_device(site.connection, str(python)) as session:
        assert list(session.compare_wheels(["absent"])["damaged"]) == ["absent"]


def test_a_device_without_that_python(connection: Connection) -> None:
    with open_device(connection, "/no/python3") as session, pytest.raises(RemoteCommandError, match="/no/python3"):
        session.compare_wheels(["absent"])
