"""The tables that join stored measurements: the case study, the latency flown, and where the policies come from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.report.document import BLIND, Report
from bench.report.intervals import PairedDifference
from bench.report.paper import PAPER, PAPER_DEVICE
from bench.report.selection import (
    FP32,
    Selection,
    command_latency,
    flew_measured_latency,
    paired,
    policy_order,
    precision_order,
    speed_up,
)
from bench.report.tables import Table
from bench.report.text import (
    NOT_KNOWN,
    circumstances,
    filled,
    joined,
    kilobytes,
    machine,
    megabytes,
    nanoseconds,
    percent,
    points,
    times,
)

CASE_STUDY, SUMMARY, LATENCY_FLOWN, ZOO = "case-study", "summary", "latency-flown", "zoo"
PATH = "runtime"


class NothingStoredError(ValueError):
    """No stored measurement that the table could stand on; the message says which command makes one."""


def case_study(selection: Selection, preset: str = "hard") -> tuple[Table, list[Report]]:
    """Policies × precisions: latency, speed-up, memory, size and success, with the paper's figures labelled as such.

    Returns:
        The table and the measurements that it stands on.
    """
    rows: list[tuple[str, ...]] = []
    used: list[Report] = []
    for policy in selection.policies():
        fp32_success = None
        for precision in selection.precisions(policy):
            latency = selection.latest_latency(policy, precision, None, PATH)
            runtime = latency.runtime if latency else None
            sha256 = latency.artifact.sha256 if latency and latency.artifact else None
            memory = selection.latest_memory(policy, precision, runtime, sha256)
            success = selection.best_success(policy, precision, preset, sha256, runtime)
            found = [report for report in (latency, memory, success) if report is not None]
            if not found:
                continue
            if precision == FP32:
                fp32_success = success
            partner = selection.fp32_partner(latency) if latency else None
            keras = selection.baseline(latency.run, policy, "keras") if latency else None
            compiled = selection.baseline(latency.run, policy, "tf.function") if latency else None  # for the picture
            used += [*found, *(report for report in (partner, keras, compiled) if report)]
            change = paired(success, fp32_success) if precision != FP32 else None
            rows.append(_case_row(policy, precision, latency, partner, keras, memory, success, change))
        rows.append(())
    if not used:
        raise NothingStoredError("no measurement of a policy is stored yet.\n  next: make demo")
    blind = selection.best_success(BLIND, None, preset)
    if blind is not None:
        used.append(blind)
        rows.append((BLIND, *[NOT_KNOWN] * 9, _rate(blind), *[NOT_KNOWN] * 2, joined(circumstances(blind))))
    headers = (
        "policy",
        "precision",
        "runtime",
        "p50",
        "p99",
        "speed-up over fp32",
        "speed-up over Keras fp32",
        "MB resident",
        "MB added by loading",
        "KB artifact",
        f"% success, {preset}",
        "points to fp32",
        f"paper's, {PAPER_DEVICE}",
        "measured",
    )
    unique = list({report.id: report for report in used}.values())
    table = Table(CASE_STUDY, "Case study", headers, tuple(rows), _case_notes(unique, preset), left=2)
    return without_constant_columns(table, ("runtime", "measured")), unique


FINDING = """\
On {{ machine }} int8 decides up to {{ faster }} as fast as fp32 in the same runtime ({{ fastest }}), from artifacts \
{{ smaller }} to {{ smallest }} as small; over {{ episodes }} flights of preset {{ preset }} success changes by no \
more than {{ most }} points, whatever lies within the paired 95 % intervals.
"""


def finding(selection: Selection, preset: str = "hard") -> str:
    """What int8 costs and gains on the device, in a sentence; "" where fp32 and int8 were not both measured."""
    faster, smaller, most, episodes, device = {}, [], [], set(), None
    for policy in selection.policies():
        fp32, int8 = (selection.latest_latency(policy, name, None, PATH) for name in (FP32, "int8"))
        flown = [selection.best_success(policy, name, preset) for name in ("int8", FP32)]
        ratio, change = speed_up(fp32, int8), paired(*flown)
        if ratio is None or change is None or not (fp32 and int8 and fp32.artifact and int8.artifact):
            continue
        device = int8.device
        faster[ratio] = policy
        smaller.append(fp32.artifact.bytes / int8.artifact.bytes)
        most.append(100 * max(abs(change.low), abs(change.high)))
        episodes.add(change.episodes)
    if device is None:
        return ""
    (said,) = filled(
        FINDING,
        machine=machine(device),
        faster=times(max(faster)),
        fastest=faster[max(faster)],
        smaller=times(min(smaller)),
        smallest=times(max(smaller)),
        episodes=_some(sorted(episodes)),
        preset=preset,
        most=f"{max(most):.1f}",
    )
    return said


def summary(selection: Selection, preset: str = "hard") -> Table:
    """What the README shows of the case study: a row for each policy and precision, and the paper's figures.

    Raises:
        NothingStoredError: nothing is stored.
    """
    whole, used = case_study(selection, preset)
    ours = ("policy", "precision", "p50", "MB resident", "KB artifact", f"% success, {preset}")
    places = [whole.headers.index(header) for header in (*ours, f"paper's, {PAPER_DEVICE}")]
    rows = []
    for row in whole.rows:
        if row and row[0] != BLIND:
            *cells, theirs = (row[place] for place in places)
            rows.append((*cells, *(theirs.split(", ") if theirs != NOT_KNOWN else (NOT_KNOWN, NOT_KNOWN))))
    blind = next((report for report in used if report.policy == BLIND), None)
    notes = (
        *machine_notes([report for report in used if report.policy != BLIND and report.artifact is not None]),
        "p50: median time of one decision. MB resident: the whole process on the device. Success: with 95 % intervals"
        + (f"; flying straight to the goal, as if nothing were in between: {_rate(blind)}." if blind else "."),
        f"The paper's: QuaRL's p50 and success on a {PAPER_DEVICE}, of other networks on another task.",
    )
    headers = (*ours, "paper's p50", "paper's success")
    return Table(SUMMARY, "Policies on a device", headers, tuple(rows), notes, left=2)


def without_constant_columns(table: Table, headers: Sequence[str]) -> Table:
    """The table with each of these columns moved to the title when it says the same in every measured row."""
    for header in headers:
        index = table.headers.index(header)
        said = {row[index] for row in table.rows if row and row[0] != BLIND}
        if len(said) == 1:
            table = Table(
                table.name,
                f"{table.title} · {said.pop()}",
                table.headers[:index] + table.headers[index + 1 :],
                tuple(row[:index] + row[index + 1 :] for row in table.rows),
                table.notes,
                table.left - (index < table.left),
            )
    return table


def _case_row(
    policy: str,
    precision: str,
    latency: Report | None,
    partner: Report | None,
    keras: Report | None,
    memory: Report | None,
    success: Report | None,
    change: PairedDifference | None,
) -> tuple[str, ...]:
    any_report = latency or memory or success
    assert any_report is not None
    assert any_report.artifact is not None
    held = memory.memory if memory else None
    paper = PAPER.get((policy, precision))
    return (
        policy,
        precision,
        any_report.runtime,
        percentile(latency, "p50", partner),
        percentile(latency, "p99", partner),
        "1 (base)" if precision == FP32 else times(speed_up(partner, latency)),
        times(speed_up(keras, latency)),
        megabytes(held.resident if held else None),
        megabytes(held.artifact_share if held else None),
        kilobytes(any_report.artifact.bytes),
        _rate(success),
        points(change.difference, change.low, change.high) if change else NOT_KNOWN,
        f"{paper.latency_ms:g} ms, {100 * paper.success:.0f} %" if paper else NOT_KNOWN,
        joined(word for report in (latency, memory, success) if report for word in circumstances(report)),
    )


def percentile(report: Report | None, name: str, base: Report | None = None) -> str:
    """A percentile for a table's cell; a dash where the number of runs does not support it.

    On an emulator it is a multiple of the base's p50, measured in the same run: a time of its own means nothing.
    """
    if report is None or report.latency is None:
        return NOT_KNOWN
    return time_cell(report, report.latency.percentiles_ns.get(name), base)


def time_cell(report: Report, value_ns: float | None, base: Report | None = None) -> str:
    """A time; of an emulated device only its ratio to the base's p50, or a dash where there is no base."""
    if not report.device.get("emulated"):
        return nanoseconds(value_ns)
    base_ns = base.latency.percentiles_ns.get("p50") if base is not None and base.latency is not None else None
    return times(value_ns / base_ns) if value_ns and base_ns else NOT_KNOWN


