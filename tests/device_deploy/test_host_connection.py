"""Connections: strict about who answers, clear about what went wrong, never waiting for ever."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from quarl import cli
from quarl.device.deploy import connection as connection_module
from quarl.device.deploy.connection import Connection, connect
from quarl.device.deploy.errors import (
    ChangedHostKeyError,
    ConnectionFailedError,
    ConnectionLostError,
    LoginError,
    RemoteCommandError,
    UnknownHostKeyError,
)
from quarl.device.deploy.hostkeys.known_hosts import KnownHosts
from quarl.device.deploy.local_device import free_port
from quarl.device.deploy.target import Target
from tests.device_deploy.devices import Line, TestDevice, make_key
from tests.refusals import refused


def connect_with(device: TestDevice, known: Path, identity: Path | None = None) -> AbstractContextManager[Connection]:
    return connect(
        device.target, identity=identity or device.identity, known_hosts=KnownHosts(known),
        config_file=known.with_name("no-config"),
    )  # fmt: skip


def test_an_unknown_host_key_is_refused_and_nothing_is_recorded(device: TestDevice, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    with pytest.raises(UnknownHostKeyError, match="SHA256:") as caught, connect_with(device, known):
        pass
    assert f"accept-host-key --target {device.target} --fingerprint SHA256:" in caught.value.next_step
    assert not known.exists()


def test_a_changed_host_key_is_refused(device: TestDevice, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_key(other)
    kind, blob = other.with_suffix(".pub").read_text().split()[:2]
    known = tmp_path / "known_hosts"
    known.write_text(f"[{device.host}]:{device.port} {kind} {blob}\n")
    with pytest.raises(ChangedHostKeyError, match="HAS CHANGED"), connect_with(device, known):
        pass
    assert known.read_text().split()[2] == blob, "the record stays as it was"


def test_accepting_on_the_command_line(device: TestDevice, own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused, shown, a wrong fingerprint refused, the right one recorded, connected; once more changes nothing."""
    base = ["--target", str(device.target), "--identity", str(device.identity), "--json"]

    assert cli.main(["releases", *base]) == 1
    refused = json.loads(capsys.readouterr().out)
    assert refused["error"]["code"] == "unknown_host_key"
    fingerprint = refused["error"]["next"].split("--fingerprint ")[1]

    assert cli.main(["accept-host-key", *base]) == 1
    assert fingerprint in json.loads(capsys.readouterr().out)["error"]["message"]

    assert cli.main(["accept-host-key", *base, "--fingerprint", "SHA256:" + "A" * 43]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "changed_host_key"
    assert not (own_home / "state").exists()

    assert cli.main(["accept-host-key", *base, "--fingerprint", fingerprint]) == 0
    assert json.loads(capsys.readouterr().out)["recorded"] is True
    assert cli.main(["releases", *base]) == 0
    capsys.readouterr()

    assert cli.main(["accept-host-key", *base, "--fingerprint", fingerprint]) == 0
    assert json.loads(capsys.readouterr().out)["recorded"] is False


def test_no_key_that_is_let_in(device: TestDevice, own_home: Path) -> None:
    stranger = own_home / "stranger"
    make_key(stranger)
    with (
        pytest.raises(LoginError, match=f"{stranger} \\(refused\\)") as caught,
        connect_with(device, device.known_hosts, stranger),
    ):
        pass
    assert "ssh-copy-id" in caught.value.next_step
    make_key(own_home / "locked", passphrase="secret")
    for name, why in (("absent", "no such file"), ("locked", "ssh-add")):
        with pytest.raises(LoginError, match=why), connect_with(device, device.known_hosts, own_home / name):
            pass


@pytest.mark.parametrize(
    ("target", "message"),
    [(("127.0.0.1", "pi", 1), "cannot be reached"), (("no-such-host.invalid", "pi"), "cannot be resolved")],
)
def test_nobody_answers(target: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConnectionFailedError, match=message), connect(Target(*target)):
        pass


def test_looking_whether_a_device_is_there_is_quiet_and_starts_none(
    device: TestDevice, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection_module, "running_local_device", lambda *_: pytest.fail("it was started"))
    there = ["reach", "--target", str(device.target), "--identity", str(device.identity)]
    assert cli.main(there) == 1
    assert "accept-host-key --target" in capsys.readouterr().err
    (own_home / ".ssh").mkdir()
    (own_home / ".ssh" / "known_hosts").write_text(device.known_hosts.read_text())
    for words in (there, ["reach"]):
        assert cli.main(words) == 0
        assert capsys.readouterr() == ("", "")
    assert cli.main(["reach", "--target", f"pi@127.0.0.1:{free_port()}"]) == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_something_else_than_ssh_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def hang_up() -> None:
            client, _ = listener.accept()
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            client.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(ConnectionFailedError, match="no SSH session"), connect(Target("127.0.0.1", "pi", port)):
            pass
        thread.join()


def test_errors_are_two_lines_and_no_traceback(tmp_path: Path) -> None:
    """Also from the libraries below: what they log is caught, and told in our own words."""
    with Line("127.0.0.1", free_port()) as line:  # takes the call, finds nobody, hangs up
        done = subprocess.run(
            [sys.executable, "-m", "quarl.device.deploy", "status", "--target", f"pi@127.0.0.1:{line.port}"],
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(tmp_path)},
            timeout=60,
        )
    assert done.returncode == 1 and done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("error: 127.0.0.1 port") and second.startswith("  next: ")


def test_results_say_what_was_done_and_large_ones_come_whole(connection: Connection) -> None:
    done = connection.run("printf hello")
    assert (done.command, done.exit_status, done.stdout, done.ok) == ("printf hello", 0, "hello", True)
    with pytest.raises(RemoteCommandError, match="with status 4"):
        connection.run("echo no such luck >&2; exit 4")
    # Neither stream may block the other: 2 MB each, more than any window.
    script = 'head -c 2000000 /dev/zero | tr "\\0" e >&2; head -c 2000000 /dev/zero | tr "\\0" o'
    done = connection.run(script)
    assert len(done.stdout) == 2_000_000


def test_a_command_that_does_not_end_is_given_up(connection: Connection) -> None:
    with refused(RemoteCommandError, "remote_command", shows=["0.3"]):
        connection.run("sleep 30", timeout=0.3)
    assert connection.run("echo still here").stdout == "still here\n"


def test_a_line_that_breaks_during_a_command(device: TestDevice) -> None:
    with Line(device.host, device.port) as line, device.connect(line.port) as connection:
        process = connection.start("echo up; sleep 30")
        assert process.read_line(10) == b"up"
        line.cut()
        with pytest.raises(ConnectionLostError, match="was lost while"):
            connection.run("echo never")
