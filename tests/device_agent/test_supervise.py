"""policy-agent keeps a loop running, and asks one: killed, hung, too large, on a disk that takes nothing; no Python."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quarl.device.agent.building import FLAGS, agent
from quarl.device.agent.constants import header
from quarl.device.engine import building
from tests.device_deploy.devices import eventually, runs
from tests.namespaces import own

POLICY, PATIENCE_S, STARTS = "p.q", 60.0, 5
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
INHERITED = """
import json
found = [(number, os.path.realpath(f"/proc/self/fd/{number}")) for number in map(int, os.listdir("/proc/self/fd"))]
about = {"found": found, "usec": os.environ["WATCHDOG_USEC"], "blocked": [*signal.pthread_sigmask(0, [])]}
open(sys.argv[1], "w").write(json.dumps(about))
"""


class Kept:
    """A services folder, and the supervisors of a stand-in of a loop there."""

    def __init__(self, home: Path) -> None:
        self.services, self.script = home / "services", home / "loop.py"
        self.services.mkdir(parents=True)
        self.command: tuple[Path, ...] = (agent(platform.machine()),)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: object, watchdog: float = 30.0, memory: int = 1 << 30) -> subprocess.Popen[bytes]:
        """A supervisor of a command."""
        limits = (f"--watchdog={watchdog:g}", f"--memory={memory}")
        words = (*self.command, "supervise", self.services, POLICY, *limits, "--", *command)
        self.started.append(subprocess.Popen([str(word) for word in words], stderr=subprocess.PIPE))
        return self.started[-1]

    def begin(self, more: str = "", beats: bool = True, **limits: Any) -> subprocess.Popen[bytes]:
        """A supervisor of the stand-in."""
        self.script.write_text(LOOP.format(more=more, beats=beats))
        return self.start(sys.executable, self.script, self.services.parent / "note", **limits)

    def told(self) -> dict[str, Any]:
        """What the newest supervisor holds in memory."""
        found: dict[str, Any] = {"state": "", "pid": 0}
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{self.started[-1].pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(path.readlink()).startswith("/memfd:quarl-state"):
                        found = json.loads(path.read_text())
        return found

    def written(self) -> dict[str, Any]:
        """What is in its file."""
        found: dict[str, Any] = json.loads((self.services / f"{POLICY}.state").read_text())
        return found

    def active(self, but: int = 0) -> int:
        """Its loop's process once it is active, another than ``but``."""
        assert eventually(lambda: self.told()["state"] == "active" and self.told()["pid"] != but, PATIENCE_S), (
            self.told()
        )
        return int(self.told()["pid"])

    def end(self) -> None:
        """Leave nothing running."""
        for process in self.started:
            pid = self.told()["pid"]
            process.kill()
            process.communicate()
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    found = Kept(tmp_path / ("long" * 30))  # longer than a socket's address
    yield found
    found.end()


