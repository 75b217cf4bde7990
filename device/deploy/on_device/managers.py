"""Who keeps a policy's loop running on the device: systemd's user manager, or where there is none a supervisor of ours.

Sent to the device as text together with ``helper.py``; only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quarl.device.deploy.on_device.files import HelperError, entries, holders, remove, runs, what_is

_COMMAND_S = 150.0
_STOP_S, _BEGUN_S = 15.0, 60.0
_STATE = "quarl-state"  # as supervise.py names it
_NO_STATE: dict[str, Any] = {"state": "stopped", "pid": 0, "restarts": 0, "renewals": 0, "why": ""}
UNIT = """\
# Written by quarl serve; unserve removes it.
[Unit]
Description=Policy {policy} in the robot's loop
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
ExecStart={python} -IS {services}/launch.py {policy}
Restart=always
RestartSec=0.5
# One that is stopped or hangs takes no other signal.
WatchdogSignal=SIGKILL
# Refused, wrong usage, --on-miss stop: starting it again would not help.
RestartPreventExitStatus=1 2 75
TimeoutStartSec=120
WatchdogSec={watchdog_s:g}
MemoryMax={memory_bytes}
# What is swapped out is late.
MemorySwapMax=0
# As far as the user manager's own limits allow, which root sets: device/agent/loop/real_time.py.
LimitRTPRIO=99
LimitMEMLOCK=infinity
{affinity}
[Install]
WantedBy=default.target
"""


def run(*command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command of the device's, whatever its status; with status 127 where there is none."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")}
    try:
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, timeout=_COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def is_users_home(home: Path) -> bool:
    """Whether a home folder is the one that a boot knows, not a stand-in of a local device."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir).resolve() == home.resolve()


def wait(holds: Callable[[], bool], seconds: float = _STOP_S) -> bool:
    """Wait until something holds; whether it does."""
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


def _send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _end(number: signal.Signals, pids: list[int]) -> None:
    _send(number, pids)
    wait(lambda: not any(map(runs, pids)))


