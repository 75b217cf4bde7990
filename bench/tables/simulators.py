"""The same episodes in the embedded simulator and in another one: how far the two agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from quarl.bench.report.document import Report
from quarl.bench.report.intervals import Estimate, independent_difference
from quarl.bench.report.notes import facts_of, machine_notes, rate, reports_of, standing_on
from quarl.bench.report.pivot import Pivot
from quarl.bench.report.selection import policy_order, precision_order
from quarl.bench.report.tables import Table

AIRSIM_FLIGHTS = "airsim-flights"
MISSING = """\
no flights in another simulator are stored yet, or none without --simulator beside them.
  next: quarl bench success --policy I --on host --simulator airsim --episodes 200"""
WORDS = """\
The same {{ rows[0].report.success.episodes }} layouts in the embedded simulator and over AirSim's RPC, {{ preset }}
{{ machines }}
{{ episodes }} episodes of preset {{ preset }}, seed {{ rows[0].report.success.seed }}, greedy, by the policies' numpy \
reference. Intervals of 95 %: Wilson; of the difference, as of independent flights, Newcombe's. Ended alike: episodes \
that reached the goal in both, or in neither.
{{ dynamics }}
"""


def pairs_of(reports: Iterable[Report], preset: str) -> list[tuple[Report, Report]]:
    """The latest flights in the embedded simulator and those of the same episodes in another one."""
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
    return sorted(pairs, key=lambda pair: (policy_order(pair[1].policy), precision_order(pair[1].precision)))


def rows_of(pairs: Iterable[tuple[Report, Report]], preset: str) -> Iterator[dict[str, Any]]:
    """A row for each report and each cause that its episodes ended by; embedded flights once, above the others."""
    shown = set()
    for pair in pairs:
        for report in pair:
            if report.id in shown:
                continue
            shown.add(report.id)
            values = {"reports": pair, "preset": preset, "report": report, "embedded": pair[0], "rate": rate(report)}
            for cause, episodes in report.success.causes.items() if report.success else ():
                yield {**values, **compared(*pair, report), "cause": cause.replace("_", " "), "ended": episodes}


def compared(embedded: Report, other: Report, report: Report) -> dict[str, Any]:
    """What the other simulator's flights differ by; None of the embedded ones themselves."""
    if report is embedded or not (embedded.success and other.success):
        return {"alike": None, "difference": None}
    ours, theirs = embedded.success, other.success
    difference = independent_difference(theirs.successes, theirs.episodes, ours.successes, ours.episodes)
    alike = sum(a == b for a, b in zip(theirs.bits(), ours.bits(), strict=True))
    return {"alike": alike, "difference": Estimate(*difference)}


FLIGHTS = Pivot(
    name=AIRSIM_FLIGHTS,
    words=WORDS,
    lead={
        "policy": "{{ report.policy }}",
        "precision": "{{ report.precision or '–' }}",
        "simulator": "{{ report.success.simulator or 'embedded' }}",
    },
    columns=[
        {"% success": "{{ rate | percent }}", "points to embedded": "{{ difference | percent('+') }}"},
        {"ended alike": "{{ alike ~ ' of ' ~ report.success.episodes if alike is not none }}"},
        {"ended by {{ cause }}": "{{ ended }}"},
        {"flight s": "{{ report.success.flight_time_s | fixed(2) }}"},
    ],
    rows=list,
    facts=lambda rows: {**facts_of(rows), "machines": "\n".join(machine_notes(reports_of(rows)))},
    ruled="{{ embedded.id }}",
)


def airsim_flights(reports: Iterable[Report], preset: str = "hard") -> tuple[Table, list[Report]]:
    """Each policy's flights in another simulator, and the latest embedded ones of the same episodes above them.

    Raises:
        StoreError: none is stored.
    """
    return standing_on(FLIGHTS, rows_of(pairs_of(reports, preset), preset), MISSING)
