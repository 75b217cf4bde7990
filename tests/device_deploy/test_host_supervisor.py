"""Who keeps a loop running without systemd, as the host sees it: found by what it holds, ended, on a full disk."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarl.device.deploy import loops
from quarl.device.deploy.connection import connect
from quarl.device.deploy.deploy import install
from quarl.device.deploy.device import Device, open_device
from quarl.device.deploy.errors import ServiceError
from quarl.device.deploy.loops import Settings
from quarl.device.deploy.payload import Payload, PayloadFile
from quarl.device.deploy.probe import probe
from quarl.device.deploy.records import Record
from quarl.device.deploy.shell import VERIFIER
from quarl.device.deploy.state import TRIAL_LINK
from quarl.device.deploy.switching import begin
from quarl.device.deploy.wheels import WheelSet
from tests.device_deploy.devices import eventually, runs, stand_in_payload
from tests.namespaces import own

POLICY, PATIENCE_S = "p.q", 60.0
LOOP = """
import ctypes, json, os, socket, sys, threading, time
{more}
said = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
path = next(word for word in sys.argv if word.startswith("--socket=")).split("=", 1)[1]
os.chdir(os.path.dirname(path))
if os.path.exists(os.path.basename(path)):
    os.unlink(os.path.basename(path))
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(os.path.basename(path))
listener.listen(8)
def answer():
    while True:
        caller, _ = listener.accept()
        caller.recv(4096)
        counts = {{"missed_per_million": 0.0}}
        caller.send(json.dumps({{"ok": True, "release": "{text}", "counts": counts}}).encode())
threading.Thread(target=answer, daemon=True).start()
said.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
while True:
    try:
        said.sendto(b"WATCHDOG=1", os.environ["NOTIFY_SOCKET"])
    except OSError:
        pass
    time.sleep(0.05)
"""
LIVES_ON = "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)"
SETTINGS = Settings(("--rate=20",), False, None, 30.0, 1 << 30, 0.1, 1e6)


def payload(text: str, more: str = "") -> Payload:
    """A release with a stand-in of a loop, whose answers have the text in the release's place."""
    made = stand_in_payload(POLICY, text)
    starter = next(file for file in made.files if file.path == "run-agent").data.decode()
    code = 'here=$(dirname "$0")\n[ "$1" != loop ] || exec python3 "$here/lib/loop.py" "$@"\n'
    starter = starter.replace("#!/bin/sh\n", f"#!/bin/sh\n{code}")
    files = [file for file in made.files if file.path != "run-agent"]
    files.append(PayloadFile("lib/loop.py", LOOP.format(more=more, text=text).encode()))
    return Payload(POLICY, (*files, PayloadFile("run-agent", starter.encode())), (), made.precisions, made.runtimes)


class Kept:
    """A local device with releases of a stand-in, one of which is served."""

    def __init__(self, root: Path, device: Device) -> None:
        self.home, self.device = root / "home", device
        self.services = self.home / "quarl" / "services"

    def deploy(self, text: str, more: str = "") -> str:
        connection = self.device.connection
        return install(connection, payload(text, more), WheelSet(probe(connection).python, ())).release

    def begin(self) -> Device:
        self.device.discard()
        begin(self.device, POLICY, None, 0.0)
        return self.device

    def serve(self) -> int:
        """Serve it; returns the loop's process."""
        found = loops.serve(self.begin(), SETTINGS, lambda done, total: None)
        self.device.discard()
        return int(found["pid"])

    def state(self) -> tuple[str, int]:
        found = loops.serving(self.device, POLICY)
        return found["state"], found["pid"]

    def supervisor(self) -> int:
        return int((self.services / f"{POLICY}.lock").read_text())

    def unserve(self) -> bool:
        was_served = loops.unserve(self.begin())
        self.device.discard()
        return was_served


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with connect("local", local_folder=tmp_path) as connection, open_device(connection) as device:
        found = Kept(tmp_path, device)
        yield found
        found.unserve()


@pytest.mark.parametrize("more", ["", LIVES_ON], ids=["ends with it", "lives on"])
def test_a_loop_whose_supervisor_was_killed(kept: Kept, more: str) -> None:
    """The kernel ends it, too; one that it does not end is found, and ended or replaced."""
    kept.deploy("one", more)
    loop = kept.serve()
    os.kill(kept.supervisor(), signal.SIGKILL)
    wanted = ("unwatched", loop) if more else ("stopped", 0)
    assert eventually(lambda: kept.state() == wanted, PATIENCE_S)
    assert runs(loop) == bool(more)
    again = kept.serve()
    assert kept.state() == ("active", again) and not runs(loop)
    os.kill(kept.supervisor(), signal.SIGKILL)
    assert kept.unserve()
    assert not runs(again) and not list(kept.services.glob(f"{POLICY}.*"))


