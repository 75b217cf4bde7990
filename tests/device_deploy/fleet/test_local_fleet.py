"""``quarl local-fleet``: devices apart from each other, hosts by name while it runs, and how it ends."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quarl.device.deploy.connection import connect
from quarl.device.deploy.hostkeys.known_hosts import KnownHosts
from quarl.device.deploy.local_fleet import main
from quarl.device.deploy.ssh_config import resolve, ssh_config_folder
from quarl.device.deploy.target import Target
from quarl.device.virtual_pi.running import register
from tests.device_deploy.devices import eventually, runs
from tests.device_deploy.fleet.conftest import own_state
from tests.device_deploy.fleet.faulty_fleet import SHIPPED, running_fleet

DEVICES = 12


@pytest.fixture(autouse=True)
def state(tmp_path: Path) -> Iterator[None]:
    with own_state(tmp_path):
        yield


@contextlib.contextmanager
def started(root: Path, devices: int = 1, stdin: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", SHIPPED, "--devices", str(devices), "--root", str(root)]
    process = subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_every_device_is_there_and_apart_from_the_others(tmp_path: Path) -> None:
    with running_fleet(tmp_path / "fleet", DEVICES, SHIPPED) as fleet:

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
    assert {python for _, python in seen} == {str(tmp_path / "fleet" / "bin" / "python3")}
    assert all((fleet.folder(name).home / "note").read_text() == name for name in fleet.names)
    assert f'targets = ["device-[001-0{DEVICES}]"]' in fleet.fleet_file.read_text()


def test_names_are_gone_after_the_end_and_identities_stay(tmp_path: Path) -> None:
    fingerprints = []
    for devices in (3, 2):
        with running_fleet(tmp_path / "fleet", devices, SHIPPED) as fleet:
            assert len(list(ssh_config_folder().iterdir())) == devices
            with connect("device-001") as connection:
                fingerprints.append(connection.host_key_fingerprint)
        assert not runs(fleet.pid)
        assert list(ssh_config_folder().iterdir()) == []
        assert resolve(Target.parse("device-001")).hostname == "device-001"
    assert fingerprints[0] == fingerprints[1]
    with running_fleet(tmp_path / "other", 1, SHIPPED), connect("device-001") as connection:
        assert connection.run("pwd").stdout.strip() == str(tmp_path / "other" / "device-001" / "home")
        assert connection.host_key_fingerprint != fingerprints[0]
    assert len(KnownHosts.of_user().entries("quarl-local-fleet-device-001")) == 1


def test_a_second_fleet_is_refused(tmp_path: Path) -> None:
    with running_fleet(tmp_path / "fleet", 1, SHIPPED) as fleet:
        with started(tmp_path / "second") as second:
            assert f"already running: process {fleet.pid}" in second.communicate(timeout=60)[1]
            assert second.returncode == 1
        with connect("device-001"):
            pass


def test_a_name_that_another_device_has_is_left_to_it(tmp_path: Path) -> None:
    register("device-002", 40022, tmp_path / "key", "ssh-ed25519 AAAA")
    with started(tmp_path / "fleet", 2) as process:
        assert "device-002 is" in process.communicate(timeout=60)[1]
    assert [file.name for file in ssh_config_folder().iterdir()] == ["device-002.conf"]


def test_a_killed_fleets_names_do_not_stay(tmp_path: Path) -> None:
    with running_fleet(tmp_path / "fleet", 3, SHIPPED) as fleet:
        os.kill(fleet.pid, signal.SIGKILL)
        assert eventually(lambda: not runs(fleet.pid))
    with running_fleet(tmp_path / "fleet", 1, SHIPPED), connect("device-001"):
        assert [file.name for file in ssh_config_folder().iterdir()] == ["device-001.conf"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it(tmp_path: Path, number: int) -> None:
    with started(tmp_path / "fleet") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready == {"devices": 1, "fleet": str(tmp_path / "fleet" / "fleet.toml"), "pid": process.pid}
        assert 'targets = ["device-001"]' in Path(ready["fleet"]).read_text()
        process.send_signal(number)
        assert process.wait(20) == 0
    assert list(ssh_config_folder().iterdir()) == []


def test_on_a_terminal_it_says_how_it_ends(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with started(tmp_path / "fleet", stdin=theirs) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        os.write(ours, b"\x04")
        assert process.wait(20) == 0
        assert "until Ctrl-D or Ctrl-C" in process.stderr.read()
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(("arguments", "status", "message"), [
    (["--devices", "0"], 2, "Must be >= 1"),
    (["--devices", "1000"], 2, "Must be <= 999"),
    (["--devices", "1", "--root", "{file}"], 1, "a folder that"),
])  # fmt: skip
def test_what_cannot_be_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], status: int, message: str
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
