"""The case study: latency, memory, size and success of policies × precisions, joined from stored measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quarl.bench.report.document import BLIND, Kind, Report
from quarl.bench.report.notes import (
    circumstances,
    facts_of,
    percentile,
    rate,
    ratio_cell,
    report_notes,
    reports_of,
    require_rows,
    success_gain,
    withheld_notes,
)
from quarl.bench.report.selection import FP32, Selection, pair_successes, speed_up
from quarl.bench.report.text import NOT_KNOWN, fill_sentences, join_distinct, kilobytes, megabytes, percent
from quarl.bench.tables import Table, tabulate

Row = Mapping[str, Any]
PAPER_DEVICE = "Raspberry Pi 3b"
PAPER = {
    ("I", "fp32"): (0.147, 0.60),
    ("I", "int8"): (0.124, 0.45),
    ("II", "fp32"): (133.49, 0.74),
    ("II", "int8"): (9.53, 0.60),
    ("III", "fp32"): (208.115, 0.86),
    ("III", "int8"): (11.036, 0.75),
}
"""Figures by policy and precision: latency in milliseconds, success as a fraction."""
SPEED_UPS = {"I": 1.18, "II": 14.0, "III": 18.85}
"""Times as fast as fp32 that the paper prints for int8, by policy."""
CASE_STUDY, SUMMARY, DEPTH = "case-study", "summary", "depth"
MISSING = "no measurement of a policy is stored yet.\n  next: make demo"
PATH = "runtime"
WORDS = """\
{{ title }}
{{ machines }}
p50 and p99: time of one decision at batch 1 (set input, invoke, read the action) over {{ runs | span }} runs with \
{{ threads | span }} thread(s); the precisions take turns. Speed-up over fp32: p50 of the fp32 artifact in the same \
runtime divided by this p50; over Keras fp32: p50 of model(x) on the host divided by this p50. Both are medians over \
the turns of one run, with the smallest and the largest in brackets. They hold for this processor: on another one the \
order of the precisions may differ, most likely for a network as small as I.
MB resident: peak of the agent's whole process (Python, numpy, runtime) while it serves. MB added by loading: \
artifact, interpreter and packed weights.
Success: greedy actions in {{ episodes }} fresh episodes of preset \
{{ [preset, rows[0].other_preset] | select | joined }}, with 95 % Wilson intervals. Points to fp32: paired difference \
on the same episodes with its 95 % interval (Newcombe's method 10).
{% if rows[0].in_paper %}
Paper's: QuaRL's figures on a {{ paper_device }}, for other networks and another task, without intervals.
{% endif %}
{{ withheld }}
{{ own_notes }}
{{ dynamics }}
"""
SUMMARY_WORDS = """\
What int8 brings
{{ machines }}
Speed: median time of a decision in fp32 divided by that in int8, in the same runtime and run. MB resident: the whole \
process on the device. Success: 95 % intervals; points: paired difference on the same episodes\
{{ "; a baseline that ignores obstacles succeeds in " ~ blind | percent ~ " %" if blind }}.
{{ dynamics }}
In parentheses: the paper's figures (QuaRL on a {{ paper_device }}, other networks, another task).
"""
FINDING = """\
int8 decides up to {{ faster }} as fast as fp32 in the same runtime ({{ fastest }}), and its artifacts are \
{{ smaller | min | times }} to {{ smaller | max | times }} smaller. Over {{ episodes | span }} flights of preset \
{{ preset }}, success changes by at most {{ "%.1f" | format(most) }} points anywhere in the paired 95 % intervals. \
Measured on {{ device | machine }}.
"""


def rows_of(selection: Selection, preset: str, other_preset: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row for each policy and precision, of one artifact in one runtime; below these one for the blind
    baseline.

    Args:
        selection: the measurements.
        preset: that success and its difference to fp32 are of.
        other_preset: one more whose success is looked for.
    """
    of_policies = False
    presets = (preset, *filter(None, [other_preset]))
    shared = {
        "preset": preset,
        "other_preset": other_preset,
        "in_paper": any(policy in selection.policies() for policy, _ in PAPER),
    }
    for policy in selection.policies():
        fp32 = None
        for precision in selection.precisions(policy):
            latency = selection.last(Kind.LATENCY, policy=policy, precision=precision, path=PATH)
            of: dict[str, Any] = {"policy": policy, "precision": precision}
            of |= {"runtime": latency.runtime, "sha256": latency.sha256} if latency else {}
            memory = selection.last(Kind.MEMORY, **of)
            flights = [selection.best_success(preset=preset_name, **of) for preset_name in presets]
            reports = [report for report in (latency, memory, *flights) if report is not None]
            if not reports or reports[0].artifact is None:
                continue
            fp32 = flights[0] if precision == FP32 else fp32
            partner = selection.fp32_partner(latency)
            keras, compiled = (  # the second for the picture
                selection.last(Kind.LATENCY, run=latency.run, policy=policy, runtime=name) if latency else None
                for name in ("keras", "tf.function")
            )
            of_policies = True
            yield {
                **shared,
                "reports": [*reports, partner, keras, compiled],
                "policy": policy,
                "precision": precision,
                "runtime": reports[0].runtime,
                "p50": percentile(latency, "p50", partner),
                "p99": percentile(latency, "p99", partner),
                "over_fp32": ratio_cell(partner, latency),
                "over_keras": ratio_cell(keras, latency),
                "memory": memory.memory if memory else None,
                "bytes": reports[0].artifact.bytes,
                "success": list(map(rate, flights)),
                "to_fp32": success_gain(flights[0], fp32) if precision != FP32 else None,
                "paper": PAPER.get((policy, precision)),
                "papers_speed_up": SPEED_UPS.get(policy),
                "measured": join_distinct(circumstances(latency, memory, flights[0])),
            }
    flights = [selection.best_success(BLIND, None, preset_name) for preset_name in presets]
    if of_policies and any(flights):
        yield {
            **shared,
            **dict.fromkeys(("precision", "runtime", "p50", "p99", "over_fp32", "over_keras"), NOT_KNOWN),
            **dict.fromkeys(("memory", "bytes", "to_fp32", "paper")),
            "reports": flights,
            "policy": BLIND,
            "success": list(map(rate, flights)),
            "measured": join_distinct(circumstances(*flights)),
        }


def facts(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the notes name: the machines, how much was measured, the flights of the blind baseline."""
    device = [report for report in reports_of(rows) if report.artifact is not None]
    timed = [report for report in device if report.latency]
    return {
        **facts_of(rows),
        "threads": [report.threads for report in device if report.threads],
        "runs": [report.latency.runs for report in timed if report.latency],
        "withheld": "\n".join(withheld_notes(timed, "p50", "p99")),
        "own_notes": "\n".join(report_notes(timed)),
        "blind": next((row["success"][0] for row in rows if row["policy"] == BLIND), None),
        "paper_device": PAPER_DEVICE,
    }


def _int8_beside_fp32(rows: Sequence[Row]) -> list[Row]:
    fp32 = {row["policy"]: row for row in rows if row["precision"] == FP32}
    return [
        {**row, "fp32": fp32[row["policy"]]} for row in rows if row["precision"] == "int8" and row["policy"] in fp32
    ]


def case_study(selection: Selection, preset: str = "hard") -> tuple[Table, list[Report]]:
    """Policies × precisions with the paper's figures labelled as such, and the measurements that the table stands on.

    Raises:
        StoreError: there are none.
    """
    return _cases(CASE_STUDY, "Case study", require_rows(rows_of(selection, preset), MISSING))


def depth(selection: Selection, preset: str = "hard") -> tuple[Table, list[Report]]:
    """Return the same of the policies that see depth pictures, with their success on both arenas; raises as it does."""
    rows = require_rows(rows_of(selection, preset, "shipped"), MISSING)
    return _cases(DEPTH, "A policy of depth pictures", rows)


def _cases(name: str, title: str, rows: Sequence[Row]) -> tuple[Table, list[Report]]:
    lines = []
    for row in rows:
        memory, success = row["memory"], row["success"]
        line = {
            "policy": row["policy"],
            "precision": row["precision"],
            "runtime": row["runtime"],
            "p50": row["p50"],
            "p99": row["p99"],
            "speed-up over fp32": row["over_fp32"],
            "speed-up over Keras fp32": row["over_keras"],
            "MB resident": megabytes(memory.resident if memory else None),
            "MB added by loading": megabytes(memory.artifact_share if memory else None),
            "KB artifact": kilobytes(row["bytes"]),
            f"% success, {row['preset']}": percent(success[0]),
            "points to fp32": percent(row["to_fp32"], "+"),
        }
        if row["other_preset"]:
            line[f"% success, {row['other_preset']}"] = percent(success[1])
        if row["in_paper"]:
            paper = row["paper"]
            line[f"paper's, {PAPER_DEVICE}"] = f"{paper[0]:g} ms, {100 * paper[1]:.0f} %" if paper else ""
        lines.append({**line, "measured": row["measured"]})
    places: dict[str, Any] = {"left": 3, "rules": ("policy",), "titled": ("runtime", "measured"), "exempt": BLIND}
    return tabulate(name, WORDS, lines, title=title, rows=rows, **places, **facts(rows)), reports_of(rows)


def summary(selection: Selection, preset: str = "hard") -> Table:
    """Return what the README shows of the case study: a row for each policy and precision; raises as it does."""
    rows = require_rows(rows_of(selection, preset), MISSING)
    lines = []
    for row in _int8_beside_fp32(rows):
        paper, before, memory = row["paper"], row["fp32"]["memory"], row["memory"]
        success = percent(row["success"][0])
        success += f": {percent(row['to_fp32'], '+')} points" if row["to_fp32"] else ""
        success += f" (paper: {100 * row['fp32']['paper'][1]:.0f} → {100 * paper[1]:.0f})" if paper else ""
        speed_up = row["papers_speed_up"]
        residents = (megabytes(usage.resident if usage else None) for usage in (before, memory))
        lines.append(
            {
                "policy": row["policy"],
                "speed": row["over_fp32"] + (f" (paper: {speed_up:g}×)" if speed_up else ""),
                "MB resident": " → ".join(residents),
                f"% success, {preset}": success,
            }
        )
    return tabulate(SUMMARY, SUMMARY_WORDS, lines, rows=rows, **facts(rows))


def finding(selection: Selection, preset: str = "hard") -> str:
    """Return what int8 costs and gains on the device, in a sentence; "" where fp32 and int8 were not both measured."""
    faster, smaller, most, episodes, device = {}, [], [], [], None
    for policy in selection.policies():
        fp32, int8 = (selection.last(Kind.LATENCY, policy=policy, precision=name, path=PATH) for name in (FP32, "int8"))
        success = selection.best_success(policy, "int8", preset)
        ratio, change = speed_up(fp32, int8), pair_successes(success, selection.best_success(policy, FP32, preset))
        if ratio is None or change is None or not (fp32 and int8 and fp32.artifact and int8.artifact):
            continue
        device = int8.device
        faster[ratio] = policy, ratio_cell(fp32, int8)
        smaller.append(fp32.artifact.bytes / int8.artifact.bytes)
        most.append(100 * max(abs(change.low), abs(change.high)))
        episodes.append(change.episodes)
    if device is None:
        return ""
    fastest, ratio_words = faster[max(faster)]
    values = {"smaller": smaller, "most": max(most), "episodes": episodes, "device": device, "preset": preset}
    return fill_sentences(FINDING, faster=ratio_words, fastest=fastest, **values)[0]
