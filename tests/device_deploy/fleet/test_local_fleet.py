"""The embedded fleet: devices apart from each other, hosts by name while it runs, with faults that come and go."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quarl.device.deploy import handshake, switching
from quarl.device.deploy.connection import connect
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.errors import (
    ChangedHostKeyError,
    ConnectionFailedError,
    ConnectionLostError,
    DeviceFullError,
)
from quarl.device.deploy.hostkeys.known_hosts import KnownHosts
from quarl.device.deploy.local_fleet import Fault, FaultKind, LocalFleet, When, running_local_fleet
from quarl.device.deploy.local_fleet.__main__ import main
from quarl.device.deploy.local_fleet.faults import FAULT_FILE, read_fault
from quarl.device.deploy.local_fleet.traffic import SwitchTraffic
from quarl.device.deploy.probe import probe
from quarl.device.deploy.target import Target, resolve, ssh_config_folder
from quarl.device.deploy.wheels import WheelSet
from quarl.device.virtual_pi.naming import register
from tests.device_deploy.devices import eventually, runs, served_text, stand_in_payload
from tests.device_deploy.fleet.conftest import own_state
from tests.namespaces import own

DEVICES = 30
COMMAND = [sys.executable, "-m", "quarl.device.deploy.local_fleet"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with own_state(folder), running_local_fleet(folder / "fleet", DEVICES) as fleet:
        yield fleet


@pytest.fixture
def fleet(running: LocalFleet) -> Iterator[LocalFleet]:
    """The fleet of this file; whatever a test does to a device, the next one finds it well."""
    yield running
    for name in running.names:
        running.heal(name)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """For a fleet of the test's own, beside the one of this file."""
    with own_state(tmp_path) as patch:
        yield patch


def deploy_to(name: str, text: str) -> DeployResult:
    with connect(name) as connection:
        return install(connection, stand_in_payload("S", text), WheelSet(probe(connection).python, ()))


def serving(name: str) -> str:
    with connect(name) as connection:
        return served_text(connection, "S")


def test_every_device_is_there_and_apart_from_the_others(fleet: LocalFleet) -> None:
    assert len(fleet.names) == DEVICES and fleet.names[-1] == f"device-{DEVICES:03}"

    def visit(name: str) -> tuple[str, str]:
        with connect(name) as connection:
            assert connection.name.endswith(f"@{name}") and connection.transport_name == "loopback"
            connection.upload(name.encode(), "note")
            python = connection.run("command -v python3").stdout.strip()
            assert connection.run("pwd; cat note").stdout == f"{fleet.folder(name).home}\n{name}"
            return connection.host_key_fingerprint, python

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(visit, fleet.names))
    assert len({fingerprint for fingerprint, _ in seen}) == DEVICES
    assert {python for _, python in seen} == {str(fleet.fleet_file.parent / "bin" / "python3")}
    assert all((fleet.folder(name).home / "note").read_text() == name for name in fleet.names)
    assert 'targets = ["device-[001-030]"]' in fleet.fleet_file.read_text()


def test_relative_paths_of_sftp_start_at_home_and_absolute_ones_stay(fleet: LocalFleet, tmp_path: Path) -> None:
    home = fleet.folder("device-002").home
    with connect("device-002") as connection:
        sftp = connection.sftp()
        assert sftp.normalize(".") == str(home)
        sftp.mkdir("folder")
        connection.upload(b"1", "folder/a")
        connection.upload(b"2", str(tmp_path / "b"))
        sftp.posix_rename("folder/a", "folder/c")
        sftp.symlink("c", "folder/link")
        assert sftp.listdir("folder") and (home / "folder" / "link").read_bytes() == b"1"
        assert (home / "folder" / "link").readlink() == Path("c")
    assert (tmp_path / "b").read_bytes() == b"2"


