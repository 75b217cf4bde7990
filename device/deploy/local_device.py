"""``TARGET=local``, the host's side: start the embedded device, know where it listens, end it surely."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quarl.device.deploy.errors import ConnectionFailedError
from quarl.policy.files import write_atomically

LOCAL_HOST_KEY_NAME = "quarl-local-device"  # its port changes with every start, so its host key has a name of its own
HOST_KEY = "host_ed25519"
START_TIMEOUT_S = 120.0  # a busy machine may take half a minute to load the server
STOP_TIMEOUT_S = 12.0


class LocalFolder:
    """The folder of an embedded device.

    Attributes:
        root: the folder.
        home: the device's home folder.
        bin: where the device's python3 is.
        keys: keys and known_hosts.
        client_key_file: the private key that is let in.
        known_hosts_file: the only known_hosts file that counts for this device, unless it is one of a fleet.
    """

    def __init__(self, root: Path, shared: Path | None = None) -> None:
        """Create a device's folder.

        Args:
            root: the folder.
            shared: where ``bin`` and the client's key are, when several devices share them; default ``root``.
        """
        shared = root if shared is None else shared
        self.root = root
        self.home, self.bin, self.keys = root / "home", shared / "bin", root / "keys"
        self.client_key_file, self.known_hosts_file = shared / "keys" / "client_ed25519", self.keys / "known_hosts"


@dataclass(frozen=True)
class LocalDevice:
    """A running embedded device."""

    folder: LocalFolder
    host: str
    port: int
    pid: int


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_programs(folder: Path) -> None:
    """Write ``folder/python3``, which starts the interpreter that this project runs on, and what a device has besides.

    The interpreter itself, not the virtual environment's: a device has none of the host's packages. A device has
    ssh-keygen with its sshd; where this machine has none, ``folder/ssh-keygen`` stands in for it.
    """
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    programs = {"python3": shlex.quote(interpreter)}
    if shutil.which("ssh-keygen") is None:
        programs["ssh-keygen"] = f"{shlex.quote(sys.executable)} -P -m quarl.device.deploy.signing.sshsig"
    for name, command in programs.items():
        script, file = f'#!/bin/sh\nexec {command} "$@"\n', folder / name
        if not file.exists() or file.read_text() != script:
            write_atomically(file, script.encode(), mode=0o755)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server: first by closing its input, so that it ends its own children, then by force."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    for end in (None, process.terminate, process.kill):
        if end is not None:
            end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
            break
    process.stdout.close()


@contextlib.contextmanager
def running_local_device(root: Path, *, command_prefix: Sequence[str] = ()) -> Iterator[LocalDevice]:
    """Start the embedded device of ``root`` and end it, with all that runs on it, at the end of the block.

    Two at once on the same folder are one device with two doors: same home, same keys, different ports.

    Args:
        root: its folder, made when missing.
        command_prefix: put before the server's command (a test starts it in a mount namespace of its own).

    Raises:
        ConnectionFailedError: it did not start.
    """
    root = root.resolve()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    errors = root / "server.err"
    with errors.open("wb") as stderr:
        # A session of its own: Ctrl-C reaches this command first, which then ends the server in good order.
        process = subprocess.Popen(
            [*command_prefix, sys.executable, "-m", "quarl.device.deploy.local_server", "--root", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    assert process.stdout is not None
    too_long = threading.Timer(START_TIMEOUT_S, os.killpg, (process.pid, signal.SIGKILL))
    too_long.daemon = True  # Ctrl-C twice may leave it behind
    try:
        too_long.start()
        line = process.stdout.readline()
        too_long.cancel()
        try:
            reply = json.loads(line)
        except ValueError:
            tail = errors.read_text(errors="replace").strip().splitlines()[-3:]
            raise ConnectionFailedError(
                f"The embedded device in {root} did not start: {' / '.join(tail) or 'it printed nothing'}.",
                f"Look at {errors}; to set the device up again, remove {root}.",
            ) from None
        yield LocalDevice(LocalFolder(root), reply["host"], reply["port"], reply["pid"])
    finally:
        too_long.cancel()
        _stop(process)