def end(what: str, find: Callable[[], list[int]]) -> None:
    """End processes, by SIGTERM and if that does not by SIGKILL.

    Raises:
        HelperError: ``service``: one is left.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        _end(number, find())
    if left := find():
        numbers = ", ".join(map(str, left))
        raise HelperError(
            "service", f"{what} does not end: process {numbers}", next=f"On the device: kill -9 {numbers}; then again."
        )


def loops(home: Path, policy: str) -> list[int]:
    """The processes of a policy's loop, whoever started them: what inherited its lock, or else listens at its socket.

    Raises:
        HelperError: ``service``: somebody listens, and who cannot be known.
    """
    quarl = home / "quarl"
    return holders(quarl / "services" / f"{policy}.loop") or _listener(quarl / "run" / f"{policy}.sock")


def _listener(path: Path) -> list[int]:
    try:
        folder = os.open(path.parent, os.O_PATH)
    except OSError:
        return []
    pid = 0
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
            probe.connect(f"/proc/self/fd/{folder}/{path.name}")
            pid = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    except BlockingIOError:  # it lets nobody in, and so many wait already that its process is not named
        pass
    except OSError:
        return []
    finally:
        os.close(folder)
    if pid <= 0:
        raise HelperError(
            "service",
            f"a process that cannot be named listens at {path}",
            next=f"On the device: `ss -xlp | grep {path.name}` names it; end it, then again.",
        )
    return [pid]


class Systemd:
    """A unit of the user's own manager."""

    name = "systemd"

    def __init__(self, home: Path, policy: str) -> None:
        self.home, self.policy, self.unit = home, policy, f"quarl-{policy}.service"
        self.file = home / ".config" / "systemd" / "user" / self.unit

    @staticmethod
    def is_here(home: Path) -> bool:
        """Whether a user manager answers that has this home."""
        done = run("systemctl", "--user", "show-environment")
        return done.returncode == 0 and f"HOME={home}" in done.stdout.splitlines()

    def install(self, settings: dict[str, Any]) -> None:
        """Write the unit, and have it started at boot where that is asked for."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        core = settings.get("core")
        self.file.write_text(
            UNIT.format(
                policy=self.policy,
                python=sys.executable,
                services="%h/quarl/services",
                watchdog_s=settings["watchdog_s"],
                memory_bytes=settings["memory_bytes"],
                affinity="" if core is None else f"CPUAffinity={core}\n",
            )
        )
        self._control("daemon-reload")
        self._control("enable" if settings["enable"] else "disable", self.unit)
        if settings["enable"]:
            user = pwd.getpwuid(os.getuid()).pw_name
            if not Path(f"/var/lib/systemd/linger/{user}").exists():
                done = run("loginctl", "enable-linger", user)
                if done.returncode != 0:
                    raise HelperError(
                        "service",
                        f"the user's services do not start at boot, and it may not be changed: {done.stderr.strip()}",
                        next=f"On the device, as root: loginctl enable-linger {user}",
                    )

    def warnings(self) -> list[str]:
        """What the unit asks for and this machine does not do."""
        controllers = Path("/sys/fs/cgroup/cgroup.controllers")
        if controllers.is_file() and "memory" in controllers.read_text().split():
            return []
        return [
            "its memory is not limited, since this kernel was started without the memory controller; add "
            "cgroup_enable=memory to /boot/firmware/cmdline.txt and reboot"
        ]

    def restart(self) -> None:
        """Start it, or start it anew; whether it has become active is seen in its state."""
        run("systemctl", "--user", "reset-failed", self.unit)
        run("systemctl", "--user", "restart", self.unit)  # waits until it is ready or has failed

    def state(self) -> dict[str, Any]:
        """``state`` (starting, active, failed, stopped, unwatched), ``pid``, ``restarts`` and ``why``."""
        names = ("ActiveState", "SubState", "MainPID", "NRestarts", "Result")
        done = run("systemctl", "--user", "show", self.unit, *(f"--property={name}" for name in names))
        found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        states = {"active": "active", "failed": "failed", "inactive": "stopped"}
        result = found.get("Result", "")
        return {
            "state": states.get(found.get("ActiveState", ""), "starting"),
            "pid": int(found.get("MainPID") or 0),
            "restarts": int(found.get("NRestarts") or 0),
            "why": "" if result == "success" else result,
        }

    def log(self) -> str:
        """The last lines that it wrote."""
        return run("journalctl", "--user", f"--unit={self.unit}", "--lines=8", "--output=cat", "--no-pager").stdout

    def remove(self) -> None:
        """Stop it, and forget it."""
        # First of all, and by itself: `disable --now` stops nothing on a disk that takes no changes.
        run("systemctl", "--user", "stop", self.unit)
        run("systemctl", "--user", "disable", self.unit)
        remove(self.file)
        run("systemctl", "--user", "daemon-reload")
        if what_is(self.file):
            raise HelperError(
                "service",
                f"the loop was ended, but {self.file} cannot be removed, so that it may start again at boot",
                next="Look at the device's disk (`mount`, `dmesg`), then unserve again.",
            )

    def _control(self, *words: str) -> None:
        done = run("systemctl", "--user", *words)
        if done.returncode != 0:
            raise HelperError("service", f"systemctl --user {' '.join(words)} failed: {done.stderr.strip()}")


class Supervised:
    """A process of ours, started at boot by cron."""

    name = "supervisor"

    def __init__(self, home: Path, policy: str) -> None:
        self.home, self.policy = home, policy
        self.services = home / "quarl" / "services"
        self.script = self.services / "supervise.py"
        self.mark = f"# quarl {policy}"

    def install(self, settings: dict[str, Any]) -> None:
        """Have it started at boot where that is asked for."""
        if settings["enable"] and not is_users_home(self.home):
            raise HelperError("service", f"{self.home} is no user's home here, so that nothing in it starts at boot")
        if settings["enable"] or is_users_home(self.home):
            self._at_boot(settings["enable"])

    def warnings(self) -> list[str]:
        """None: the supervisor watches the memory itself."""
        return []

    def _at_boot(self, enable: bool) -> None:
        listed = run("crontab", "-l")
        lines = listed.stdout.splitlines() if listed.returncode == 0 else []
        kept = [line for line in lines if not line.endswith(self.mark)]
        wanted = [f"@reboot exec {sys.executable} -IS {self.script} {self.policy} {self.mark}"] if enable else []
        if kept + wanted == lines:
            return
        done = run("crontab", "-", stdin="".join(f"{line}\n" for line in kept + wanted))
        if done.returncode != 0 and enable:
            raise HelperError(
                "service",
                f"this device has neither systemd nor a crontab to start it at boot: {done.stderr.strip()[:200]}",
                next="Install cron there (apt-get install cron), or serve without --enable.",
            )

    def restart(self) -> None:
        """Start it, or start it anew; what its state says afterwards is of this start, not of the one before."""
        if pids := self._supervisors():
            before = self.state()["renewals"]
            _send(signal.SIGHUP, pids)
            wait(lambda: self.state()["renewals"] > before or not self._supervisors())
            if self._supervisors() and self.state()["renewals"] > before:
                return  # else it was giving up just then, or hangs
            end("the supervisor", self._supervisors)
        end("the loop", lambda: loops(self.home, self.policy))
        remove(self.services / f"{self.policy}.state")
        started = subprocess.Popen(
            [sys.executable, "-IS", str(self.script), self.policy],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        wait(lambda: started.poll() is not None or bool(self._told()), _BEGUN_S)

    def state(self) -> dict[str, Any]:
        """As :meth:`Systemd.state`."""
        found = dict(_NO_STATE)
        with contextlib.suppress(OSError, ValueError):
            found |= json.loads((self.services / f"{self.policy}.state").read_text())
        if self._supervisors():
            if found["state"] == "stopped":  # it has not told yet
                found["state"] = "starting"
            return found | self._told()
        if found["state"] != "failed":  # it was killed, or the power was cut
            found |= {"state": "stopped", "pid": 0}
        if pids := loops(self.home, self.policy):
            why = "its supervisor has ended, so that nobody watches it; serve starts it again, unserve ends it"
            found |= {"state": "unwatched", "pid": pids[0], "why": why}
        return found

    def log(self) -> str:
        """The last lines that it wrote."""
        with contextlib.suppress(OSError):
            return (self.services / f"{self.policy}.log").read_text(errors="replace")[-2000:]
        return ""

    def remove(self) -> None:
        """Stop it, and forget it."""
        end("the supervisor", self._supervisors)
        if is_users_home(self.home):
            self._at_boot(False)

    def _supervisors(self) -> list[int]:
        return holders(self.services / f"{self.policy}.lock")

    def _told(self) -> dict[str, Any]:
        """What the supervisor holds in memory of what it knows; empty where there is none, or an older one."""
        for pid in self._supervisors():
            for path in entries(Path(f"/proc/{pid}/fd")):
                with contextlib.suppress(OSError, ValueError):  # gone meanwhile, or not written yet
                    if str(path.readlink()).startswith(f"/memfd:{_STATE}"):
                        return dict(json.loads(path.read_bytes()))
        return {}


def manager_of(home: Path, policy: str) -> Systemd | Supervised:
    """Who keeps a loop running under this home."""
    return Systemd(home, policy) if Systemd.is_here(home) else Supervised(home, policy)