def withheld_notes(reports: Iterable[Report], names: Sequence[str]) -> list[str]:
    """Why a percentile is a dash."""
    reasons = (
        f"{name} {reason}"
        for report in reports
        if report.latency is not None
        for name, reason in report.latency.withheld.items()
        if name in names
    )
    found = list(dict.fromkeys(reasons))
    return [f"{NOT_KNOWN}: not enough runs ({'; '.join(found)})."] if found else []


def machine_notes(reports: Iterable[Report]) -> list[str]:
    """One sentence for each machine that numbers come from, and what they may not be read as."""
    notes = []
    by_machine: dict[str, list[Report]] = {}
    for report in reports:
        by_machine.setdefault(f"{report.target}: {machine(report.device)}", []).append(report)
    for name, found in by_machine.items():
        said = [word for report in found for word in circumstances(report) if not word.startswith("NOT VALID")]
        runtimes = joined(f"{r.runtime} {r.runtime_version}" for r in found if r.artifact is not None)
        notes.append(f"Measured on {name} ({joined(said)}); runtime {runtimes}; {_dates(found)}; code {_codes(found)}.")
    if any(report.device.get("emulated") for report in reports):
        notes.append(
            "EMULATED: the instructions were emulated. No time is shown, only multiples of the fp32 artifact's p50 in "
            "the same run, and these are the emulator's; bench/instructions.py counts what a real processor would do."
        )
    return notes


