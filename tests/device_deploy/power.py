"""A device whose power is cut at its N-th change of the disk, without SSH in between: its shells run here.

The programs by which a device changes its disk are counted; at the N-th everything dies. What no ``sync`` had brought
onto the disk by then is dropped: all of it, or the content of files alone, whose names a journal may have kept (ext4).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import paramiko

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.ssh_config import Endpoint
from quarl.device.deploy.target import Target
from tests.device_deploy.devices import holders

CHANGES = ("mv", "rm", "ln", "tar", "sync")
COUNTED = """#!/bin/sh
[ ! -e {dead} ] || exit 1
number=$(($(cat {count} 2> /dev/null || echo 0) + 1))
echo "$number" > {count}
if [ "$number" = "$(cat {cut} 2> /dev/null)" ]; then : > {dead}; kill -KILL 0; fi
"""


class _Channel:
    """What RemoteProcess needs of paramiko's channel, over a process of this machine."""

    def __init__(self, device: Device) -> None:
        self._device, self._timeout = device, None
        self.status_event, self.exit_status = threading.Event(), -1

    def settimeout(self, timeout: float) -> None: ...

    def exec_command(self, command: str) -> None:
        self._process = self._device.started(command)
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        self.exit_status = max(-1, self._process.wait())
        self.status_event.set()

    def recv(self, count: int) -> bytes:
        assert self._process.stdout is not None
        return os.read(self._process.stdout.fileno(), count)

    def recv_stderr(self, count: int) -> bytes:
        assert self._process.stderr is not None
        return os.read(self._process.stderr.fileno(), count)

    def sendall(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def shutdown_write(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def get_transport(self) -> Device:
        return self._device

    def close(self) -> None:
        self.shutdown_write()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)


class Device:
    """A device under a folder of its own; for a Connection it is the transport."""

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.durable, self._bin = root, root / "home", root / "durable", root / "bin"
        self._dead, self._count, self._cut = (root / name for name in ("dead", "count", "cut"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self.home.mkdir(parents=True)
        self._bin.mkdir()
        for name in CHANGES:
            body = COUNTED.format(dead=self._dead, count=self._count, cut=self._cut)
            if name == "sync":
                fresh = f"rm -rf {self.durable}.new; cp -a {self.home} {self.durable}.new"
                body += f"PATH=/usr/bin:/bin; rm -rf {self.durable}; {fresh}; mv {self.durable}.new {self.durable}\n"
            else:
                body += f'exec {shlex.quote(shutil.which(name) or name)} "$@"\n'
            (self._bin / name).write_text(body)
            (self._bin / name).chmod(0o755)
        copy(self.home, self.durable)

    def connect(self) -> Connection:
        """A connection, which needs no network and no login."""
        endpoint = Endpoint(Target("pi"), "pi", 22, "pi", "pi", identities_only=True)
        transport = cast(paramiko.Transport, self)
        return Connection(transport, Target("pi", "pi"), endpoint, "", lambda: contextlib.nullcontext(self.connect()))

    # Of a transport.

    def open_session(self, timeout: float) -> Any:
        if not self.is_active():
            raise EOFError("the power is gone")
        return _Channel(self)

    def is_active(self) -> bool:
        return not self._dead.exists()

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.1", 22

    def close(self) -> None: ...

    def started(self, command: str) -> subprocess.Popen[bytes]:
        environment = {"HOME": str(self.home), "PATH": f"{self._bin}:/usr/bin:/bin", "USER": "pi"}
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.home,
            env=environment,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    # Power.

    @property
    def changes(self) -> int:
        """How often it has changed its disk since the power came."""
        return int(self._count.read_text()) if self._count.exists() else 0

    def power_on(self, cut_at: int | None = None) -> None:
        """Let it work, until its ``cut_at``-th change."""
        for path in (self._dead, self._count, self._cut):
            path.unlink(missing_ok=True)
        if cut_at is not None:
            self._cut.write_text(str(cut_at))

    def power_off(self) -> None:
        self._dead.touch()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()
        for path in (self.home / "quarl" / "services").glob("*.lo*"):
            for pid in holders(path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def copy(self) -> Callable[[str], None]:
        """Return what brings the disk, as it is now, into a state that a power cut may leave."""
        now, durable = self.root / "now", self.root / "durable.then"
        copy(self.home, now)
        copy(self.durable, durable)

        def lose(how: str) -> None:
            copy(durable if how == "everything" else now, self.home)
            if how == "content":
                for path in self.home.rglob("*"):
                    before = durable / path.relative_to(self.home)
                    if path.is_file() and not path.is_symlink() and not _is_same(path, before):
                        path.write_bytes(b"")

        return lose

    def settle(self) -> None:
        copy(self.home, self.durable)


def copy(folder: Path, to: Path) -> None:
    """Copy a folder in the place of another, sockets too."""
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "-a", str(folder), str(to)], check=True)


def _is_same(path: Path, before: Path) -> bool:
    """Whether a file with this content was durable, under this name or the one that it was renamed from."""
    names = [before, before.with_name(f"{before.name}.part")]
    parts = list(before.parts)
    if "releases" in parts:  # a release that was renamed from incoming/
        parts[parts.index("releases")] = "incoming"
        names.append(Path(*parts))
    content = path.read_bytes()
    return any(name.is_file() and not name.is_symlink() and name.read_bytes() == content for name in names)
