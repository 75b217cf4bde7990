"""The embedded device: a real SSH server with its own keys and folder, that goes when the command goes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarl import cli
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import connect
from quarl.device.deploy.errors import ChangedHostKeyError, ConnectionFailedError
from quarl.device.deploy.fleet.inventory import Member
from quarl.device.deploy.fleet.status import status_of
from quarl.device.deploy.local_device import HOST_KEY, LocalFolder, running_local_device
from quarl.device.deploy.probe import is_emulated, probe
from quarl.device.deploy.target import Target
from quarl.policy.bundle import Bundle
from tests.device_deploy.devices import TestDevice, as_test_device, eventually, runs

LOCAL = Target.parse("local")


def test_keys_are_private_and_the_host_key_is_recorded_when_made(tmp_path: Path) -> None:
    with connect(LOCAL, local_folder=tmp_path) as connection:
        fingerprint = connection.host_key_fingerprint
        assert connection.transport_name == "loopback"
    folder = LocalFolder(tmp_path)
    for key in (folder.keys / HOST_KEY, folder.client_key_file):
        assert key.stat().st_mode & 0o777 == 0o600
    assert folder.keys.stat().st_mode & 0o777 == 0o700
    with connect(LOCAL, local_folder=tmp_path) as connection:
        assert connection.host_key_fingerprint == fingerprint, "the device keeps its identity"


def test_another_host_key_is_refused(tmp_path: Path) -> None:
    with connect(LOCAL, local_folder=tmp_path):
        pass
    (LocalFolder(tmp_path).keys / HOST_KEY).unlink()  # the server makes another; what was recorded stays
    with pytest.raises(ChangedHostKeyError, match="HAS CHANGED"), connect(LOCAL, local_folder=tmp_path):
        pass


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    with running_local_device(tmp_path) as local:
        text = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        rows = [line.split() for line in text.splitlines()]
        listening = {row[1].split(":")[0] for row in rows if row[1].endswith(f":{local.port:04X}") and row[3] == "0A"}
        assert listening == {"0100007F"}  # 127.0.0.1, little endian


def test_commands_find_a_devices_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    with connect(LOCAL, local_folder=tmp_path) as connection:
        variables = dict(line.split("=", 1) for line in connection.run("env").stdout.splitlines())
        home = str(LocalFolder(tmp_path).home)
        assert variables["HOME"] == home
        assert connection.run("pwd").stdout.strip() == home
        assert not {"SECRET_OF_THE_HOST", "PYTHONPATH", "VIRTUAL_ENV", "SSH_AUTH_SOCK"} & set(variables)
        prefix = connection.run("python3 -c 'import sys; print(sys.prefix)'").stdout.strip()
        assert prefix == sys.base_prefix, "the device's Python is not the host's virtual environment"


def test_uploads_start_at_home_and_commands_report_as_they_should(tmp_path: Path) -> None:
    with connect(LOCAL, local_folder=tmp_path) as connection:
        connection.upload(b"x" * 100_000, "note")
        assert (LocalFolder(tmp_path).home / "note").stat().st_size == 100_000
        connection.upload(b"2", str(tmp_path / "outside"))
        assert (tmp_path / "outside").read_bytes() == b"2", "an absolute path stays as it is"
        with pytest.raises(OSError, match="absent/file"):
            connection.upload(b"3", "absent/file")
        failed = connection.run("echo out; echo err >&2; exit 3", check=False)
        assert (failed.exit_status, failed.stdout, failed.stderr) == (3, "out\n", "err")
        assert connection.run("kill -9 $$", check=False).exit_status == -1
        assert connection.run("cat", stdin=b"z" * 300_000).stdout == "z" * 300_000


def test_two_at_once_are_one_device(tmp_path: Path) -> None:
    """Both start on a folder that does not exist yet: keys and home are made once."""
    root = tmp_path / "device"
    code = (
        "import sys; from pathlib import Path; from quarl.device.deploy.local_device import running_local_device as r\n"
        "with r(Path(sys.argv[1])) as d: print(d.port, flush=True); sys.stdin.read()"
    )
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        ports = []
        for command in commands:
            assert command.stdout is not None
            ports.append(int(command.stdout.readline()))
        assert ports[0] != ports[1]
        with connect(LOCAL, local_folder=root) as third:
            third.upload(b"shared", "note")
            assert third.run("cat note").stdout == "shared"
    finally:
        for command in commands:
            command.communicate()
    assert [command.returncode for command in commands] == [0, 0]


def test_what_runs_on_it_ends_with_it(tmp_path: Path) -> None:
    with connect(LOCAL, local_folder=tmp_path) as connection:
        process = connection.start("echo $$; trap '' HUP TERM; sleep 1000 & echo $!; wait")
        pids = [int(process.read_line(10)) for _ in range(2)]
        assert all(runs(pid) for pid in pids)
    assert eventually(lambda: not any(runs(pid) for pid in pids))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_it_ends_with_the_command_that_started_it(tmp_path: Path, number: int) -> None:
    """Ctrl-C, and the worst case: the command has no chance to clean up."""
    code = (
        "import signal, sys, time; from pathlib import Path\n"
        "from quarl.device.deploy.connection import connect; from quarl.device.deploy.target import Target\n"
        # started from a background job the tests inherit that Ctrl-C is ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with connect(Target('local'), local_folder=Path(sys.argv[1])) as c:\n"
        "    p = c.start('echo $PPID; echo $$; exec sleep 1000')\n"
        "    print(p.read_line(10).decode(), p.read_line(10).decode(), flush=True)\n"
        "    time.sleep(1000)"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert command.stdout is not None
    server, child = (int(word) for word in command.stdout.readline().split())
    assert runs(server) and runs(child)
    os.killpg(command.pid, number)  # as a terminal does: the whole foreground group
    command.wait(30)
    command.stdout.close()
    assert eventually(lambda: not runs(server) and not runs(child))


def test_a_folder_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / HOST_KEY).write_text("not a key")
    with pytest.raises(ConnectionFailedError, match="did not start"), contextlib.ExitStack() as stack:
        stack.enter_context(running_local_device(tmp_path))


STANDARD = ("signal", "types", "platform", "json", "struct", "zipfile", "hashlib", "fcntl", "socket", "selectors")
STARTED = ("sitecustomize", "usercustomize")
USUAL = ("--rate", "20", "--fallback", "19", "--priority", "0", "--trial", "0.2", "--most-missed", "1e6")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TestDevice, Path]]:
    """The local device with modules wherever a Python that is not isolated looks, and the file that they write."""
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    marker = tmp_path / "executed"
    with running_local_device(tmp_path / "device") as local:
        device = as_test_device(local)
        with device.connect() as connection:
            version = probe(connection).python.series
        packages = device.home / f".local/lib/python{version}/site-packages"
        for folder in (device.home, device.home / "quarl/services", device.home / "quarl", packages):
            folder.mkdir(parents=True, exist_ok=True)
            for name in (*STANDARD, *STARTED):
                (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write(__file__ + chr(10))\n")
        (packages / "planted.pth").write_text(f"import sys; open({str(marker)!r}, 'a').write('planted.pth')\n")
        yield device, marker


def test_no_module_of_the_home_folder_is_executed(planted: tuple[TestDevice, Path], bundle: Bundle) -> None:
    device, marker = planted

    def run(verb: str, *arguments: str) -> None:
        ended = cli.main([verb, "--target", "local", *arguments])
        assert not marker.exists(), f"{verb}: {marker.read_text()}"
        assert ended == 0, verb

    run("status")
    run("deploy", "--policy", str(bundle.path))
    run("serve", "--policy", "tiny", *USUAL)
    run("serving", "--policy", "tiny")
    with device.connect() as connection:
        with AgentSession(connection, "tiny") as agent:
            agent.request("load", precision="int8", runtime="litert")
            agent.act(bundle.golden().observations[0])
        is_emulated(connection, probe(connection))
    status_of(Member("local"), lambda step: None, {}, None)
    run("releases", "--policy", "tiny")
    run("unserve", "--policy", "tiny")
