"""Who keeps a loop running without systemd: found by what it holds, killed, stopped, on a disk that takes nothing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quarl.device.deploy.on_device import launch, managers, supervise
from quarl.device.deploy.on_device.files import HelperError, holders
from quarl.device.deploy.on_device.helper import Device, answer
from quarl.device.deploy.on_device.managers import Supervised, loops
from quarl.device.deploy.on_device.records import TRIAL_LINK, Record
from quarl.device.deploy.on_device.services import Services
from tests.device_deploy.devices import eventually, runs
from tests.namespaces import own

POLICY, PATIENCE_S = "p.q", 60.0
FAULTS = (errno.ENOSPC, errno.EROFS, errno.EIO)
LOOP = """
import ctypes, os, signal, socket, sys, time
print("begun", file=sys.stderr, flush=True)
{more}
said = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
said.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
while {beats}:
    try:
        said.sendto(b"WATCHDOG=1", os.environ["NOTIFY_SOCKET"])
    except OSError:
        pass
    time.sleep(0.05)
while True:
    time.sleep(1)
"""
LIVES_ON = "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)"
WITHOUT_LOCK = """
os.chdir(os.path.dirname(os.path.abspath(sys.argv[0])) + "/../run")
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("p.q.sock")
listener.listen(64)
for number in range(3, 64):
    if os.path.realpath(f"/proc/self/fd/{number}").endswith("p.q.loop"):
        os.close(number)
"""
"""As a loop that a supervisor of an older version started."""
UNWRITABLE = """
import os, pathlib
def fail(*arguments, **named):
    raise OSError({number}, os.strerror({number}))
