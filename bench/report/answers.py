"""The short tables of what one command has just measured: latency, memory, success."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report.document import BASELINES, Kind, Report
from bench.report.notes import (
    circumstances,
    gained,
    machine_notes,
    percentile,
    rate,
    ratio_cell,
    said_of,
    time_cell,
    withheld_notes,
)
from bench.report.selection import FP32, Selection, paired
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, filled, joined, kilobytes, megabytes

LATENCY_NOTES = """\
{{ "{:,}".format(first.runs) }} runs each after {{ first.warmup }} warm-up, batch 1, in \
{{ first.block_p50_ns | length }} turns (A B A B); path {{ first.path }}. Speed-ups: median of the turns' ratios of \
p50, in brackets the least and the greatest.
{{ withheld }}
{% if not keras %}
No Keras baseline: not asked for, or not applicable on this device.
{% endif %}
"""
OVER_LITERT = "speed-up over int8 in LiteRT"
SUCCESS_NOTES = """\
{{ "{:,}".format(first.episodes) }} episodes of preset {{ first.preset }}{{ changed }}, seed {{ first.seed }}, greedy, \
flown on: {{ places }}. In brackets 95 % intervals: Wilson; of the paired difference on the same episodes Newcombe's \
method 10. Flight, distance and energy are means of the successful flights. blind: fly to the goal; random: any \
action, each as likely; both in the embedded simulator on the host.
"""


def latency_table(reports: Sequence[Report]) -> Table:
    """One run's latencies with their denominators."""
    chosen = Selection(tuple(reports))
    timed = {report.id: report.latency for report in reports if report.latency is not None}
    native = any(report.runtime == "native" for report in reports)
    rows = []
    for report in (each for each in reports if each.id in timed):
        partner = chosen.fp32_partner(report) if report.artifact else None
        keras = chosen.last(Kind.LATENCY, run=report.run, policy=report.policy, runtime="keras")
        of = {"policy": report.policy, "precision": report.precision, "runtime": report.runtime}
        memory = chosen.last(Kind.MEMORY, **of)
        litert = {"run": report.run, "policy": report.policy, "runtime": "litert", "precision": "int8"}
        over_litert = {OVER_LITERT: ratio_cell(chosen.last(Kind.LATENCY, **litert), report)} if native else {}
        rows.append(
            {
                **_names(report, {"keras": "Keras model(x)"}.get(report.runtime, report.runtime)),
                **{name: percentile(report, name, partner) for name in ("p50", "p90", "p99")},
                "mean": time_cell(report, timed[report.id].mean_ns, partner),
                "cold first": time_cell(report, timed[report.id].cold_first_ns, partner),
                "speed-up over fp32, same runtime": ratio_cell(partner, report),
                **over_litert,
                "speed-up over Keras fp32": ratio_cell(keras, report),
                "KB artifact": kilobytes(report.artifact.bytes if report.artifact else None),
                "MB resident": megabytes(memory.memory.resident if memory and memory.memory else None),
                "measured": joined(circumstances(report)),
            }
        )
    notes = filled(
        LATENCY_NOTES,
        first=next(iter(timed.values())),
        withheld="\n".join(withheld_notes(reports, "p50", "p90", "p99")),
        keras=any(report.runtime == "keras" for report in reports),
    )
    notes = (*machine_notes(reports), *notes, *said_of(reports))
    return Table.of("latency", "Latency of one decision", rows, notes, left=3)


def _names(report: Report, runtime: str) -> dict[str, str]:
    return {"policy": report.policy, "precision": report.precision or NOT_KNOWN, "runtime": runtime}


def memory_table(reports: Sequence[Report]) -> Table:
    """Resident memory of the agent's process at its stations, and the artifact's size."""
    rows = [
        {
            **_names(report, f"{report.runtime} {report.runtime_version}"),
            "KB artifact": kilobytes(report.artifact.bytes),
            "MB agent alone": megabytes(memory.baseline),
            "MB runtime imported": megabytes(memory.before_load),
            "MB loaded": megabytes(memory.after_load),
            "MB peak serving": megabytes(memory.running_peak),
            "MB added by loading": megabytes(memory.artifact_share),
            "measured": joined(circumstances(report)),
        }
        for report in reports
        if report.artifact and (memory := report.memory)
    ]
    process = "MB resident of the agent's process (10⁶ bytes), a fresh process for each row."
    notes = (*machine_notes(reports), process, *said_of(reports))
    return Table.of("memory", "Memory", rows, notes, left=3).said_once("runtime", "measured")


def success_table(reports: Sequence[Report]) -> Table:
    """Success of each precision with its interval, its paired difference to fp32, and how the others ended."""
    flown = [(report, report.success) for report in reports if report.success]
    fp32 = {report.policy: report for report, _ in flown if report.precision == FP32}
    rows = []
    for report, success in flown:
        change = paired(report, fp32.get(report.policy)) if report.precision != FP32 else None
        ends = ", ".join(f"{count} {cause}" for cause, count in success.causes.items() if count and cause != "goal")
        means = {"flight s": (success.flight_time_s, 2), "distance m": (success.distance_m, 1)}
        means |= {"energy J": (success.energy_j, 0)}
        rows.append(
            {
                **_names(report, report.runtime),
                "% success": rate(report),
                "points to fp32": gained(change),
                **{name: NOT_KNOWN if mean is None else f"{mean:.{n}f}" for name, (mean, n) in means.items()},
                "decision p50": time_cell(report, success.decide_p50_ns),
                "others ended by": ends.replace("_", " ") or "none",
                "measured": joined(circumstances(report)),
            }
        )
    first = flown[0][1]
    changed = f", settings {dict(first.settings)}" if first.settings else ""
    mine = [success for report, success in flown if report.policy not in BASELINES]
    places = joined(each.where.value + (f" ({each.simulator})" if each.simulator else "") for each in mine)
    notes = filled(SUCCESS_NOTES, first=first, changed=changed, places=places)
    notes = (*machine_notes([report for report, _ in flown if report.policy not in BASELINES]), *notes)
    title = f"Success, preset {first.preset}{changed}"
    return Table.of("success", title, rows, notes, left=3).said_once("runtime", "measured")
