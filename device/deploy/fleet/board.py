"""What each device is doing, on a terminal while it lasts; elsewhere a line for each event."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quarl.device.deploy.fleet.states import State
from quarl.device.deploy.golden import Step
from quarl.device.deploy.text import printable

QUIET = (State.BEGUN, State.SWITCHING)
_GOOD = {State.PROVED: "green", State.UNCHANGED: "green", State.SWITCHED: "cyan", "measured": "green"}
"""Colours of the states that a live table counts; of any other there is a line, in red."""


class Board:
    """Shows who works on what. Safe to use from every thread; silent where neither lines nor a table are wanted."""

    def __init__(self, lines: Console | None = None) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self._doing: dict[str, tuple[str, float]] = {}
        self._title, self._total = "", 0
        self._ended: dict[str, int] = {}

    def phase(self, title: str, devices: int) -> None:
        """Begin a part of the work, on this number of devices."""
        with self._lock:
            self._title, self._total, self._ended = title, devices, {}
        if self._lines is not None and not self._lines.is_terminal:
            self._lines.print(f"{title}: {_devices(devices)}", markup=False, highlight=False, soft_wrap=True)

    def begin(self, device: str) -> None:
        """Begin the work on a device."""
        with self._lock:
            self._doing[device] = "connect", time.monotonic()

    def step(self, device: str, step: Step) -> None:
        """Show what is done on the device now."""
        text = step.name
        if step.unit == "B":
            text += f" {step.done / 1e6:.1f}/{step.total / 1e6:.1f} MB"
        elif step.total:
            text += f" {step.done}/{step.total}"
        with self._lock:
            if device in self._doing:
                self._doing[device] = text, self._doing[device][1]

    def end(self, device: str) -> None:
        """End the work on a device."""
        with self._lock:
            self._doing.pop(device, None)

    def event(self, event: Mapping[str, Any]) -> None:
        """Something happened to a device: a line of the journal."""
        state = event.get("state")
        if "device" not in event or state in QUIET or self._lines is None:
            return
        with self._lock:
            self._ended[str(state)] = self._ended.get(str(state), 0) + 1
        if not self._lines.is_terminal or state not in _GOOD:
            line = Text(event_text(event), style=_GOOD.get(str(state), "red") if self._lines.is_terminal else "")
            self._lines.print(line, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print lines above what is shown."""
        if self._lines is not None:
            self._lines.print(Text(text), soft_wrap=True)

    def __rich__(self) -> Group:
        with self._lock:
            doing, ended, title, total = dict(self._doing), dict(self._ended), self._title, self._total
        counts = ", ".join(f"{count} {state}" for state, count in ended.items())
        table = Table.grid(padding=(0, 2))
        now = time.monotonic()
        for device, (text, begun) in sorted(doing.items(), key=lambda each: each[1][1]):
            table.add_row(printable(device), printable(text), f"{now - begun:.0f} s")
        return Group(Text(": ".join(filter(None, (f"{title} · {_devices(total)}", counts)))), table)


def _devices(count: int) -> str:
    return f"{count} {'device' if count == 1 else 'devices'}"


def event_text(event: Mapping[str, Any]) -> str:
    """Return an event of a device in one line."""
    words = [f"{event['device']}: {event['state']}"]
    if release := event.get("release"):
        words.append(f"release {release}")
    if previous := event.get("previous"):
        words.append(f"(before: {previous})")
    if sent := event.get("sent_bytes"):
        words.append(f"{sent / 1e6:.1f} MB sent")
    if seconds := event.get("seconds"):
        words.append(f"in {seconds:.1f} s")
    sentences = [str(sentence) for sentence in (event.get("error"), *event.get("warnings", ())) if sentence]
    return printable(". ".join([" ".join(words), *sentences]))


@contextlib.contextmanager
def open_board(enabled: bool) -> Iterator[Board]:
    """Open a board on standard error: a live table on a terminal, lines elsewhere; silent unless enabled."""
    if not enabled:
        yield Board()
        return
    console = Console(file=sys.stderr)
    board = Board(console)
    if not console.is_terminal:
        yield board
        return
    with Live(board, console=console, refresh_per_second=4, transient=True, redirect_stdout=False):
        yield board
