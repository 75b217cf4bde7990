"""What can be wrong with a device of the embedded fleet; kept in a file of its folder until it is healed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from quarl.policy.files import write_atomically

FAULT_FILE = "fault.json"


class FaultKind(StrEnum):
    """What is wrong."""

    UNREACHABLE = "unreachable"
    """A connection is reset at once, as by a device that is off behind a router that says so."""
    SILENT = "silent"
    """A connection is taken and never answered."""
    SLOW = "slow"
    """Every new connection passes ``bytes_per_s`` in each direction, each byte ``delay_s`` late."""
    OTHER_KEY = "other-key"
    """It shows another host key than the one on record."""
    DIES_IN_SWITCH = "dies-in-switch"
    """It loses its power when it is told to switch to another release, and is unreachable from then on."""
    FULL = "full"
    """Its disk is full but for 64 kB; only of a device that was started with a small disk."""


class When(StrEnum):
    """When a device dies that dies in the switch."""

    BEFORE = "before"
    """The request does not reach it."""
    AFTER = "after"
    """It has switched; the reply does not leave it."""


@dataclass(frozen=True)
class Fault:
    """One fault of a device.

    Raises:
        ValueError: a slow line needs a speed above 0 and no negative delay.
    """

    kind: FaultKind
    bytes_per_s: float = 1e6
    delay_s: float = 0.0
    when: When = When.BEFORE

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or not self.delay_s >= 0:
            raise ValueError(
                f"A line of {self.bytes_per_s} bytes/s with a delay of {self.delay_s} s cannot be: "
                "allowed are bytes_per_s above 0 and delay_s from 0."
            )

    @classmethod
    def slow(cls, bytes_per_s: float, delay_s: float = 0.0) -> Fault:
        """A slow line."""
        return cls(FaultKind.SLOW, bytes_per_s=bytes_per_s, delay_s=delay_s)

    @classmethod
    def dies_in_switch(cls, when: When) -> Fault:
        """A loss of power in the switch."""
        return cls(FaultKind.DIES_IN_SWITCH, when=when)


def read_fault(folder: Path) -> Fault | None:
    """The fault of the device with that folder.

    Raises:
        ValueError: its file holds something else.
    """
    try:
        data = json.loads((folder / FAULT_FILE).read_bytes())
    except FileNotFoundError:
        return None
    try:
        return Fault(FaultKind(data["kind"]), data["bytes_per_s"], data["delay_s"], When(data["when"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / FAULT_FILE} holds no fault: {error!r}") from None


def write_fault(folder: Path, fault: Fault) -> None:
    """Give a device a fault, in place of the one it has; it counts from the next connection on."""
    data = {"kind": fault.kind, "bytes_per_s": fault.bytes_per_s, "delay_s": fault.delay_s, "when": fault.when}
    write_atomically(folder / FAULT_FILE, json.dumps(data).encode() + b"\n")


def remove_fault(folder: Path) -> None:
    """Heal a device."""
    (folder / FAULT_FILE).unlink(missing_ok=True)
