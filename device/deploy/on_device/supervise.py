"""Keeps a policy's loop running where there is no systemd: ``python3 supervise.py POLICY``, at boot by cron's @reboot.

It does what the unit asks of systemd: starts the loop, hears its heartbeat, kills one that falls silent or takes too
much memory, starts it again, and gives up after several starts in a minute. SIGTERM ends both, SIGHUP starts the loop
anew; where it is killed itself, the kernel ends the loop. What it knows it holds in memory, for the helper to read in
/proc, and in services/POLICY.state: nothing waits for the disk. Both hold a lock, by which the helper finds them.
Written there by the helper; only the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BURST, WITHIN_S, PAUSE_S, START_S, STOP_S = 5, 60.0, 0.5, 120.0, 5.0
FINAL = (0, 1, 2, 75)
"""Exit statuses after which starting again would not help: ended, refused, wrong usage, --on-miss stop."""
PAGE = os.sysconf("SC_PAGE_SIZE")
STATE = "quarl-state"
"""Name of the file in memory that holds what a supervisor knows."""
MOST_LOG = 4096  # bytes of what the loop wrote last
PR_SET_PDEATHSIG = 1
try:
    import ctypes

    LIBC: Any = ctypes.CDLL(None)
except (ImportError, OSError):  # a small Python: the loop then outlives a supervisor that is killed
    LIBC = None


def end_with(parent: int) -> None:
    """Have the kernel end this process, a child of ``parent``, with it: nobody would watch the loop any more."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)