def test_a_device_gets_a_signing_key_by_itself(fleet: LocalFleet) -> None:
    assert deploy_to("device-003", "one").release.startswith("0001-")
    assert deploy_to("device-003", "two").previous is not None
    assert serving("device-003") == "two"


def test_unreachable_and_well_again(fleet: LocalFleet) -> None:
    fleet.set_fault("device-004", FaultKind.UNREACHABLE)
    with pytest.raises(ConnectionFailedError), connect("device-004"):
        pass
    with connect("device-005") as other:
        assert other.run("echo well").stdout == "well\n"
    fleet.heal("device-004")
    with connect("device-004") as connection:
        assert connection.run("echo well").stdout == "well\n"


def test_silent(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "CONNECT_TIMEOUT_S", 0.7)
    fleet.set_fault("device-004", FaultKind.SILENT)
    begun = time.monotonic()
    with pytest.raises(ConnectionFailedError), connect("device-004"):
        pass
    assert time.monotonic() - begun >= 0.7


def test_another_host_key(fleet: LocalFleet) -> None:
    fleet.set_fault("device-006", FaultKind.OTHER_KEY)
    with pytest.raises(ChangedHostKeyError, match="HAS CHANGED"), connect("device-006"):
        pass
    fleet.heal("device-006")
    with connect("device-006"):
        pass


def test_a_slow_line(fleet: LocalFleet) -> None:
    with connect("device-007") as connection:
        quick = connection.upload(os.urandom(100_000), "data").seconds
    fleet.set_fault("device-007", Fault.slow(200_000, delay_s=0.05))
    with connect("device-007") as connection:
        data = os.urandom(100_000)
        assert connection.upload(data, "data").seconds > max(0.5, quick)
        assert connection.run("true").seconds > 0.2, "the channel, the command and the reply, each late both ways"
        assert (fleet.folder("device-007").home / "data").read_bytes() == data


@pytest.mark.parametrize(("when", "serves"), [(When.BEFORE, "old"), (When.AFTER, "new")])
def test_it_dies_in_the_switch(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch, when: When, serves: str) -> None:
    monkeypatch.setattr(switching, "PAUSE_S", 0.05)
    name = f"device-01{list(When).index(when)}"
    deploy_to(name, "old")
    with connect(name) as bystander:
        process = bystander.start("echo $$; exec sleep 1000")
        pid = int(process.read_line(10))
        fleet.set_fault(name, Fault.dies_in_switch(when))
        with pytest.raises(ConnectionLostError, match="is unknown"):
            deploy_to(name, "new")
        assert eventually(lambda: not bystander.alive) and eventually(lambda: not runs(pid))
    assert read_fault(fleet.folder(name).root) == Fault(FaultKind.UNREACHABLE)
    with pytest.raises(ConnectionFailedError), connect(name):
        pass
    fleet.heal(name)
    assert serving(name) == serves
    folder = fleet.folder(name).home / "quarl" / "policies" / "S"
    assert [*(folder / "incoming").iterdir(), *folder.glob("current.*")] == []
    deploy_to(name, "new")
    assert serving(name) == "new"


