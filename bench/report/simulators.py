"""The same episodes in the embedded simulator and in another one: how far the two agree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.report.document import Report
from bench.report.intervals import independent_difference
from bench.report.notes import dynamics_note, flown, machine_notes, rate
from bench.report.selection import policy_order, precision_order
from bench.report.store import StoreError
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, points

AIRSIM_FLIGHTS = "airsim-flights"
COMMAND = "python bench/success.py --policy I --on host --simulator airsim --episodes 200"


def airsim_flights(reports: Iterable[Report], preset: str = "hard") -> tuple[Table, list[Report]]:
    """Each policy's flights in another simulator, and the latest embedded ones of the same episodes above them.

    Raises:
        StoreError: none is stored.
    """
    latest: dict[tuple[Any, ...], Report] = {}
    for report in sorted(reports, key=lambda each: each.time):
        if report.success is not None and report.success.preset == preset:
            success = report.success
            episodes = (success.task, success.seed, success.episodes, str(success.settings))
            latest[report.policy, report.precision, episodes, success.where, success.simulator] = report
    pairs = []
    for (*same, simulator), report in latest.items():
        embedded = latest.get((*same, None))
        if simulator is not None and embedded is not None:
            pairs.append((embedded, report))
    if not pairs:
        raise StoreError(
            "no flights in another simulator are stored yet, or none without --simulator beside them."
            f"\n  next: {COMMAND}"
        )
    pairs.sort(key=lambda pair: (policy_order(pair[1].policy), precision_order(pair[1].precision)))
    rows: list[dict[str, str]] = []
    used: list[Report] = []
    for embedded, other in pairs:
        if embedded not in used:
            rows += [{}] if rows else []
            rows.append(_row(embedded, "embedded", None))
        rows.append(_row(other, str(other.success and other.success.simulator), embedded))
        used += [each for each in (embedded, other) if each not in used]
    first = used[0].success
    assert first is not None
    notes = (
        *machine_notes(used),
        f"{flown(used)} episodes of preset {preset}, seed {first.seed}, greedy, by the policies' numpy reference. "
        "Intervals of 95 %: Wilson; of the difference, as of independent flights, Newcombe's. Ended alike: episodes "
        "that reached the goal in both, or in neither.",
        dynamics_note(preset),
    )
    title = f"The same {first.episodes} layouts in the embedded simulator and over AirSim's RPC, {preset}"
    return Table.of(AIRSIM_FLIGHTS, title, rows, notes, left=3), used


def _row(report: Report, simulator: str, embedded: Report | None) -> dict[str, str]:
    success = report.success
    assert success is not None
    causes = {f"ended by {cause.replace('_', ' ')}": str(count) for cause, count in success.causes.items()}
    alike = difference = NOT_KNOWN
    if embedded is not None and embedded.success is not None:
        same = sum(a == b for a, b in zip(success.bits(), embedded.success.bits(), strict=True))
        alike = f"{same} of {success.episodes}"
        beside = embedded.success
        difference = points(
            *independent_difference(success.successes, success.episodes, beside.successes, beside.episodes)
        )
    return {
        "policy": report.policy,
        "precision": report.precision or NOT_KNOWN,
        "simulator": simulator,
        "% success": rate(report),
        "points to embedded": difference,
        "ended alike": alike,
        **causes,
        "flight s": NOT_KNOWN if success.flight_time_s is None else f"{success.flight_time_s:.2f}",
    }
