"""What was done to the devices of a fleet, one JSON line an event, beside its fleet.toml.

The devices themselves say what serves. The journal has what they cannot know: that a release proved itself in its
phase, what served before a switch, and which devices were at work when the host was killed. A line is on the disk
before the next step begins; one that a power cut tore is skipped.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.fleet.inventory import Fleet
from quarl.device.deploy.fleet.states import BROUGHT, CHANGING, State

SUFFIX = ".journal.jsonl"
Event = Mapping[str, Any]


class RolloutAtWorkError(HostError):
    """Another rollout of this fleet is at work on this host."""


def journal_file(fleet: Fleet) -> Path:
    """``fleet.journal.jsonl`` of fleet.toml."""
    return fleet.file.with_name(fleet.file.stem + SUFFIX)


def events(file: Path) -> list[dict[str, Any]]:
    """Return every whole line, oldest first; none where there is no file."""
    entries = []
    with contextlib.suppress(FileNotFoundError), file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    entries.append(event)
    return entries


class Journal:
    """A journal that is being written; several threads may."""

    def __init__(self, descriptor: int, watcher: Callable[[Event], None]) -> None:
        self._descriptor, self._watcher, self._lock = descriptor, watcher, threading.Lock()

    def write(self, **event: Any) -> None:
        """Append an event, on the disk when this returns."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        event = {"time": now, **event}
        with self._lock:
            os.write(self._descriptor, json.dumps(event).encode() + b"\n")
            os.fsync(self._descriptor)
            with contextlib.suppress(BrokenPipeError):  # whoever watched is gone; the devices are not
                self._watcher(event)


@contextlib.contextmanager
def open_journal(fleet: Fleet, watcher: Callable[[Event], None] = lambda event: None) -> Iterator[Journal]:
    """Open the journal of a fleet, locked for this process.

    Args:
        fleet: whose.
        watcher: called with each event, one at a time.

    Raises:
        RolloutAtWorkError: another process has it.
        HostError: it cannot be written.
    """
    file = journal_file(fleet)
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise HostError(
            f"{file} cannot be written: {error.strerror}.",
            "Put fleet.toml into a folder that you can write, and type --fleet FILE.",
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RolloutAtWorkError(
                f"Another rollout or measurement is using {file}.",
                "Wait until it ends; quarl fleet status works meanwhile.",
            ) from None
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")  # end the line that was torn
        yield Journal(descriptor, watcher)
    finally:
        os.close(descriptor)


class Memory:
    """What the journal says of a policy's rollouts on each device; its measurements are no part of it.

    Attributes:
        newest: digests that the newest rollout brought to some device, or found there.
        rollouts: names of those that began.
    """

    def __init__(self, found: list[dict[str, Any]], policy: str) -> None:
        self._of: dict[str, list[dict[str, Any]]] = {}
        self.newest: set[str] = set()
        self.rollouts: set[str] = set()
        for event in found:
            if event.get("policy") != policy:
                continue
            if event.get("event") == "begin" and isinstance(event.get("devices"), list):
                self.newest = set()
                self.rollouts.add(str(event.get("rollout", "")))
                for device in event["devices"]:
                    self._of.setdefault(str(device), []).append({"state": State.NOT_BEGUN})
            elif "phase" in event and isinstance(event.get("device"), str):
                self._of.setdefault(event["device"], []).append(event)
                if event.get("digest"):
                    self.newest.add(str(event["digest"]))

    def last(self, device: str, *states: str) -> dict[str, Any] | None:
        """Return the last event of a device, of these states alone if some are named."""
        events = reversed(self._of.get(device, []))
        return next((event for event in events if not states or event.get("state") in states), None)

    def has_passed_soak(self, device: str, digest: str) -> bool:
        """Return whether this content stood its soak on the device, and nothing was changed there since."""
        last = self.last(device, *CHANGING)
        return last is not None and last.get("state") == State.PROVED and last.get("digest") == digest

    def find_previous_release(self, device: str, release: str) -> str | None:
        """Return the release that served before a rollout brought this one, which was not accepted yet; "": none did.

        None: no rollout brought it, or it was accepted since, so that a failure now is nobody's to take back.
        """
        last = self.last(device, *CHANGING)
        if last is None or last.get("state") not in BROUGHT:
            return None
        switching = self.last(device, State.SWITCHING)
        if switching is None or switching.get("release") != release:
            return None
        return str(switching.get("previous") or "")
