"""The switch among what passes between a client and a command, so that a device can die before or after it.

The helper (``device.deploy.on_device.helper``) is spoken to in lines of JSON. Whatever is no such line passes as it
comes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from quarl.device.deploy.local_fleet.faults import Fault, FaultKind, When
from quarl.device.deploy.local_sessions import Traffic

MAX_LINE = 4 << 20  # bytes; a longer line is no request of the helper


def _object(line: bytes) -> dict[str, Any]:
    """The object that a line of JSON holds; an empty one for any other line."""
    try:
        data = json.loads(line) if line.startswith(b"{") else {}
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


class _Lines:
    """Joins pieces to lines where they may be objects of JSON; everything else passes at once."""

    def __init__(self) -> None:
        self._held = b""  # the beginning of a line that may be an object
        self._inside = False  # of a line whose beginning has passed already

    def divide(self, data: bytes) -> list[bytes]:
        """What is complete, line by line; empty data is the end, where nothing is held any more."""
        *lines, rest = (self._held + data).split(b"\n")
        pieces = [line + b"\n" for line in lines]
        begins = bool(pieces) or not self._inside
        if data and begins and rest.startswith(b"{") and len(rest) < MAX_LINE:
            self._held, self._inside = rest, False
            return pieces
        self._held, self._inside = b"", bool(rest) or not begins
        return [*pieces, rest] if rest else pieces


class SwitchTraffic(Traffic):
    """Cuts a device's power when its fault says so and the helper is told to switch."""

    def __init__(self, fault: Callable[[], Fault | None], cut_power: Callable[[], None]) -> None:
        """One command's traffic.

        Args:
            fault: the device's fault now.
            cut_power: kills this command and all others of the device.
        """
        self._fault, self._cut_power = fault, cut_power
        self._requests, self._replies = _Lines(), _Lines()
        self._switches = False  # the request to switch was passed on, and the reply to it is to be withheld
        self._dead = False

    def _die(self) -> None:
        self._dead = True
        self._cut_power()

    def to_command(self, data: bytes) -> bytes:
        """All of it, up to a switch that the device does not live to see."""
        passed = []
        for line in self._requests.divide(data):
            if not self._dead and _object(line).get("op") == "switch":
                fault = self._fault()
                if fault is not None and fault.kind is FaultKind.DIES_IN_SWITCH:
                    if fault.when is When.BEFORE:
                        self._die()
                    self._switches = True
            if not self._dead:
                passed.append(line)
        return b"".join(passed)

    def from_command(self, data: bytes) -> bytes:
        """All of it, up to the reply to a switch that the device does not live to tell."""
        if self._dead:
            return b""
        if not self._switches:
            return data
        passed = []
        for line in self._replies.divide(data):
            if "ok" in _object(line):
                self._die()
                break
            passed.append(line)
        return b"".join(passed)
