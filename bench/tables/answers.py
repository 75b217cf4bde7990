"""The short tables of what one command has just measured: latency, memory, success."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quarl.bench.report.document import BASELINES, Kind, Report
from quarl.bench.report.notes import (
    circumstances,
    gained,
    machine_notes,
    percentile,
    rate,
    ratio_cell,
    report_notes,
    time_cell,
    withheld_notes,
)
from quarl.bench.report.pivot import Pivot
from quarl.bench.report.selection import FP32, Selection
from quarl.bench.report.text import joined

LATENCY_WORDS = """\
Latency of one decision
{{ machines }}
{{ first.runs | thousands }} runs each after {{ first.warmup }} warm-up, batch 1, in \
{{ first.block_p50_ns | length }} turns (A B A B); path {{ first.path }}. Speed-ups: median of the turns' ratios of \
p50, in brackets the least and the greatest.
{{ withheld }}
{% if not keras %}
No Keras baseline: not asked for, or not applicable on this device.
{% endif %}
{{ own_notes }}
"""
MEMORY_WORDS = """\
Memory
{{ machines }}
MB resident of the agent's process (10⁶ bytes), a fresh process for each row.
{{ own_notes }}
"""
SUCCESS_WORDS = """\
Success, preset {{ first.preset }}{{ changed }}
{{ machines }}
{{ first.episodes | thousands }} episodes of preset {{ first.preset }}{{ changed }}, seed {{ first.seed }}, greedy, \
flown on: {{ places | joined }}. In brackets 95 % intervals: Wilson; of the paired difference on the same episodes \
Newcombe's method 10. Flight, distance and energy are means of the successful flights. blind: fly to the goal; random: \
any action, each as likely; both in the embedded simulator on the host.
"""
ENDED = """\
{% for cause, count in success.causes.items() if count and cause != "goal" %}\
{{ count }} {{ cause | replace("_", " ") }}{{ ", " if not loop.last }}{% else %}none{% endfor %}"""
LEAD = {"policy": "{{ report.policy }}", "precision": "{{ report.precision or '–' }}"}
MEASURED = {"measured": "{{ measured }}"}


def facts(reports: Sequence[Report]) -> dict[str, Any]:
    """The machines, the reports' own notes, and what was measured first."""
    return {
        "machines": "\n".join(machine_notes(reports)),
        "own_notes": "\n".join(report_notes(reports)),
        "withheld": "\n".join(withheld_notes(reports, "p50", "p90", "p99")),
        "keras": any(report.runtime == "keras" for report in reports),
        "first": next((report.latency for report in reports if report.latency), None),
    }


def latencies(reports: Sequence[Report]) -> Iterator[dict[str, Any]]:
    """A row for each latency, with its denominators."""
    chosen = Selection(tuple(reports))
    native = any(report.runtime == "native" for report in reports)
    for report in reports:
        if (latency := report.latency) is None:
            continue
        partner = chosen.fp32_partner(report) if report.artifact else None
        keras = chosen.last(Kind.LATENCY, run=report.run, policy=report.policy, runtime="keras")
        of = {"policy": report.policy, "precision": report.precision, "runtime": report.runtime}
        memory = chosen.last(Kind.MEMORY, **of)
        litert = {"run": report.run, "policy": report.policy, "runtime": "litert", "precision": "int8"}
        yield {
            "report": report,
            **{name: percentile(report, name, partner) for name in ("p50", "p90", "p99")},
            "mean": time_cell(report, latency.mean_ns, partner),
            "cold": time_cell(report, latency.cold_first_ns, partner),
            "over_fp32": ratio_cell(partner, report),
            "other": "int8 in LiteRT",
            "over_other": ratio_cell(chosen.last(Kind.LATENCY, **litert), report) if native else "",
            "over_keras": ratio_cell(keras, report),
            "resident": memory.memory.resident if memory and memory.memory else None,
            "measured": joined(circumstances(report)),
        }


LATENCY = Pivot(
    name="latency",
    words=LATENCY_WORDS,
    lead={**LEAD, "runtime": "{{ 'Keras model(x)' if report.runtime == 'keras' else report.runtime }}"},
    columns=[
        {"p50": "{{ p50 }}", "p90": "{{ p90 }}", "p99": "{{ p99 }}", "mean": "{{ mean }}", "cold first": "{{ cold }}"},
        {"speed-up over fp32, same runtime": "{{ over_fp32 }}", "speed-up over {{ other }}": "{{ over_other }}"},
        {"speed-up over Keras fp32": "{{ over_keras }}"},
        {"KB artifact": "{{ report.artifact.bytes | kb if report.artifact }}", "MB resident": "{{ resident | mb }}"},
        MEASURED,
    ],
    rows=latencies,
    facts=facts,
    gathered=False,
)
MEMORY = Pivot(
    name="memory",
    words=MEMORY_WORDS,
    lead={**LEAD, "runtime": "{{ report.runtime }} {{ report.runtime_version }}"},
    columns=[
        {"KB artifact": "{{ report.artifact.bytes | kb }}", "MB agent alone": "{{ memory.baseline | mb }}"},
        {"MB runtime imported": "{{ memory.before_load | mb }}", "MB loaded": "{{ memory.after_load | mb }}"},
        {"MB peak serving": "{{ memory.running_peak | mb }}"},
        {"MB added by loading": "{{ memory.artifact_share | mb }}", **MEASURED},
    ],
    rows=lambda reports: [
        {"report": report, "memory": report.memory, "measured": joined(circumstances(report))}
        for report in reports
        if report.artifact and report.memory
    ],
    facts=facts,
    gathered=False,
    titled=("runtime", "measured"),
)


def successes(reports: Sequence[Report]) -> Iterator[dict[str, Any]]:
    """A row for each success, with its paired difference to fp32."""
    flown = [report for report in reports if report.success]
    fp32 = {report.policy: report for report in flown if report.precision == FP32}
    for report in flown:
        assert report.success is not None
        yield {
            "report": report,
            "success": report.success,
            "rate": rate(report),
            "to_fp32": gained(report, fp32.get(report.policy)) if report.precision != FP32 else None,
            "decision": time_cell(report, report.success.decide_p50_ns),
            "measured": joined(circumstances(report)),
        }


def flight_facts(reports: Sequence[Report]) -> dict[str, Any]:
    """The machines, the flights' settings, and where they were flown."""
    flown = [report for report in reports if report.success]
    first, mine = flown[0].success, [report for report in flown if report.policy not in BASELINES]
    assert first is not None
    places = [each.success for each in mine if each.success]
    return {
        "first": first,
        "changed": f", settings {dict(first.settings)}" if first.settings else "",
        "machines": "\n".join(machine_notes(mine)),
        "places": [each.where.value + (f" ({each.simulator})" if each.simulator else "") for each in places],
    }


SUCCESS = Pivot(
    name="success",
    words=SUCCESS_WORDS,
    lead={**LEAD, "runtime": "{{ report.runtime }}"},
    columns=[
        {"% success": "{{ rate | percent }}", "points to fp32": "{{ to_fp32 | percent('+') }}"},
        {"flight s": "{{ success.flight_time_s | fixed(2) }}", "distance m": "{{ success.distance_m | fixed(1) }}"},
        {"energy J": "{{ '%.0f' | format(success.energy_j) if success.energy_j is not none }}"},
        {"decision p50": "{{ decision }}", "others ended by": ENDED},
        MEASURED,
    ],
    rows=successes,
    facts=flight_facts,
    gathered=False,
    titled=("runtime", "measured"),
)