class Supervisor:
    """One policy's loop, kept running."""

    def __init__(self, services: Path, policy: str) -> None:
        self.services, self.policy = services, policy
        self.settings: dict[str, Any] = {}
        self.child: subprocess.Popen[bytes] | None = None
        self.restarts, self.renewals, self.why, self.ended, self.again = 0, 0, "", False, False
        self.hindered = False
        self.told, self.wrote = os.memfd_create(STATE), b""
        # A path may be too long for a socket's address; through the child's own descriptor it never is.
        self.folder = os.open(services, os.O_PATH)
        os.set_inheritable(self.folder, True)
        self.address = f"/proc/self/fd/{self.folder}/{policy}.notify"
        self.notified: socket.socket | None = None

    def say(self, state: str) -> None:
        """Write down what holds now, and why the loop ended last."""
        pid = self.child.pid if self.child is not None and state in ("starting", "active") else 0
        text = json.dumps(
            {"state": state, "pid": pid, "restarts": self.restarts, "renewals": self.renewals, "why": self.why}
        ).encode()
        with contextlib.suppress(OSError):
            fresh = os.memfd_create(STATE)
            try:
                os.write(fresh, text)
                os.dup2(fresh, self.told, inheritable=False)  # at once: nobody reads half of it
            finally:
                os.close(fresh)
        self.keep("state", text)

    def keep(self, kind: str, content: bytes) -> None:
        """Write one of our files as far as the disk lets us: no robot stops for it."""
        part = self.services / f"{self.policy}.{kind}.part"
        with contextlib.suppress(OSError):
            part.write_bytes(content)
            part.replace(self.services / f"{self.policy}.{kind}")

    def run(self) -> int:
        """Until a signal ends it, or starting again is of no use."""
        starts: list[float] = []
        while not self.ended:
            starts = [moment for moment in starts if time.monotonic() - moment < WITHIN_S]
            if len(starts) >= BURST:
                self.why = f"it ended {BURST} times within {WITHIN_S:g} s, the last time: {self.why}"
                self.say("failed")
                return 1
            starts.append(time.monotonic())
            self.why = self.turn()
            if self.hindered:  # no fault of the loop's: it is tried until it can be
                starts.pop()
            if self.again:
                self.again, starts, self.restarts, self.why = False, [], 0, ""
                self.renewals += 1
            elif not self.ended:
                status = self.child.returncode if self.child is not None else None
                if status is not None and status in FINAL:
                    self.say("failed")
                    return status
                self.restarts += 1
                self.say("restarting")
                time.sleep(PAUSE_S)
        self.say("stopped")
        return 0

    def turn(self) -> str:
        """Start the loop and attend to it until it has ended. Returns why it was killed, if it was."""
        self.child, self.hindered = None, False
        try:
            output = self.start()
            try:
                return self.attend(output)
            finally:
                os.close(output)
        except (OSError, ValueError, KeyError, MemoryError, subprocess.SubprocessError) as error:
            # A disk may come back, memory get free; settings that are not there do not.
            self.hindered = not isinstance(error, (FileNotFoundError, ValueError, KeyError))
            return f"it could not be started: {error!r}"
        finally:
            if self.child is not None and self.child.poll() is None:
                self.child.kill()
                self.child.wait()

    def hear(self) -> None:
        """Open the socket that heartbeats come to, where it is not open yet."""
        if self.notified is not None:
            return
        (self.services / f"{self.policy}.notify").unlink(missing_ok=True)
        notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            notified.bind(self.address)
        except OSError:
            notified.close()
            raise
        self.notified = notified

    def start(self) -> int:
        """Start the loop; it holds the lock on services/POLICY.loop. Returns the pipe that it writes its log to.

        A pipe, since a loop that writes to a full disk itself ends by that.
        """
        try:
            self.settings = json.loads((self.services / f"{self.policy}.json").read_text())
        except (OSError, ValueError):
            if not self.settings:  # else those of the start before hold
                raise
        self.hear()
        limit = float(self.settings["watchdog_s"])
        heard = {"NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": str(round(1e6 * limit))}
        command = [sys.executable, "-IS", str(self.services / "launch.py"), self.policy]
        self.wrote, parent = b"", os.getpid()
        self.keep("log", self.wrote)  # of this start alone
        output, its_end = os.pipe()
        held = -1
        try:
            held = os.open(self.services / f"{self.policy}.loop", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.child = subprocess.Popen(
                command,
                env={**os.environ, **heard},
                pass_fds=(self.folder, held),
                stdin=subprocess.DEVNULL,
                stderr=its_end,
                preexec_fn=lambda: end_with(parent),
            )
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(its_end)
            if held >= 0:
                os.close(held)
        return output

    def attend(self, output: int) -> str:
        """Hear the loop's heartbeat and its log until it has ended. As :meth:`turn`."""
        assert self.child is not None and self.notified is not None
        self.say("starting")
        limit = float(self.settings["watchdog_s"])
        alive, allowed, why = time.monotonic(), START_S, ""
        exited = os.pidfd_open(self.child.pid)
        watched = [self.notified.fileno(), exited, output]
        try:
            while self.child.poll() is None:
                ready, _, _ = select.select(watched, [], [], min(limit / 4, 0.25))
                if output in ready and not self.listen(output):
                    watched.remove(output)
                if self.notified.fileno() in ready:
                    if b"READY=1" in self.notified.recv(4096):
                        allowed = limit
                        self.say("active")
                    alive = time.monotonic()
                if self.ended or self.again:
                    self.stop()
                # Where the disk held us up meanwhile, heartbeats wait to be heard.
                elif time.monotonic() - alive > allowed and not select.select([self.notified], [], [], 0)[0]:
                    why = f"no heartbeat for {allowed:g} s"
                    self.child.kill()  # one that is stopped or hangs takes no other signal
                    self.child.wait()
                elif self.resident() > self.settings["memory_bytes"]:
                    why = f"more than {self.settings['memory_bytes']} bytes resident"
                    self.child.kill()
                    self.child.wait()
        finally:
            os.close(exited)
        if output in watched:
            self.listen(output)
        return why or f"it ended with status {self.child.returncode}"

    def listen(self, output: int) -> bool:
        """Take what the loop wrote; False once it writes no more."""
        os.set_blocking(output, False)
        try:
            block = os.read(output, 65536)
        except BlockingIOError:
            return True
        self.wrote = (self.wrote + block)[-MOST_LOG:]
        self.keep("log", self.wrote)
        return bool(block)

    def resident(self) -> int:
        """Bytes of memory that the loop takes."""
        assert self.child is not None
        try:
            return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            return 0

    def stop(self) -> None:
        """End the loop: by a signal, and if that does not, by force."""
        assert self.child is not None
        self.child.terminate()
        try:
            self.child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def main() -> int:
    """Supervise one policy; a second supervisor of the same ends at once."""
    services, policy = Path(__file__).resolve().parent, sys.argv[1]
    lock = os.open(services / f"{policy}.lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    with contextlib.suppress(OSError):  # for hosts of an older version; ours go by the lock itself
        (services / f"{policy}.lock").write_text(str(os.getpid()))
    supervisor = Supervisor(services, policy)

    def end(number: int, frame: object) -> None:
        supervisor.ended = True

    def renew(number: int, frame: object) -> None:
        supervisor.again = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGHUP, renew)
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
