"""The loop's socket: who is connected, which of them is the controller, and what they have sent.

No call here blocks. A client that never reads loses its frames, and they are counted; a client that sends more than
can be read in a period has its newest observation used, and its connection is read on in the next one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
from collections.abc import Callable
from pathlib import Path

from quarl.device.agent.loop.addresses import short_address
from quarl.device.agent.loop.deciding import Decider
from quarl.device.agent.loop.frames import HEADER, MAGIC, Description, Header, Kind
from quarl.device.agent.protocol import AgentError, ErrorCode

MOST_CONNECTIONS = 8
MOST_PACKETS, MOST_OF_OTHERS = 512, 8
"""Packets of the controller, and of each other connection, that are read in a period; a kernel's buffer holds some 270
small ones."""
MOST_REQUESTS = 16
"""JSON requests that wait for an answer; one is answered in a period."""
JSON_ROOM = 65536
_ECHO, _HELLO = int(Kind.ECHO), int(Kind.HELLO)


def bind(path: Path) -> socket.socket:
    """A listening SEQPACKET socket at this path, which only its owner may connect to.

    Raises:
        AgentError: UNAVAILABLE: another process listens there, or the folder cannot be written.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with short_address(path) as address:
            if _is_listened_to(address):
                raise AgentError(
                    ErrorCode.UNAVAILABLE,
                    f"another loop listens at {path}.",
                    "Stop that one first, or name another --socket.",
                )
            with contextlib.suppress(FileNotFoundError):
                Path(address).unlink()
            before = os.umask(0o177)
            try:
                listener.bind(address)
            finally:
                os.umask(before)
        listener.listen(MOST_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise AgentError(
            ErrorCode.UNAVAILABLE, f"{path}: {error.strerror}.", "Name a --socket in a folder of yours."
        ) from None
    except AgentError:
        listener.close()
        raise
    return listener


def _is_listened_to(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(address) == 0


class Connections:
    """Everyone who is connected.

    Args:
        listener: a socket that listens, non-blocking.
        decider: takes the controller's observations.
        description: what a controller learns.
        release: as frames carry it.

    Attributes:
        controller: where actions go, if there is one.
        requests: the JSON requests that wait for an answer, with who sent them.
        wake_up: what is written to it ends a wait: signals are.
        unread: frames that were not sent, because the client does not read, and requests that were too many.
        malformed: packets that were no frame of this policy.
    """

    def __init__(self, listener: socket.socket, decider: Decider, description: Description, release: int) -> None:
        self._listener, self._decider = listener, decider
        self._hello = Header(Kind.DESCRIPTION, release=release).pack() + description.pack()
        self._clients: dict[int, socket.socket] = {}
        self._inboxes = [decider.inbox(JSON_ROOM) for _ in range(2)]
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._wake, self.wake_up = socket.socketpair()
        self.wake_up.setblocking(False)
        self._poll.register(self._wake, select.POLLIN)
        self.controller: socket.socket | None = None
        self.requests: list[tuple[socket.socket, bytes]] = []
        self.unread = self.malformed = 0

    def wait(self, timeout_ms: float) -> list[tuple[int, int]]:
        """Wait for something to read. Returns what poll returns."""
        return self._poll.poll(timeout_ms)

    def read_all(self) -> bool:
        """Read what everyone has sent. Returns whether an observation was among it; the newest is the decider's."""
        observed = self._read_of(list(self._clients.values()))
        return self._read_of(self._accept()) or observed  # after the others: some of them may have gone

    def _read_of(self, clients: list[socket.socket]) -> bool:
        observed = False
        for client in clients:
            for _ in range(MOST_PACKETS if client is self.controller else MOST_OF_OTHERS):
                found = self.read(client)
                if found is None:
                    break
                observed |= found
        return observed

    def read_ready(self, ready: list[tuple[int, int]], answer: Callable[[], None]) -> None:
        """Read one packet of each connection that :meth:`wait` named; ``answer`` every observation at once."""
        for descriptor, _ in ready:
            client = self._clients.get(descriptor)
            if client is None:
                self._accept()
            elif self.read(client):
                answer()

    def read(self, client: socket.socket) -> bool | None:
        """Read one packet: whether it is an observation; None when there is none, or the client is gone."""
        spare = self._inboxes[0]
        try:
            size = client.recv_into(spare.room)
        except BlockingIOError:
            return None
        except OSError:
            size = 0
        if size == 0:
            self._drop(client)
            return None
        if client is self.controller and HEADER.size <= size < len(spare.room) and self._decider.take(spare, size):
            self._inboxes.reverse()
            return True
        self._read_other(client, memoryview(spare.room)[:size])
        return False

    def _read_other(self, client: socket.socket, packet: memoryview) -> None:
        head = int.from_bytes(packet[:4], "little")
        kind = packet[4] if head == MAGIC and len(packet) >= HEADER.size else 0
        if kind == _ECHO:
            self.send(client, packet)
        elif kind == _HELLO and self.controller in (None, client):
            self.controller = client
            self.send(client, self._hello)
        elif packet[:1] == b"{":
            if len(self.requests) < MOST_REQUESTS:
                self.requests.append((client, bytes(packet)))
            else:
                self.unread += 1
        else:
            self.malformed += 1
            self.refuse(client, self._what_is_wrong(client, kind, len(packet)))

    def _what_is_wrong(self, client: socket.socket, kind: int, size: int) -> AgentError:
        if kind == _HELLO or (kind == Kind.OBSERVATION and client is not self.controller):
            other = self.controller is not None
            return AgentError(
                ErrorCode.UNAVAILABLE if other else ErrorCode.BAD_REQUEST,
                "another controller is connected." if other else "this connection is not the controller's.",
                "End that one first." if other else "Send a HELLO frame before the first observation.",
            )
        values = self._decider.sizes
        return AgentError(
            ErrorCode.BAD_OBSERVATION if kind == Kind.OBSERVATION else ErrorCode.BAD_REQUEST,
            f"a packet of {size} bytes is no frame of this policy; an observation frame has {HEADER.size} bytes and "
            f"{' or '.join(map(str, values))} float32 values.",
            "device/agent/loop/frames.py describes the frames.",
        )

    def send(self, client: socket.socket, packet: bytes | bytearray | memoryview) -> bool:
        """Send one packet; a client that does not read loses it. Returns whether it was sent."""
        try:
            client.send(packet)
        except BlockingIOError:
            self.unread += 1
            return False
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                self.unread += 1
            else:
                self._drop(client)
            return False
        return True

    def refuse(self, client: socket.socket, error: AgentError) -> None:
        """Answer a packet with an error, in JSON."""
        self.send(client, json.dumps({"ok": False, "op": None, "error": error.to_json()}).encode())

    def _accept(self) -> list[socket.socket]:
        """Let in who waits; returns them."""
        accepted: list[socket.socket] = []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # nobody waits, or this process has no descriptor left
                return accepted
            client.setblocking(False)
            if len(self._clients) >= MOST_CONNECTIONS:
                limit = f"{MOST_CONNECTIONS} connections are open already."
                self.refuse(client, AgentError(ErrorCode.UNAVAILABLE, limit, "Close one first."))
                client.close()
                continue
            self._clients[client.fileno()] = client
            self._poll.register(client, select.POLLIN)
            accepted.append(client)

    def _drop(self, client: socket.socket) -> None:
        if self._clients.pop(client.fileno(), None) is not None:
            self._poll.unregister(client)
            client.close()
            self.requests = [(other, line) for other, line in self.requests if other is not client]
            if client is self.controller:
                self.controller = None

    def close(self) -> None:
        """Close all of them."""
        for client in list(self._clients.values()):
            self._drop(client)
        for each in (self._listener, self._wake, self.wake_up):
            each.close()
