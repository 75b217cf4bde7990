"""systemd's notification protocol: ready, still alive, stopping. Any supervisor that sets NOTIFY_SOCKET hears it."""

from __future__ import annotations

import contextlib
import os
import socket

USUAL_HEARTBEAT_NS = 1_000_000_000


class Notifier:
    """What the service says to its supervisor, if it has one.

    Attributes:
        heartbeat_ns: how often :meth:`alive` is due, ns: a third of the supervisor's limit.
    """

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        limit_us = os.environ.get("WATCHDOG_USEC", "")
        self.heartbeat_ns = int(limit_us) * 1000 // 3 if limit_us.isdigit() else USUAL_HEARTBEAT_NS
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)

    def ready(self, status: str) -> None:
        """The policy is verified and the socket listens."""
        self._say(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """The loop turns."""
        self._say("WATCHDOG=1")

    def stopping(self, status: str) -> None:
        """The loop ends on purpose."""
        self._say(f"STOPPING=1\nSTATUS={status}")

    def _say(self, message: str) -> None:
        if self._address:
            with contextlib.suppress(OSError):  # a supervisor that is gone or busy is no reason to miss a deadline
                self._socket.sendto(message.encode(), self._address)