pathlib.Path.write_bytes = pathlib.Path.write_text = pathlib.Path.replace = fail
"""


class Kept:
    """A home folder with a stand-in of a loop, and who keeps it."""

    def __init__(self, home: Path) -> None:
        self.home, self.services = home, home / "quarl" / "services"
        for name in ("services", "run"):
            (home / "quarl" / name).mkdir(parents=True)
        self.manager = Supervised(home, POLICY)

    def begin(self, more: str = "", beats: bool = True, before: str = "") -> int:
        """Start it. Returns its process."""
        settings = {"watchdog_s": 1.0 if not beats else 30.0, "memory_bytes": 1 << 30, "enable": False}
        (self.services / f"{POLICY}.json").write_text(json.dumps(settings))
        (self.services / "launch.py").write_text(LOOP.format(more=more, beats=beats))
        head, mark, rest = Path(supervise.__file__).read_text().partition("import contextlib\n")
        (self.services / "supervise.py").write_text(head + before + mark + rest)
        self.manager.restart()
        return self.active()

    def active(self, but: int = 0) -> int:
        """Its process once it is active, another than ``but``."""
        assert eventually(lambda: self.is_active(but), PATIENCE_S), self.manager.state()
        return int(self.manager.state()["pid"])

    def is_active(self, but: int) -> bool:
        state = self.manager.state()
        return state["state"] == "active" and state["pid"] != but

    def supervisor(self) -> int:
        (pid,) = holders(self.services / f"{POLICY}.lock")
        return pid

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        device = Device(self.home)
        try:
            assert answer(device, {"op": "begin", "policy": POLICY, "by": {}})["ok"]
            return answer(device, {"op": op, **fields})
        finally:
            device.discard()


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setattr(managers.Systemd, "is_here", staticmethod(lambda home: False))
    found = Kept(tmp_path)
    yield found
    for find in (lambda: holders(found.services / f"{POLICY}.lock"), lambda: loops(tmp_path, POLICY)):
        with contextlib.suppress(OSError, HelperError):
            for pid in find():
                os.kill(pid, signal.SIGKILL)


def test_a_loop_ends_with_its_supervisor_however_that_ends(kept: Kept) -> None:
    loop = kept.begin()
    assert loops(kept.home, POLICY) == [loop]
    os.kill(kept.supervisor(), signal.SIGKILL)
    assert eventually(lambda: not runs(loop), PATIENCE_S)
    assert (kept.manager.state()["state"], loops(kept.home, POLICY)) == ("stopped", [])


@pytest.mark.parametrize("more", [LIVES_ON, LIVES_ON + WITHOUT_LOCK], ids=["lock", "socket"])
def test_a_loop_whose_supervisor_is_gone_is_found_ended_and_replaced(kept: Kept, more: str) -> None:
    loop = kept.begin(more)
    os.kill(kept.supervisor(), signal.SIGKILL)
    assert eventually(lambda: kept.manager.state()["state"] == "unwatched", PATIENCE_S)
    assert (kept.manager.state()["pid"], runs(loop)) == (loop, True)
    assert kept.ask("unserve") == {"was_served": True, "ok": True}
    assert not runs(loop)
    assert not list(kept.services.glob(f"{POLICY}.*"))
    again = kept.begin(LIVES_ON)
    os.kill(kept.supervisor(), signal.SIGKILL)
    kept.manager.restart()
    assert kept.active(again) and not runs(again)


def test_what_does_not_end_is_not_said_to_be_ended(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = kept.begin(LIVES_ON)
    os.kill(kept.supervisor(), signal.SIGKILL)
    monkeypatch.setattr(managers, "_send", lambda number, pids: None)
    monkeypatch.setattr(managers, "wait", lambda holds, seconds=0.0: holds())
    reply = kept.ask("unserve")
    assert (reply["ok"], reply["error"]["code"]) == (False, "service")
    assert (kept.services / f"{POLICY}.json").exists() and runs(loop)


def test_unserve_leaves_a_policy_whose_name_begins_alike(kept: Kept) -> None:
    kept.begin()
    other = kept.services / f"{POLICY}.more.json"
    other.write_text("{}")
    assert kept.ask("unserve")["ok"] and other.exists()


def test_a_loop_that_hangs_is_killed_by_what_it_cannot_take(kept: Kept) -> None:
    """As one that is stopped, to which SIGABRT does not come."""
    note = kept.home / "note"
    kept.begin(
        f"signal.signal(signal.SIGABRT, lambda *_: open({str(note)!r}, 'w').close())\nsignal.alarm(0)", beats=False
    )
    assert eventually(lambda: kept.manager.state()["restarts"] > 0, PATIENCE_S)
    assert not note.exists()
    assert "no heartbeat" in kept.manager.state()["why"]


@pytest.mark.parametrize("number", FAULTS, ids=errno.errorcode.get)
def test_a_disk_that_takes_nothing_stops_no_robot_and_keeps_none_from_being_stopped(
    kept: Kept, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = kept.begin(before=UNWRITABLE.format(number=number))
    assert not (kept.services / f"{POLICY}.state").exists()
    os.kill(loop, signal.SIGKILL)
    second = kept.active(loop)
    assert kept.manager.state()["restarts"] == 1
    kept.manager.restart()
    third = kept.active(second)
    assert kept.manager.state()["renewals"] == 1

    def fail(*arguments: Any) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("ftruncate", "pwrite", "write"):
        monkeypatch.setattr(os, name, fail)
    reply = kept.ask("unserve")
    monkeypatch.undo()
    assert reply["ok"] and not runs(third)


def test_a_loop_is_started_again_when_the_system_can_start_no_process(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = supervise.Supervisor(kept.services, POLICY)
    (kept.services / f"{POLICY}.json").write_text(json.dumps({"watchdog_s": 1.0, "memory_bytes": 1 << 30}))
    monkeypatch.setattr(supervise, "PAUSE_S", 0.0)
    tries = 3 * supervise.BURST

    def refuse(*arguments: object, **options: object) -> None:
        supervisor.ended = supervisor.restarts + 1 == tries
        raise OSError(errno.EAGAIN, "no process")

    monkeypatch.setattr(supervise.subprocess, "Popen", refuse)
    assert supervisor.run() == 0  # it does not give up
    assert supervisor.restarts == tries - 1


def test_a_release_starts_whatever_year_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with zipfile.ZipFile(io.BytesIO(launch._archived({"lib/a.py": b"x = 1"}))) as archive:
        assert archive.read("a.py") == b"x = 1"


def releases_on_trial(home: Path) -> tuple[Path, Path]:
    """A policy whose second release is on trial. Returns its folder, and the one of the first release."""
    folder = home / "quarl" / "policies" / POLICY
    for name in ("0001-a", "0002-b"):
        (folder / "releases" / name).mkdir(parents=True)
    (folder / "current").symlink_to("releases/0002-b")
    (folder / TRIAL_LINK).symlink_to("releases/0001-a")
    (home / "quarl" / "lock").touch()
    return folder, folder / "releases" / "0001-a"


def test_a_start_goes_back_from_a_release_whose_trial_was_cut_off(tmp_path: Path) -> None:
    folder, before = releases_on_trial(tmp_path)
    with (tmp_path / "quarl" / "lock").open() as lock:  # the helper tries it
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert launch.serving_folder(tmp_path / "quarl", POLICY).name == "0002-b"
    for _ in range(2):
        assert launch.serving_folder(tmp_path / "quarl", POLICY) == before.resolve()
        assert ((folder / "current").resolve(), (folder / TRIAL_LINK).exists()) == (before.resolve(), False)


def test_a_disk_that_takes_nothing_starts_no_release_whose_trial_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, before = releases_on_trial(tmp_path)
    monkeypatch.setattr(Path, "replace", _raising(OSError(errno.EROFS, "read-only")))
    assert launch.serving_folder(tmp_path / "quarl", POLICY) == before.resolve()


def test_whoever_takes_the_lock_goes_back_first(kept: Kept) -> None:
    folder, before = releases_on_trial(kept.home)
    loop = kept.begin()
    assert kept.ask("discard")["ok"]
    assert ((folder / "current").resolve(), (folder / TRIAL_LINK).exists()) == (before.resolve(), False)
    assert kept.active(loop) and not runs(loop)


def test_a_release_without_the_artifact_that_is_served_is_refused(kept: Kept) -> None:
    settings = {"arguments": ["--precision=int8", "--runtime=native"]}
    (kept.services / f"{POLICY}.json").write_text(json.dumps(settings))
    services = Services(kept.home)
    services.policy = POLICY
    services.require_artifact(Record("r", precisions=("int4", "int8"), runtimes=("native",)))
    for precisions, runtimes in ((("int4",), ("native",)), (("int8",), ("litert",))):
        with pytest.raises(HelperError) as caught:
            services.require_artifact(Record("r", precisions=precisions, runtimes=runtimes))
        assert caught.value.code == "service"
    (kept.services / f"{POLICY}.json").unlink()
    services.require_artifact(Record("r", precisions=("int4",), runtimes=("native",)))


def _raising(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise error

    return fail


def serve_on_a_full_disk(home: Path) -> None:
    """Keep a loop, and end it, under a home folder whose disk is filled to the last byte."""
    managers.Systemd.is_here = staticmethod(lambda home: False)  # type: ignore[method-assign]
    kept = Kept(home)
    loop = kept.begin()
    with contextlib.suppress(OSError), (home / "filler").open("wb", buffering=0) as filler:
        for size in (65536, 1):
            while filler.write(bytes(size)):
                pass
    os.kill(loop, signal.SIGKILL)
    second = kept.active(loop)
    os.kill(kept.supervisor(), signal.SIGKILL)
    assert eventually(lambda: not runs(second), PATIENCE_S)
    kept.manager.restart()
    third = kept.active(second)
    assert kept.ask("unserve")["ok"] and not runs(third)
    assert not list(kept.services.glob(f"{POLICY}.*"))


def test_a_full_disk_stops_no_robot_and_keeps_none_from_being_stopped(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from {__name__} import *; serve_on_a_full_disk(Path({str(tmp_path)!r}))"
    mount = f'mount -t tmpfs -o size=1m tmpfs "{tmp_path}" && exec "$@"'
    subprocess.run([*own("mount"), "sh", "-c", mount, "sh", sys.executable, "-c", code], check=True)
