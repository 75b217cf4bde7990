"""Tables of a fleet for people, drawn by rich."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quarl.device.deploy.fleet.measuring import Row
from quarl.device.deploy.fleet.result import Result
from quarl.device.deploy.fleet.states import State
from quarl.device.deploy.fleet.status import DeviceStatus
from quarl.device.deploy.text import printable

_RIGHT = ("p50, µs", "p99, µs", "memory, MB")
_SENTENCES = ("drift", "health", "notes")
_SENTENCE_WIDTH = 60


def format_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as text, as wide as its cells; only sentences are broken into lines."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        sentence = name in _SENTENCES
        table.add_column(
            name,
            justify="right" if name in _RIGHT else "left",
            no_wrap=not sentence,
            max_width=_SENTENCE_WIDTH if sentence else None,
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(file=io.StringIO(), width=1000, no_color=True, legacy_windows=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines() if line.strip())


def status_table(found: Sequence[DeviceStatus]) -> str:
    """Device × policy × release × digest × drift × health."""
    return format_table(
        ("device", "policy", "release", "digest", "drift", "health"),
        (
            (
                status.device,
                status.policy or "–",
                status.release or "–",
                status.digest[:8] or "–",
                status.drift or "none",
                "; ".join(status.health) or "well",
            )
            for status in found
        ),
    )


def format_measured_table(rows: Sequence[Row]) -> str:
    """Device, p50, p99, memory, success, release."""
    return format_table(
        ("device", "release", "artifact", "p50, µs", "p99, µs", "memory, MB", "success, % [95 %]", "notes"),
        (
            (
                row.device,
                row.release,
                row.served,
                _number(row.p50_us),
                _number(row.p99_us),
                _number(row.memory_mb),
                "–" if row.success is None else "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * rate for rate in row.success)),
                ", ".join(row.notes) or "–",
            )
            for row in rows
        ),
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def result_text(result: Result) -> str:
    """Return what a rollout has come to: a sentence, and a line for each device on which it is not at its end."""
    proved = result.counts.get(State.PROVED, 0)
    head = (
        f"{result.policy}: proved on {proved} of {len(result.states)} devices in {result.seconds:.1f} s; "
        f"{result.sent_bytes / 1e6:.1f} MB sent, {result.kinds} {'kind' if result.kinds == 1 else 'kinds'} of device."
    )
    phases = ", ".join(f"{name} {outcome}" for name, outcome in result.phases)
    lines = [head, *([f"Phases: {phases}."] if phases else [])]
    waiting = [target for target, state in result.states.items() if state is State.NOT_BEGUN]
    for target, state in result.states.items():
        if state not in (State.PROVED, State.NOT_BEGUN):
            lines.append(f"  {target}: {state}. {result.errors.get(target, '')}".rstrip())
    lines += [f"  {target}: proved, and not seen at the end. {why}" for target, why in result.unseen.items()]
    if waiting:
        lines.append(f"  not begun: {len(waiting)} devices")
    return "\n".join(map(printable, lines))