def test_the_old_release_is_said_to_serve_where_the_device_comes_back_in_time(fleet: LocalFleet) -> None:
    deploy_to("device-012", "old")
    fleet.set_fault("device-012", Fault.dies_in_switch(When.BEFORE))
    with ThreadPoolExecutor(1) as pool:
        deployment = pool.submit(deploy_to, "device-012", "new")
        file = fleet.folder("device-012").root
        assert eventually(lambda: read_fault(file) == Fault(FaultKind.UNREACHABLE))
        fleet.heal("device-012")
        with pytest.raises(ConnectionLostError, match=r"0001-\w+ still serves"):
            deployment.result(30)


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_switch_that_comes_in_pieces(size: int) -> None:
    """The lines before it have passed, and nothing of it has."""
    before = b'57\nimport sys\n{x for x in ()}\n\n{"op": "begin", "policy": "S"}\n'
    sent = before + b'{"op": "switch", "release": "0002-x", "scripts": {}}\n{"op": "prune"}\n'
    cut: list[bool] = []
    traffic = SwitchTraffic(lambda: Fault.dies_in_switch(When.BEFORE), lambda: cut.append(True))
    passed = b"".join(traffic.to_command(sent[at : at + size]) for at in range(0, len(sent), size))
    assert passed.startswith(before) if size == 100_000 else passed == before
    assert b"switch" not in passed and cut == [True]
    assert traffic.from_command(b"more") == b""


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_reply_that_comes_in_pieces(size: int) -> None:
    """Progress may come before it; what comes after it belongs to nobody."""
    cut: list[bool] = []
    traffic = SwitchTraffic(lambda: Fault.dies_in_switch(When.AFTER), lambda: cut.append(True))
    greeting, request = b'{"ok": true}\n', b'{"op": "switch"}\n'
    assert traffic.from_command(greeting) == greeting and traffic.to_command(request) == request
    progress = b'{"progress": {"done": 1, "total": 2}}\n'
    reply = progress + b'{"previous": null, "ok": true}\n'
    assert b"".join(traffic.from_command(reply[at : at + size]) for at in range(0, len(reply), size)) == progress
    assert cut == [True]


@pytest.mark.parametrize("fault", [None, Fault(FaultKind.SILENT), Fault.slow(1e6)])
def test_other_traffic_passes_as_it_comes(fault: Fault | None) -> None:
    traffic = SwitchTraffic(lambda: fault, lambda: pytest.fail("the power was cut"))
    for data in (b"no line", b" goes on {", b'{"op": "switch"}\n', b"\0\r\n{}\n", b"x" * 100_000):
        assert traffic.to_command(data) == data
        assert traffic.from_command(data) == data
    assert traffic.to_command(b'\n{"half": ') == b"\n"
    assert traffic.to_command(b"") == b'{"half": ', "the end of the input gives back what was held"


def test_a_full_disk_and_room_again(tmp_path: Path, state: pytest.MonkeyPatch) -> None:
    small = "device-002"
    with running_local_fleet(tmp_path / "fleet", 2, small=[small], command_prefix=own("mount")) as fleet:
        deploy_to(small, "old")
        fleet.set_fault(small, FaultKind.FULL)
        with pytest.raises(DeviceFullError):
            deploy_to(small, "new")
        with connect(small) as connection:
            free = int(connection.run("df -Pk . | tail -n 1").stdout.split()[3])
            assert 0 < free <= 64
            with pytest.raises(OSError):
                connection.upload(bytes(1_000_000), "big")
            connection.run("rm -f big")
        assert serving(small) == "old"
        fleet.heal(small)
        deploy_to(small, "new")
        assert serving(small) == "new"
        with pytest.raises(ValueError, match="allowed: device-002"):
            fleet.set_fault("device-001", FaultKind.FULL)
    assert not os.path.ismount(tmp_path / "fleet" / small / "home")


def test_names_are_gone_after_the_end_and_identities_stay(tmp_path: Path, state: pytest.MonkeyPatch) -> None:
    fingerprints = []
    for devices in (3, 2):
        with running_local_fleet(tmp_path / "fleet", devices) as fleet:
            assert len(list(ssh_config_folder().iterdir())) == devices
            with connect("device-001") as connection:
                fingerprints.append(connection.host_key_fingerprint)
        assert not runs(fleet.pid)
        assert list(ssh_config_folder().iterdir()) == []
        assert resolve(Target.parse("device-001")).hostname == "device-001"
    assert fingerprints[0] == fingerprints[1]
    assert len(KnownHosts.of_user().entries("quarl-local-fleet-device-001")) == 1


def test_another_folder_has_other_identities_under_the_same_names(tmp_path: Path, state: pytest.MonkeyPatch) -> None:
    for root in ("a", "b"):
        with running_local_fleet(tmp_path / root, 1), connect("device-001") as connection:
            assert connection.run("pwd").stdout.strip() == str(tmp_path / root / "device-001" / "home")
    assert len(KnownHosts.of_user().entries("quarl-local-fleet-device-001")) == 1