def test_what_does_not_end_is_not_said_to_be_ended(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.deploy("one", LIVES_ON)
    loop = kept.serve()
    os.kill(kept.supervisor(), signal.SIGKILL)
    kept.device.run("kill() { :; }; sleep() { :; }")
    with pytest.raises(ServiceError) as caught:
        kept.unserve()
    assert str(loop) in caught.value.message
    kept.device.run("unset -f kill sleep")
    assert (kept.services / f"{POLICY}.settings").exists() and runs(loop)


def test_unserve_leaves_a_policy_whose_name_begins_alike(kept: Kept) -> None:
    kept.deploy("one")
    kept.serve()
    other = kept.services / f"{POLICY}.more.settings"
    other.write_text("argument --rate=1\n")
    assert kept.unserve() and other.exists()


def on_trial(kept: Kept) -> tuple[Path, str, str]:
    """The second release is on trial. Returns the policy's folder and both releases."""
    first, second = kept.deploy("one"), kept.deploy("two")
    folder = kept.home / "quarl" / "policies" / POLICY
    (folder / TRIAL_LINK).symlink_to(f"releases/{first}")
    return folder, first, second


def test_a_start_goes_back_from_a_release_whose_trial_was_cut_off(kept: Kept) -> None:
    """Also where the disk takes nothing; while the trial goes on, who deploys holds the lock."""
    folder, first, second = on_trial(kept)
    (kept.home / "quarl" / "services" / f"{POLICY}.settings").write_text("argument --rate=20\n")

    def started() -> str:
        command = ["sh", "-c", 'mv() { false; }; . "$0"', str(VERIFIER)] if is_full else ["sh", str(VERIFIER)]
        command = [*command, "loop", POLICY]
        environment = {**os.environ, "HOME": str(kept.home), "NOTIFY_SOCKET": str(kept.home / "nobody")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1, done
        return done.stderr

    for is_full in (True, False):
        with (kept.home / "quarl" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert f"releases/{second}/" in started()
        assert f"releases/{first}/" in started()
        assert (folder / "current").readlink().name == (second if is_full else first)
        assert (folder / TRIAL_LINK).is_symlink() is is_full


def test_whoever_takes_the_lock_goes_back_first(kept: Kept) -> None:
    kept.deploy("one")
    loop = kept.serve()
    folder, first, _ = on_trial(kept)
    kept.begin()
    kept.device.discard()
    assert ((folder / "current").readlink().name, (folder / TRIAL_LINK).exists()) == (first, False)
    assert eventually(lambda: kept.state()[0] == "active", PATIENCE_S) and not runs(loop)


def test_a_release_without_the_artifact_that_is_served_is_refused(kept: Kept) -> None:
    settings = Settings(("--precision=int8", "--runtime=native"), False, None, 1.0, 1, 1.0, 1.0)
    loops.require_artifact(kept.device, settings, Record("r", precisions=("int4", "int8"), runtimes=("native",)))
    for precisions, runtimes in ((("int4",), ("native",)), (("int8",), ("litert",))):
        with pytest.raises(ServiceError):
            loops.require_artifact(kept.device, settings, Record("r", precisions=precisions, runtimes=runtimes))


@pytest.mark.parametrize("text", ["", "argument", "enable maybe\n", "\x00\x01", "{}"])
def test_damaged_settings_are_named_and_replaced(kept: Kept, text: str) -> None:
    """They keep nobody from ending the loop, or from serving it again."""
    kept.deploy("one")
    kept.serve()
    (kept.services / f"{POLICY}.settings").write_text(text)
    with pytest.raises(ServiceError) as caught:
        kept.state()
    assert f"services/{POLICY}.settings" in caught.value.message
    assert kept.serve() == kept.state()[1]


def serve_on_a_full_disk(root: Path) -> None:
    """Keep a loop, and end it, under a home folder whose disk is filled to the last byte."""
    with connect("local", local_folder=root) as connection, open_device(connection) as device:
        kept = Kept(root, device)
        kept.deploy("one")
        loop = kept.serve()
        connection.run("cat /dev/zero > filler 2>/dev/null", check=False)
        os.kill(loop, signal.SIGKILL)
        assert eventually(lambda: kept.state()[0] == "active" and kept.state()[1] != loop, PATIENCE_S), kept.state()
        os.kill(kept.supervisor(), signal.SIGKILL)
        assert eventually(lambda: kept.state()[0] == "stopped", PATIENCE_S)
        again = kept.serve()
        assert kept.unserve() and not runs(again)
        assert not list(kept.services.glob(f"{POLICY}.*"))


def test_a_full_disk_stops_no_robot_and_keeps_none_from_being_stopped(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from {__name__} import *; serve_on_a_full_disk(Path({str(tmp_path)!r}))"
    (tmp_path / "home").mkdir()
    mount = f'mount -t tmpfs -o size=12m tmpfs "{tmp_path}/home" && exec "$@"'
    subprocess.run([*own("mount"), "sh", "-c", mount, "sh", sys.executable, "-c", code], check=True)


def test_a_trial_that_the_device_hinders_blames_no_release(kept: Kept) -> None:
    """As where there is no room for the copy that is verified."""
    first = kept.deploy("one")
    kept.serve()
    with pytest.raises(ServiceError):
        kept.deploy("two", "sys.exit(74)")
    with pytest.raises(ServiceError):
        kept.deploy("three", "sys.exit(1)")
    policy = kept.device.read().of(POLICY)
    assert policy.current == first and kept.state()[0] == "active"
    assert [policy.marks[each.release].kind if each.release in policy.marks else "" for each in policy.releases] == [
        "",
        "",
        "bad",
    ]
