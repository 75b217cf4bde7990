"""Whose rollout a device is in: what each writes about itself at the switch, and when that keeps another away."""

from __future__ import annotations

import datetime
import secrets
import socket
import time
from collections.abc import Collection, Mapping
from typing import Any

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.target import user_name

HELD_S = 24 * 3600.0
"""Seconds after which a rollout that never said its end, because its host died, keeps nobody away."""
Mark = Mapping[str, Any]


class DeviceInRolloutError(HostError):
    """A device is in somebody else's rollout."""


class Identity:
    """This rollout, and what it knows of others.

    Attributes:
        rollout: its name, which no other has.
        known: names of rollouts that are over, or that the user takes over.
    """

    def __init__(self, own: Collection[str] = ()) -> None:
        """Name a rollout.

        Args:
            own: rollouts that this journal has begun. It is locked, so that none of them is at work.
        """
        self.rollout, self.host, self.user = secrets.token_hex(6), socket.gethostname(), user_name()
        self._own, self.known = {*own, self.rollout}, set[str]()

    def mark(self) -> dict[str, Any]:
        """Return what is written on a device, with the time by this host's clock: a device may have none."""
        return {"rollout": self.rollout, "host": self.host, "user": self.user, "time": int(time.time())}

    def is_own(self, mark: Mark | None) -> bool:
        """Return whether this host and user wrote it, in this rollout or in one that this one goes on with."""
        if not mark or (mark.get("host"), mark.get("user")) != (self.host, self.user):
            return False
        return str(mark.get("rollout")) in self._own

    def is_at_work(self, mark: Mark | None) -> bool:
        """Return whether somebody else's rollout has to be taken for one that goes on."""
        if not mark or mark.get("ended") or self.is_own(mark):
            return False
        return abs(time.time() - _time(mark)) < HELD_S  # a host's clock in 2099 holds nothing for ever

    def require_free(self, device: str, mark: Mark | None, seen: bool) -> None:
        """See, under the device's lock, that no other rollout has come to it.

        Args:
            device: its target.
            mark: what is written there.
            seen: it was looked at before this rollout began, and another mark came since.

        Raises:
            DeviceInRolloutError: one has.
        """
        if not mark or self.is_own(mark) or str(mark.get("rollout")) in self.known:
            return
        if seen or self.is_at_work(mark):
            raise in_rollout({device: mark})


def in_rollout(marks: Mapping[str, Mark]) -> DeviceInRolloutError:
    """Return the error that names devices and the rollouts they are in; of each rollout its first devices."""
    of: dict[str, list[str]] = {}
    for device, mark in marks.items():
        of.setdefault(describe_mark(mark), []).append(device)
    named = "; ".join(
        f"{', '.join(devices[:6])}{f' and {len(devices) - 6} more' * (len(devices) > 6)}: {who}"
        for who, devices in of.items()
    )
    return DeviceInRolloutError(
        f"{len(marks)} {'device is' if len(marks) == 1 else 'devices are'} in another rollout: {named}. "
        "Nothing was sent there.",
        "Wait until it ends (a rollout that died expires after a day), or add --take-over to replace what it deploys.",
    )


def describe_mark(mark: Mark) -> str:
    """Who rolls out, and since when."""
    since = datetime.datetime.fromtimestamp(_time(mark), datetime.UTC).isoformat(timespec="seconds")
    who = f"{mark.get('user', 'somebody')}@{mark.get('host', 'unknown')}"
    return f"rollout {mark.get('rollout', '?')} of {who}, there since {since}"


def _time(mark: Mark) -> int:
    """Seconds since 1970; 0 for what is no time."""
    begun = mark.get("time")
    return begun if isinstance(begun, int) and 0 <= begun < 2**33 else 0
