"""What must be said beside measured numbers, and how the numbers of a report stand in a table's cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from quarl.bench.report.document import Report, Transport
from quarl.bench.report.selection import pair_successes, speed_up, turn_ratios
from quarl.bench.report.store import StoreError
from quarl.bench.report.text import NOT_KNOWN, join_distinct, machine, nanoseconds, span, times
from quarl.train.intervals import Estimate

T = TypeVar("T")
EMULATED = (
    "EMULATED: the instructions were emulated. No time is shown, only multiples of the fp32 artifact's p50 in "
    "the same run, and these are the emulator's; bench/instructions.py counts what a real processor would do."
)


def circumstances(*reports: Report | None) -> list[str]:
    """Return what must stand wherever their numbers stand: emulated, virtual, loopback, throttled, invalid."""
    names = {Transport.LOOPBACK: "loopback", Transport.SSH: "SSH", Transport.LOCAL_PROCESS: "on the host"}
    circumstance_words = []
    for report in filter(None, reports):
        words = {
            names[report.transport]: True,
            "EMULATED": report.device.get("emulated"),
            "virtual machine": report.device.get("virtualised"),
            "THROTTLED": was_throttled(report),
            slow_clock(report): True,
            f"NOT VALID: {'; '.join(report.invalid_reasons)}": not report.valid,
        }
        circumstance_words += [word for word, holds in words.items() if word and holds]
    return circumstance_words


def was_throttled(report: Report) -> bool:
    """Return whether the firmware slowed the device down before, after or while it was measured."""
    stages = [report.device, *(stage for stage in (report.conditions or {}).values() if stage)]
    return any((stage.get("throttled") or {}).get("now") for stage in stages)


def slow_clock(report: Report) -> str:
    """``"CLOCK 657 of 1200 MHz"`` where the real clock was at least a tenth below the one asked for at the end."""
    nominal_mhz = report.device.get("mhz_nominal")
    real = ((report.conditions or {}).get("after") or {}).get("mhz_firmware")
    return f"CLOCK {real:.0f} of {nominal_mhz:.0f} MHz" if nominal_mhz and real and real < 0.9 * nominal_mhz else ""


def dynamics_note(preset: str) -> str:
    """Return how the drones fly."""
    from quarl.airlearning_envs.config import PRESETS

    return (
        f"The drones fly as AirSim's SimpleFlight does {PRESETS[preset].altitude_m:g} m high (docs/flight-dynamics.md)."
    )


def machine_notes(reports: Iterable[Report]) -> list[str]:
    """Return one sentence for each machine that numbers come from, and what they may not be read as."""
    notes = []
    by_machine: dict[str, list[Report]] = {}
    for report in reports:
        by_machine.setdefault(f"{report.target}: {machine(report.device)}", []).append(report)
    for name, machine_reports in by_machine.items():
        circumstance_words = join_distinct(
            word for word in circumstances(*machine_reports) if not word.startswith("NOT VALID")
        )
        dates = sorted(report.time[:10] for report in machine_reports)
        when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        runtimes = versions(report for report in machine_reports if report.artifact is not None)
        notes.append(
            f"Measured on {name} ({circumstance_words}); runtime {runtimes}; {when}; code {codes(machine_reports)}."
        )
    return [*notes, *[EMULATED] * any(report.device.get("emulated") for report in reports)]


def versions(reports: Iterable[Report]) -> str:
    """``litert 2.3.0, onnxruntime 1.31.1``."""
    return join_distinct(f"{report.runtime} {report.runtime_version}" for report in reports)


def codes(reports: Iterable[Report]) -> str:
    """Return the commits that measured."""
    return join_distinct(report.code_version for report in reports)


def report_notes(reports: Sequence[Report]) -> list[str]:
    """Return the reports' own notes, each kind once, with whom it concerns; of figures in it the greatest."""
    concerned: dict[str, list[str]] = {}
    latest: dict[str, str] = {}
    for report in reports:
        for note in report.notes:
            kind = note.partition(":")[0]
            concerned.setdefault(kind, []).append(f"{report.policy} {report.precision or ''}".strip())
            latest[kind] = max(latest.get(kind, note), note, key=_figures)
    return [f"{join_distinct(concerned[kind])}: {note}." for kind, note in latest.items()]


def _figures(note: str) -> list[float]:
    """Return the numbers in it, by which ``load average 12.3`` is more than ``load average 9.5``."""
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", note)]


def withheld_notes(reports: Iterable[Report], *names: str) -> list[str]:
    """Why a percentile is a dash."""
    latencies = [report.latency for report in reports if report.latency is not None]
    reasons = [f"{name} {why}" for latency in latencies for name, why in latency.withheld.items() if name in names]
    return [f"{NOT_KNOWN}: not enough runs ({'; '.join(dict.fromkeys(reasons))})."] if reasons else []


def percentile(report: Report | None, name: str, base: Report | None = None) -> str:
    """Return a percentile for a table's cell; a dash where the number of runs does not support it.

    On an emulator it is a multiple of the base's p50, measured in the same run: a time of its own means nothing.
    """
    if report is None or report.latency is None:
        return NOT_KNOWN
    return time_cell(report, report.latency.percentiles_ns.get(name), base)


def time_cell(report: Report, value_ns: float | None, base: Report | None = None) -> str:
    """Return a time; of an emulated device only its ratio to the base's p50, or a dash where there is no base."""
    if not report.device.get("emulated"):
        return nanoseconds(value_ns)
    base_ns = base.latency.percentiles_ns.get("p50") if base is not None and base.latency is not None else None
    return times(value_ns / base_ns) if value_ns and base_ns else NOT_KNOWN


def rate(report: Report | None) -> Estimate | None:
    """Return a success; None where there is none."""
    success = report.success if report else None
    return Estimate(success.rate, success.low, success.high) if success else None


def success_gain(report: Report | None, reference: Report | None) -> Estimate | None:
    """Success beyond that of the reference, paired; None where they flew different episodes."""
    change = pair_successes(report, reference)
    return change.estimate if change else None


def format_episodes(reports: Iterable[Report | None]) -> str:
    """Return how many episodes their successes are of: ``300``, ``300 to 3,000``."""
    return span(report.success.episodes for report in reports if report and report.success)


def reports_of(rows: Iterable[Mapping[str, Any]]) -> list[Report]:
    """Return the measurements that rows stand on, each once."""
    return list({report.id: report for row in rows for report in row["reports"] if report}.values())


def require_rows(rows: Iterable[T], missing: str) -> list[T]:
    """Return the rows as a list.

    Raises:
        StoreError: there are none; says what is missing.
    """
    row_list = list(rows)
    if not row_list:
        raise StoreError(missing)
    return row_list


def facts_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the notes under rows name: the machines that executed artifacts, the episodes, the preset's
    dynamics."""
    used, preset = reports_of(rows), rows[0]["preset"]
    machines = machine_notes([report for report in used if report.artifact is not None])
    return {
        "preset": preset,
        "machines": "\n".join(machines),
        "episodes": format_episodes(used),
        "dynamics": dynamics_note(preset),
    }


def ratio_cell(slow: Report | None, fast: Report | None) -> str:
    """Return a speed-up with its spread over the turns: ``2.52× [2.48, 2.57]``."""
    if slow is not None and slow is fast:
        return "1 (base)"
    turns = turn_ratios(slow, fast)
    spread = f" [{times(min(turns)).rstrip('×')}, {times(max(turns)).rstrip('×')}]" if len(turns) > 1 else ""
    return times(speed_up(slow, fast)) + spread