def test_a_second_fleet_is_refused(fleet: LocalFleet, tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailedError, match=f"runs already: process {fleet.pid}"), contextlib.ExitStack() as s:
        s.enter_context(running_local_fleet(tmp_path, 1))
    with connect("device-001"):
        pass


def test_a_name_that_another_device_has_is_left_to_it(tmp_path: Path, state: pytest.MonkeyPatch) -> None:
    register("device-002", 40022, tmp_path / "key", "ssh-ed25519 AAAA")
    with pytest.raises(ConnectionFailedError, match="another device's name"), contextlib.ExitStack() as stack:
        stack.enter_context(running_local_fleet(tmp_path / "fleet", 2))
    assert [file.name for file in ssh_config_folder().iterdir()] == ["device-002.conf"]


def test_a_killed_fleets_names_do_not_stay(tmp_path: Path, state: pytest.MonkeyPatch) -> None:
    with running_local_fleet(tmp_path / "fleet", 3) as fleet:
        os.kill(fleet.pid, signal.SIGKILL)
        assert eventually(lambda: not runs(fleet.pid))
    with running_local_fleet(tmp_path / "fleet", 1), connect("device-001"):
        assert [file.name for file in ssh_config_folder().iterdir()] == ["device-001.conf"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it(tmp_path: Path, state: pytest.MonkeyPatch, number: int) -> None:
    with started(["--devices", "1", "--root", str(tmp_path / "fleet")]) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready == {"devices": 1, "fleet": str(tmp_path / "fleet" / "fleet.toml"), "pid": process.pid}
        assert 'targets = ["device-001"]' in Path(ready["fleet"]).read_text()
        process.send_signal(number)
        assert process.wait(20) == 0
    assert list(ssh_config_folder().iterdir()) == []


def test_on_a_terminal_it_says_how_it_ends(tmp_path: Path, state: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with started(["--devices", "1", "--root", str(tmp_path / "fleet")], stdin=theirs) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        os.write(ours, b"\x04")
        assert process.wait(20) == 0
        assert "until Ctrl-D or Ctrl-C" in process.stderr.read().decode()
    os.close(ours)
    os.close(theirs)


@contextlib.contextmanager
def started(arguments: Sequence[str], stdin: int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--devices", "0"], 2, "Must be >= 1"),
        (["--devices", "1000"], 2, "Must be <= 999"),
        (["--devices", "2", "--small", "device-003"], 2, "allowed are device-001 to device-002"),
        (["--devices", "1", "--root", "{file}"], 1, "Name a folder that may be written"),
    ],
)
def test_what_cannot_be_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    try:
        ended = main([word.format(file=file) for word in arguments])
    except SystemExit as error:
        ended = int(error.code or 0)
    printed = capsys.readouterr()
    assert (ended, printed.out) == (status, "")
    assert message in printed.err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda fleet: fleet.set_fault("device-031", FaultKind.SILENT), "allowed are device-001 to device-030"),
        (lambda fleet: fleet.heal("pi"), "No device is called 'pi'"),
        (lambda fleet: fleet.set_fault("device-001", FaultKind.FULL), "none, start the fleet with small"),
        (lambda fleet: Fault.slow(0), "allowed are bytes_per_s above 0"),
    ],
)
def test_what_is_no_fault_is_refused(fleet: LocalFleet, wrong: Callable[[LocalFleet], None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong(fleet)


def test_a_file_that_holds_no_fault_is_told_in_the_log(fleet: LocalFleet) -> None:
    (fleet.folder("device-020").root / FAULT_FILE).write_text('{"kind": "gone"}')
    with connect("device-020"):
        pass
    assert "gone" in (fleet.fleet_file.parent / "server.log").read_text()