def test_a_loop_ends_with_its_supervisor_however_that_ends(kept: Kept) -> None:
    supervisor = kept.begin()
    loop = kept.active()
    assert kept.written() == kept.told() == {"state": "active", "pid": loop, "restarts": 0, "why": ""}
    assert (kept.services / f"{POLICY}.lock").read_text() == str(supervisor.pid)
    supervisor.kill()
    assert eventually(lambda: not runs(loop), PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both(kept: Kept, number: signal.Signals) -> None:
    supervisor = kept.begin()
    loop = kept.active()
    supervisor.send_signal(number)
    assert supervisor.wait(PATIENCE_S) == 0 and not runs(loop)
    assert kept.written() == {"state": "stopped", "pid": 0, "restarts": 0, "why": "it ended with status -15"}


def test_a_loop_that_does_not_end_is_ended(kept: Kept) -> None:
    supervisor = kept.begin("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    loop = kept.active()
    supervisor.terminate()
    assert supervisor.wait(PATIENCE_S) == 0 and not runs(loop)
    assert kept.written()["why"] == "it ended with status -9"


def test_a_loop_gets_its_descriptors_and_no_others(kept: Kept) -> None:
    with (kept.services / "others").open("w") as others:
        os.set_inheritable(others.fileno(), True)
        words = (*kept.command, "supervise", kept.services, POLICY, "--watchdog=1.5", "--memory=1e9")
        done = subprocess.run([*map(str, words), "--", "true"], capture_output=True, check=False)
        assert done.returncode == 2  # no exponents
        kept.begin(INHERITED, watchdog=1.5)
        kept.active()
    about = json.loads((kept.services.parent / "note").read_text())
    names = [Path(path).name for number, path in about["found"] if number > 2 and not path.startswith("/proc")]
    assert sorted(names) == [f"{POLICY}.loop", "services"]
    assert dict(about["found"])[0] == "/dev/null"
    assert (about["usec"], about["blocked"]) == ("1500000", [])


def test_a_loop_whose_start_opens_files_is_heard_and_holds_its_lock(kept: Kept) -> None:
    """As verify.sh does; csh leaves others open before, which its session waits for."""
    for name, numbers in (("login", "345"), ("launch", "56789")):
        opened = " ".join(f'{number}< "$0"' for number in numbers)
        (kept.services / name).write_text(f'#!/bin/sh\nexec {opened}\nexec "$@"\n')
        (kept.services / name).chmod(0o755)
    kept.script.write_text(LOOP.format(more="", beats=True))
    kept.command = (kept.services / "login", *kept.command)
    supervisor = kept.start(kept.services / "launch", sys.executable, kept.script)
    loop = kept.active()
    assert not [path for path in Path(f"/proc/{supervisor.pid}/fd").iterdir() if path.readlink().name == "login"]
    with (kept.services / f"{POLICY}.loop").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert runs(loop)


AS_ON_NFS = """
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "agent/supervise.h"
int flock(int file, int how)
{
    if ((fcntl(file, F_GETFL) & O_ACCMODE) == O_RDONLY) return errno = EBADF, -1;
    return (int)syscall(SYS_flock, file, how);
}
int write_all(int file, const char *text, size_t n) { return write(file, text, n) == (ssize_t)n; }
int main(int count, char **words) { return supervise(count - 2, words + 2); }
"""


def test_a_loop_is_kept_where_only_what_may_be_written_can_be_locked(kept: Kept) -> None:
    folder = kept.services.parent
    source, program = folder / "nfs.c", folder / "nfs"
    source.write_text(AS_ON_NFS)
    (folder / "constants.h").write_text(header())
    target = ("-target", f"{platform.machine()}-linux-musl", "-static", "-fno-pie", "-no-pie")
    options = (*target, *FLAGS, "-I.", f"-I{folder}", "-Dflock=as_on_nfs")
    sources = ["agent/supervise.c", "agent/text.c", str(source)]
    program.write_bytes(building.compile_with_options(building.HERE, options, sources, platform.machine()))
    program.chmod(0o755)
    kept.command = (program,)
    kept.begin()
    assert kept.active()
    assert subprocess.run(kept.started[0].args, check=False).returncode == 0, "there is one already"


def test_a_loop_that_hangs_is_killed_by_what_it_cannot_take(kept: Kept) -> None:
    kept.begin(beats=False, watchdog=1.0)
    assert eventually(lambda: kept.told().get("restarts", 0) > 0, PATIENCE_S)
    assert "no heartbeat for 1 s" in kept.told()["why"]


def test_a_loop_that_takes_too_much_memory_is_killed(kept: Kept) -> None:
    kept.begin("held = bytearray(1 << 27); held[::4096] = bytes([1]) * len(held[::4096])", memory=1 << 27)
    assert eventually(lambda: "bytes resident" in kept.told().get("why", ""), PATIENCE_S)
    assert kept.told()["why"] == f"more than {1 << 27} bytes resident"


def test_a_loop_that_was_killed_is_started_again(kept: Kept) -> None:
    kept.begin()
    loop = kept.active()
    os.kill(loop, signal.SIGSEGV)
    assert kept.active(loop) and kept.told()["restarts"] == 1
    assert (kept.services / f"{POLICY}.log").read_text() == "begun\n"


def test_it_gives_up_on_a_loop_that_ends_again_and_again(kept: Kept) -> None:
    code = "import sys; print('x' * 70000 + 'why', file=sys.stderr); sys.exit(3)"
    supervisor = kept.start(sys.executable, "-c", code)
    assert supervisor.wait(PATIENCE_S) == 1
    why = f"it ended {STARTS} times within 60 s, the last time: it ended with status 3"
    assert kept.written() == {"state": "failed", "pid": 0, "restarts": STARTS, "why": why}
    log = (kept.services / f"{POLICY}.log").read_text()
    assert len(log) == 4096 and log.endswith("xwhy\n")


def test_it_gives_up_on_a_command_that_is_not_there(kept: Kept) -> None:
    supervisor = kept.start("/there/is/none")
    assert supervisor.wait(PATIENCE_S) == 1
    assert kept.written()["why"].endswith("it could not be started: No such file or directory")
    assert "/there/is/none" in (kept.services / f"{POLICY}.log").read_text()


@pytest.mark.parametrize("status", [0, 1, 2, 75])
def test_a_final_status_is_the_supervisors(kept: Kept, status: int) -> None:
    supervisor = kept.start(sys.executable, "-c", f"raise SystemExit({status})")
    assert supervisor.wait(PATIENCE_S) == status
    why = f"it ended with status {status}"
    assert kept.written() == {"state": "failed", "pid": 0, "restarts": 0, "why": why}


def test_a_second_supervisor_ends_at_once(kept: Kept) -> None:
    kept.begin()
    loop = kept.active()
    second = subprocess.run(kept.started[0].args, capture_output=True, check=False)
    assert (second.returncode, second.stderr) == (0, b"")
    assert kept.active() == loop


def test_a_start_that_the_system_hinders_is_tried_until_it_can_be(kept: Kept) -> None:
    """As long as a loop lives on whose supervisor was killed."""
    supervisor = kept.begin(LIVES_ON)
    loop = kept.active()
    supervisor.kill()
    supervisor.wait()
    kept.begin(LIVES_ON)
    assert eventually(lambda: kept.told().get("restarts", 0) > STARTS, PATIENCE_S)
    assert "it could not be started" in kept.told()["why"] and runs(loop)
    os.kill(loop, signal.SIGKILL)
    assert kept.active(loop)


def test_a_folder_that_is_gone_is_given_up(kept: Kept) -> None:
    supervisor = kept.begin()
    loop = kept.active()
    kept.services.rename(kept.services.with_name("moved"))
    os.kill(loop, signal.SIGKILL)
    moved = kept.active(loop)  # what is open stays so
    for path in (kept.services.with_name("moved")).iterdir():
        path.unlink()
    kept.services.with_name("moved").rmdir()
    os.kill(moved, signal.SIGKILL)
    assert supervisor.wait(PATIENCE_S) == 1
    again = kept.start("true")
    assert again.wait(PATIENCE_S) == 1
    assert again.stderr is not None and again.stderr.read().endswith(b"services: No such file or directory\n")


def serve_on_a_disk_that_takes_nothing(home: Path, fill: Callable[[Path], None]) -> None:
    """Keep a loop, and end it, under a home folder on such a disk."""
    kept = Kept(home)
    supervisor = kept.begin()
    loop = kept.active()
    fill(home)
    before = kept.written()
    os.kill(loop, signal.SIGKILL)
    second = kept.active(loop)
    assert kept.told()["restarts"] == 1
    assert fill is use_up or kept.written() == before
    supervisor.kill()
    supervisor.wait()
    assert eventually(lambda: not runs(second), PATIENCE_S)
    words = [str(word) for word in supervisor.args]  # type: ignore[union-attr]
    kept.started.append(subprocess.Popen(words, stderr=subprocess.PIPE))
    if fill is use_up:  # on the other no socket can be made
        third = kept.active(second)
        assert runs(third)
    else:
        assert eventually(lambda: kept.told().get("restarts", 0) > STARTS, PATIENCE_S)
        subprocess.run(["mount", "-o", "remount,rw", home], check=True)
        third = kept.active(second)
    kept.started[-1].terminate()
    assert kept.started[-1].wait(PATIENCE_S) == 0 and not runs(third)


def use_up(home: Path) -> None:
    with contextlib.suppress(OSError), (home / "filler").open("wb", buffering=0) as filler:
        for size in (65536, 1):
            with contextlib.suppress(OSError):
                while filler.write(bytes(size)):
                    pass


def forbid(home: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", home], check=True)


@pytest.mark.parametrize("fill", [use_up, forbid], ids=["full", "read-only"])
def test_a_disk_that_takes_nothing_stops_no_robot(tmp_path: Path, fill: Callable[[Path], None]) -> None:
    called = f"serve_on_a_disk_that_takes_nothing(Path({str(tmp_path)!r}), {fill.__name__})"
    mount = f'mount -t tmpfs -o size=1m tmpfs "{tmp_path}" && exec "$@"'
    code = f"from pathlib import Path; from {__name__} import *; {called}"
    agent(platform.machine())
    subprocess.run([*own("mount"), "sh", "-c", mount, "sh", sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "words",
    [
        ["supervise"],
        ["supervise", "/tmp", "p", "--watchdog=1", "--memory=1"],
        ["supervise", "/tmp", "p", "--watchdog=1", "--memory=1", "--"],
        ["supervise", "/tmp", "p", "--watchdog=1", "--", "true", "--memory=1"],
        ["supervise", "/tmp", "p", "--watchdog=0", "--memory=1", "--", "true"],
        ["supervise", "/tmp", "p", "--watchdog=", "--memory=1", "--", "true"],
        ["supervise", "/tmp", "p", "--watchdog=nan", "--memory=1", "--", "true"],
        ["supervise", "/tmp", "a/b", "--watchdog=1", "--memory=1", "--", "true"],
        ["supervise", "/tmp", "p" * 65, "--watchdog=1", "--memory=1", "--", "true"],
        ["supervise", "/tmp", "p", "--watchdog=1", "--memory=1", "--more=1", "--", "true"],
        ["ask"],
        ["ask", "/tmp/socket"],
        ["ask", "/tmp/socket", "{}", "{}"],
    ],
)
def test_wrong_usage_gets_one_line(words: list[str]) -> None:
    done = subprocess.run([agent(platform.machine()), *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"usage: policy-agent {words[0]} ")


@contextlib.contextmanager
def listening(path: Path, reply: bytes | None) -> Iterator[list[bytes]]:
    """Somebody who listens at a path and replies once; with None, hangs up. Gives what was asked."""
    asked: list[bytes] = []
    folder = os.open(path.parent, os.O_PATH)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)
    listener.listen()

    def serve() -> None:
        connection = listener.accept()[0]
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with connection:
            asked.append(connection.recv(4096))
            if reply is not None:
                connection.send(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield asked
    thread.join(PATIENCE_S)
    listener.close()


def ask(path: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    words = (agent(platform.machine()), "ask", path, '{"op": "loop"}')
    return subprocess.run([str(word) for word in words], capture_output=True, check=False, cwd=cwd)


@pytest.mark.parametrize("reply", [b'{"ok": true}', b'{"ok": true}\n', b"x" * 150_000], ids=["plain", "line", "long"])
def test_a_reply_is_printed_as_a_line(tmp_path: Path, reply: bytes) -> None:
    path = tmp_path.joinpath(*["long" * 20] * 4, "p.sock")
    path.parent.mkdir(parents=True)
    with listening(path, reply) as asked:
        done = ask(path)
    assert (done.returncode, done.stdout, done.stderr) == (0, reply.rstrip(b"\n") + b"\n", b"")
    assert asked == [b'{"op": "loop"}']


def test_a_path_may_be_a_name(tmp_path: Path) -> None:
    with listening(tmp_path / "p.sock", b"{}"):
        assert ask("p.sock", cwd=tmp_path).stdout == b"{}\n"


def test_who_gets_no_reply_is_told_why(tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    with listening(path, None):
        assert_told(path, "it does not reply")
    assert_told(path, "Connection refused")
    assert_told(tmp_path / "no" / "such", "No such file or directory")
    assert_told(tmp_path / ("n" * 200), "Filename too long")
    with listening(path.with_name("large"), b"x" * 262_145):
        assert_told(path.with_name("large"), "the reply is too long")


def assert_told(path: Path, why: str) -> None:
    done = ask(path)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", f"policy-agent: {path}: {why}\n".encode())
