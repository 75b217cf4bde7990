"""Keeps a policy's loop running where there is no systemd: ``python3 supervise.py POLICY``, at boot by cron's @reboot.

It does what the unit asks of systemd: starts the loop, hears its heartbeat, kills one that falls silent or takes too
much memory, starts it again, and gives up after several starts in a minute. SIGTERM ends both, SIGHUP starts the loop
anew. What it knows stands in services/POLICY.state. Written there by the helper; only the standard library.
"""

from __future__ import annotations

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


class Supervisor:
    """One policy's loop, kept running."""

    def __init__(self, services: Path, policy: str) -> None:
        self.services, self.policy = services, policy
        self.settings: dict[str, Any] = {}
        self.child: subprocess.Popen[bytes] | None = None
        self.restarts, self.renewals, self.why, self.ended, self.again = 0, 0, "", False, False
        notify = services / f"{policy}.notify"
        notify.unlink(missing_ok=True)
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        folder = os.open(services, os.O_PATH)
        try:
            self.notified.bind(f"/proc/self/fd/{folder}/{notify.name}")
        finally:
            os.close(folder)
        # A path may be too long for a socket's address; through the child's own descriptor it never is.
        self.folder = os.open(services, os.O_PATH)
        os.set_inheritable(self.folder, True)
        self.address = f"/proc/self/fd/{self.folder}/{notify.name}"

    def say(self, state: str) -> None:
        """Write down what holds now, and why the loop ended last."""
        pid = self.child.pid if self.child is not None and state in ("starting", "active") else 0
        text = json.dumps(
            {"state": state, "pid": pid, "restarts": self.restarts, "renewals": self.renewals, "why": self.why}
        )
        part = self.services / f"{self.policy}.state.part"
        part.write_text(text)
        part.replace(self.services / f"{self.policy}.state")

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
            if self.again:
                self.again, starts, self.restarts, self.why = False, [], 0, ""
                self.renewals += 1
            elif not self.ended:
                status = self.child.returncode if self.child is not None else 1
                if status in FINAL:
                    self.say("failed")
                    return status
                self.restarts += 1
                self.say("restarting")
                time.sleep(PAUSE_S)
        self.say("stopped")
        return 0

    def turn(self) -> str:
        """Start the loop and attend to it until it has ended. Returns why it was killed, if it was."""
        self.settings = json.loads((self.services / f"{self.policy}.json").read_text())
        limit = float(self.settings["watchdog_s"])
        heard = {"NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": str(round(1e6 * limit))}
        command = [sys.executable, "-IS", str(self.services / "launch.py"), self.policy]
        with (self.services / f"{self.policy}.log").open("wb") as log:  # of this start alone: it does not grow
            self.child = subprocess.Popen(
                command, env={**os.environ, **heard}, pass_fds=(self.folder,), stdin=subprocess.DEVNULL, stderr=log
            )
        self.say("starting")
        alive, allowed, why = time.monotonic(), START_S, ""
        exited = os.pidfd_open(self.child.pid)
        try:
            while self.child.poll() is None:
                ready, _, _ = select.select([self.notified.fileno(), exited], [], [], min(limit / 4, 0.25))
                if self.notified.fileno() in ready:
                    message = self.notified.recv(4096)
                    alive = time.monotonic()
                    if b"READY=1" in message:
                        allowed = limit
                        self.say("active")
                if self.ended or self.again:
                    self.stop(signal.SIGTERM)
                elif time.monotonic() - alive > allowed:
                    why = f"no heartbeat for {allowed:g} s"
                    self.stop(signal.SIGABRT)
                elif self.resident() > self.settings["memory_bytes"]:
                    why = f"more than {self.settings['memory_bytes']} bytes resident"
                    self.child.kill()
        finally:
            os.close(exited)
        return why or f"it ended with status {self.child.returncode}"

    def resident(self) -> int:
        """Bytes of memory that the loop takes."""
        assert self.child is not None
        try:
            return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            return 0

    def stop(self, number: signal.Signals) -> None:
        """End the loop: by a signal, and if that does not, by force."""
        assert self.child is not None
        self.child.send_signal(number)
        try:
            self.child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def main() -> int:
    """Supervise one policy; a second supervisor of the same ends at once."""
    services, policy = Path(__file__).resolve().parent, sys.argv[1]
    lock = os.open(services / f"{policy}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
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
