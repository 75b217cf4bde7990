"""A robot's program speaks with the loop: observations in, actions out. Needs Python alone.

    with Client.connect("~/quarl/run/III.sock") as policy:
        policy.send(observation)
        action = policy.receive(timeout_s=0.1)

The C header beside this module, ``quarl_loop.h``, does the same.
"""

from __future__ import annotations

import json
import select
import socket
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from quarl.device.agent.loop.addresses import short_address
from quarl.device.agent.loop.frames import HEADER, VALUE_BYTES, Description, Flag, Header, Kind

MOST_BYTES = 262_144
CONNECT_TIMEOUT_S = 5.0


class LoopError(Exception):
    """The loop refuses, or is not there."""


@dataclass(frozen=True)
class Action:
    """An action of the loop.

    Attributes:
        index: of a discrete policy's action; -1 of a continuous one.
        outputs: (A,) float32: the logits, or the continuous action.
        flags: what holds of it.
        sequence: of the observation that it was decided from.
        observed_ns, sent_ns: CLOCK_MONOTONIC of that observation and of the action.
        missed: deadlines missed since the loop began.
    """

    index: int
    outputs: array[float]
    flags: Flag
    sequence: int
    observed_ns: int
    sent_ns: int
    missed: int


class Client:
    """The controller's connection to a loop.

    Attributes:
        description: what the loop decides, and how often.
        release: what it serves, as frames carry it.
        socket: the connection, for whoever polls it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self._sequence = connection, 0
        self.socket.send(Header(Kind.HELLO).pack())
        packet = self._packet(CONNECT_TIMEOUT_S)
        header = Header.read(packet)
        if header is None or header.kind is not Kind.DESCRIPTION:
            raise LoopError(_message(packet))
        self.release, self.description = header.release, Description.read(packet)

    @classmethod
    def connect(cls, path: str | Path) -> Client:
        """Connect as the controller.

        Raises:
            LoopError: nothing listens there, or another controller is connected.
        """
        connection = open_socket(path)
        try:
            return cls(connection)
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, observation: Iterable[float], observed_ns: int | None = None, *, start: bool = False) -> int:
        """Send an observation.

        Args:
            observation: raw values in the units of the spec, (observation_size,) or of one period; numpy's at best
                float32.
            observed_ns: when it was made, CLOCK_MONOTONIC; None: now.
            start: an episode begins.

        Returns:
            Its sequence number.

        Raises:
            LoopError: the loop is gone, or does not read.
        """
        values = _float32(observation)
        self._sequence += 1
        now = time.monotonic_ns()
        header = Header(
            Kind.OBSERVATION,
            int(Flag.START) if start else 0,
            len(values) // VALUE_BYTES,
            self._sequence,
            self.release,
            now if observed_ns is None else observed_ns,
            now,
        )
        try:
            self.socket.send(header.pack() + values)
        except OSError as error:
            raise LoopError(f"the observation was not sent: {error.strerror}.") from None
        return self._sequence

    def receive(self, timeout_s: float) -> Action | None:
        """Return the next action, or None when none comes in time.

        Raises:
            LoopError: the loop refuses the observation, or is gone.
        """
        packet = self._packet(timeout_s)
        if not packet:
            return None
        header = Header.read(packet)
        if header is None or header.kind is not Kind.ACTION:
            raise LoopError(_message(packet))
        outputs = array("f", packet[HEADER.size :])
        return Action(
            header.action,
            outputs,
            Flag(header.flags),
            header.sequence,
            header.observed_ns,
            header.sent_ns,
            header.missed,
        )

    def newest(self, timeout_s: float) -> Action | None:
        """Return the newest of the actions that have come, after waiting for the first of them."""
        action = self.receive(timeout_s)
        while action is not None and (later := self.receive(0.0)) is not None:
            action = later
        return action

    def _packet(self, timeout_s: float) -> bytes:
        return receive(self.socket, timeout_s)


def open_socket(path: str | Path) -> socket.socket:
    """Return a connection to the socket at this path, however long the path is.

    Raises:
        LoopError: nothing listens there.
    """
    full_path = Path(path).expanduser()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with short_address(full_path) as address:
            connection.connect(address)
    except OSError as error:
        connection.close()
        raise LoopError(
            f"cannot connect to {full_path}: {error.strerror}. Is the policy being served? quarl serving shows it."
        ) from None
    return connection


def receive(connection: socket.socket, timeout_s: float) -> bytes:
    """Return one packet; empty when none comes in time.

    Raises:
        LoopError: the loop has closed the connection.
    """
    if not select.select([connection], [], [], timeout_s)[0]:
        return b""
    try:
        packet = connection.recv(MOST_BYTES)
    except OSError as error:
        raise LoopError(f"the connection to the loop was lost: {error.strerror}.") from None
    if not packet:
        raise LoopError("the loop has closed the connection.")
    return packet


def request(path: str | Path, timeout_s: float = CONNECT_TIMEOUT_S, **fields: Any) -> dict[str, Any]:
    """Return one JSON request over a connection of its own, e.g. ``request(path, op="loop", reset=True)``.

    Raises:
        LoopError: nothing listens there, no reply came in time, or the loop refuses.
    """
    with open_socket(path) as connection:
        connection.send(json.dumps(fields).encode())
        packet = receive(connection, timeout_s)
    if not packet:
        raise LoopError(f"no reply within {timeout_s:g} s.")
    reply: dict[str, Any] = json.loads(packet)
    if not reply.get("ok"):
        raise LoopError(_message(packet))
    return reply


def _float32(values: Iterable[float]) -> bytes:
    """Values as float32: those of an array of float32, of numpy or the module ``array``, as they lie there."""
    try:
        view: Any = memoryview(values)  # type: ignore[arg-type]
    except TypeError:
        return array("f", values).tobytes()
    bytes_as_they_are: bytes = view.tobytes()
    return bytes_as_they_are if view.format == "f" else array("f", view.cast("B").cast(view.format)).tobytes()


def _message(packet: bytes) -> str:
    try:
        error = json.loads(packet)["error"]
        return f"{error['message']} {error['next']}".strip()
    except (ValueError, KeyError, TypeError):
        return f"no answer but {packet[:60]!r}"