def said_of(reports: Sequence[Report]) -> list[str]:
    """The reports' own notes, each kind once, with whom it concerns; of figures in it the greatest."""
    concerned: dict[str, list[str]] = {}
    latest: dict[str, str] = {}
    for report in reports:
        for note in report.notes:
            kind = note.partition(":")[0]
            concerned.setdefault(kind, []).append(f"{report.policy} {report.precision or ''}".strip())
            latest[kind] = max(latest.get(kind, note), note, key=_figures)
    return [f"{joined(concerned[kind])}: {note}." for kind, note in latest.items()]


def _figures(note: str) -> list[float]:
    """The numbers in it, by which ``load average 12.3`` is more than ``load average 9.5``."""
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", note)]


def _case_notes(reports: Sequence[Report], preset: str) -> tuple[str, ...]:
    device = [report for report in reports if report.policy != BLIND and report.artifact is not None]
    runs = sorted({r.latency.runs for r in device if r.latency})
    episodes = sorted({r.success.episodes for r in reports if r.success})
    threads = sorted({r.threads for r in device if r.threads})
    notes = [
        *machine_notes(device),
        f"p50, p99: one decision at batch 1 (set input, invoke, read the action), {_some(threads)} thread(s), "
        f"{_some(runs)} runs each, precisions taking turns. Speed-up over fp32: p50 of the fp32 artifact in the same "
        "runtime over this p50; over Keras fp32: p50 of model(x) on the host over this p50; both the median of one "
        "run's turns.",
        "MB resident: the agent's whole process (Python, numpy, runtime) at its peak while serving; "
        "MB added by loading: artifact, interpreter and packed weights.",
        f"Success: greedy, {_some(episodes)} fresh episodes of preset {preset}, 95 % Wilson intervals; points to fp32: "
        "on the same episodes, paired, 95 % interval (Newcombe's method 10).",
        f"Paper's: QuaRL's figures on a {PAPER_DEVICE}, other networks and another task, no intervals given.",
    ]
    return (*notes, *withheld_notes(device, ("p50", "p99")), *said_of([r for r in device if r.latency]))


