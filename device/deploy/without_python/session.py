"""The helper's stand-in for a device without Python: requests in, replies out, as if a process answered there."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import paramiko

from quarl.device.deploy.connection import Connection
from quarl.device.deploy.errors import HostError
from quarl.device.deploy.on_device.helper import answer
from quarl.device.deploy.text import printable_reply
from quarl.device.deploy.without_python.device import BareDevice


class ShellHelper:
    """Answers a ``HelperSession`` as a helper's process does; every request is a few commands over SSH and SFTP."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._folder = Path(tempfile.mkdtemp(prefix="quarl-mirror-")).resolve()
        try:
            self._device = BareDevice(connection, self._folder / "home")
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def ask(
        self, request: Mapping[str, Any], timeout: float, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        """The reply to one request. What it changed is on the device by then.

        Raises:
            ConnectionLostError: the connection ended meanwhile.
        """
        op = str(request.get("op"))
        try:
            reply = answer(self._device, dict(request))
            if reply["ok"]:
                try:
                    self._device.mirror.push()
                except OSError as error:
                    reply = {"ok": False, "error": {"code": "os", "message": f"the device did not take it: {error}"}}
            if not reply["ok"]:
                self._device.pull()  # what was begun in the mirror alone is forgotten
        except (EOFError, paramiko.SSHException, OSError):
            if self._connection.alive:
                raise
            raise self._connection.lost(f"the device worked on `{op}`") from None
        shown: dict[str, Any] = printable_reply(self._device.as_shown(reply))
        return shown

    def send(self, data: bytes, timeout: float = 30.0) -> None:
        """A heartbeat, which keeps the lock's line in use."""
        self._device.beat()

    def close_input(self) -> None:
        """Remove what was not published, and give the lock back."""
        with contextlib.suppress(HostError, OSError, EOFError, paramiko.SSHException):
            self._device.discard()

    def wait(self, timeout: float) -> int | None:
        """There is no process to wait for."""
        return 0

    def stderr_lines(self, last: int = 200) -> list[str]:
        """There is none that writes any."""
        return []

    def close(self) -> None:
        """Forget the mirror."""
        shutil.rmtree(self._folder, ignore_errors=True)