def latency_flown(selection: Selection, preset: str = "hard") -> tuple[Table, list[Report]]:
    """Success of each policy when commands take effect late, and the paired loss against no latency.

    Of each policy and precision the latest run that flew with latency is shown, and nothing from other runs.
    """
    runs: dict[tuple[str, str | None], str] = {}
    for report in selection.reports:  # oldest first
        if report.success is None or report.success.preset != preset:
            continue
        if (command_latency(report) or 0) > 0 or flew_measured_latency(report):
            runs[report.policy, report.precision] = report.run
    if not runs:
        raise NothingStoredError(
            "no flights with latency are stored yet.\n  next: python bench/success.py --policy I --late 50,100"
        )
    flown = [
        report
        for report in selection.reports
        if report.success is not None
        and report.success.preset == preset
        and runs.get((report.policy, report.precision)) == report.run
        and (command_latency(report) is not None or flew_measured_latency(report))
    ]
    latencies = sorted({command_latency(report) or 0.0 for report in flown})
    columns = [*latencies, *([None] if any(map(flew_measured_latency, flown)) else [])]  # None: as measured
    rows: list[tuple[str, ...]] = []
    for policy, precision in sorted(runs, key=lambda key: (policy_order(key[0]), precision_order(key[1]))):
        mine = {command_latency(r): r for r in flown if (r.policy, r.precision) == (policy, precision)}
        said = joined(word for report in mine.values() for word in circumstances(report))
        losses = [paired(mine.get(value), mine.get(0.0)) if value != 0.0 else None for value in columns]
        label = (policy, precision or NOT_KNOWN)
        rows.append((*label, "% success", *(_rate(mine.get(value)) for value in columns), said))
        cells = [points(loss.difference, loss.low, loss.high) if loss else NOT_KNOWN for loss in losses]
        rows += [(*label, "points to 0 ms", *cells, said), ()]
    late_by = ["as measured" if value is None else f"{1000 * value:g} ms" for value in columns]
    headers = ("policy", "precision", "late by", *late_by, "measured")
    episodes = sorted({report.success.episodes for report in flown if report.success})
    notes = (
        *machine_notes([report for report in flown if report.artifact is not None]),
        f"Preset {preset}, {_some(episodes)} episodes, flown on the device; 95 % intervals: Wilson, and for the "
        "difference to no latency, paired on the same episodes, Newcombe's method 10. A decision is due every 250 ms; "
        "the policies were trained without latency."
        + (" As measured: each latency drawn from the device's own measured decisions." if None in columns else ""),
    )
    table = Table(LATENCY_FLOWN, f"Latency flown, {preset}", headers, tuple(rows), notes, left=3)
    return without_constant_columns(table, ("measured",)), flown


def zoo_table(zoo: Path, selection: Selection) -> tuple[Table, list[Report]]:
    """Where the committed bundles come from, out of their policy.json, and how often their fp32 artifacts succeed."""
    rows: list[tuple[str, ...]] = []
    used: list[Report] = []
    for folder in sorted((p.parent for p in zoo.glob("*/policy.json")), key=lambda p: policy_order(p.name)):
        spec = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
        said = spec["provenance"]
        judged = [selection.best_success(spec["name"], FP32, preset) for preset in ("shipped", "hard")]
        used += [report for report in judged if report is not None]
        rows.append(
            (
                spec["name"],
                " × ".join(str(width) for width in spec["network"]["hidden"]),
                " from ".join(str(said[key]) for key in ("algorithm", "teacher") if key in said) or NOT_KNOWN,
                *(_figure(said.get(key)) for key in ("steps", "cpu_s", "wall_s", "seed")),
                *(_rate(report) for report in judged),
            )
        )
    if not rows:
        raise NothingStoredError(f"{zoo} holds no bundle yet.\n  next: make train POLICY=I")
    blind = [selection.best_success(BLIND, None, preset) for preset in ("shipped", "hard")]
    used += [report for report in blind if report is not None]
    rows += [(), (BLIND, *[NOT_KNOWN] * 6, *(_rate(report) for report in blind))]
    headers = (
        "policy",
        "hidden layers",
        "trained by",
        "environment steps",
        "CPU seconds",
        "wall seconds",
        "seed",
        "% success, shipped",
        "% success, hard",
    )
    episodes = sorted({report.success.episodes for report in used if report.success})
    notes = [
        "Training: from each bundle's policy.json, trained on hard only.",
        f"Success: fp32 artifact, greedy, {_some(episodes)} fresh episodes, 95 % Wilson intervals; "
        "blind: fly to the goal as if nothing were in between.",
        *machine_notes([report for report in used if report.artifact is not None]),
    ]
    return Table(ZOO, "Where the policies come from", headers, tuple(rows), tuple(notes), left=3), used


def _figure(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,.0f}"
    return NOT_KNOWN


def _rate(report: Report | None) -> str:
    if report is None or report.success is None:
        return NOT_KNOWN
    return percent(report.success.rate, report.success.low, report.success.high)


def _some(values: Sequence[int]) -> str:
    if not values:
        return NOT_KNOWN
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def _dates(reports: Sequence[Report]) -> str:
    return " to ".join(dict.fromkeys((min(r.time for r in reports)[:10], max(r.time for r in reports)[:10])))


def _codes(reports: Sequence[Report]) -> str:
    return joined(report.code_version for report in reports)
