"""The case study: latency, memory, size and success of policies × precisions, joined from stored measurements."""

from __future__ import annotations

from typing import Any

from bench.report.document import BLIND, Kind, Report
from bench.report.notes import (
    circumstances,
    dynamics_note,
    flown,
    gained,
    machine_notes,
    percentile,
    rate,
    ratio_cell,
    said_of,
    some,
    withheld_notes,
)
from bench.report.paper import PAPER, PAPER_DEVICE
from bench.report.selection import FP32, Selection, paired, speed_up
from bench.report.store import StoreError
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, filled, joined, kilobytes, machine, megabytes, times

CASE_STUDY, SUMMARY, DEPTH = "case-study", "summary", "depth"
TITLES = {CASE_STUDY: "Case study", DEPTH: "A policy of depth pictures"}
PATH = "runtime"
NOTES = """\
p50, p99: one decision at batch 1 (set input, invoke, read the action), {{ threads }} thread(s), {{ runs }} runs each, \
precisions taking turns. Speed-up over fp32: p50 of the fp32 artifact in the same runtime over this p50; over Keras \
fp32: p50 of model(x) on the host over this p50; both the median of one run's turns, in brackets the least and the \
greatest of them. Both are this processor's: on another one the order of precisions may be another, on a network as \
small as I first of all.
MB resident: the agent's whole process (Python, numpy, runtime) at its peak while serving; MB added by loading: \
artifact, interpreter and packed weights.
Success: greedy, {{ episodes }} fresh episodes of preset {{ preset }}, 95 % Wilson intervals; points to fp32: on the \
same episodes, paired, 95 % interval (Newcombe's method 10).
{% if device %}
Paper's: QuaRL's figures on a {{ device }}, other networks and another task, no intervals given.
{% endif %}
"""
FINDING = """\
On {{ machine }} int8 decides up to {{ faster }} as fast as fp32 in the same runtime ({{ fastest }}), from artifacts \
{{ smaller }} to {{ smallest }} as small; over {{ episodes }} flights of preset {{ preset }} success changes by no \
more than {{ most }} points, whatever lies within the paired 95 % intervals.
"""


def case_study(
    selection: Selection, preset: str = "hard", *, name: str = CASE_STUDY, other_preset: str | None = None
) -> tuple[Table, list[Report]]:
    """Policies × precisions: latency, speed-up, memory, size and success, with the paper's figures labelled as such.

    Args:
        selection: the measurements.
        preset: that success and its difference to fp32 are shown of.
        name: of the table.
        other_preset: one whose success stands beside it.

    Returns:
        The table and the measurements that it stands on.

    Raises:
        StoreError: there are none.
    """
    rows: list[dict[str, str]] = []
    used: list[Report | None] = []
    presets = (preset, *filter(None, [other_preset]))
    in_paper = any(policy in selection.policies() for policy, _ in PAPER)
    for policy in selection.policies():
        fp32 = None
        for precision in selection.precisions(policy):
            latency = selection.last(Kind.LATENCY, policy=policy, precision=precision, path=PATH)
            of: dict[str, Any] = {"policy": policy, "precision": precision}
            of |= {"runtime": latency.runtime, "sha256": latency.sha256} if latency else {}
            memory = selection.last(Kind.MEMORY, **of)
            flown_there = {each: selection.best_success(preset=each, **of) for each in presets}
            success = flown_there[preset]
            found = [report for report in (latency, memory, *flown_there.values()) if report is not None]
            if not found or found[0].artifact is None:
                continue
            fp32 = success if precision == FP32 else fp32
            partner = selection.fp32_partner(latency)
            keras, compiled = (  # the second for the picture
                selection.last(Kind.LATENCY, run=latency.run, policy=policy, runtime=name) if latency else None
                for name in ("keras", "tf.function")
            )
            used += [*found, partner, keras, compiled]
            held, paper = memory.memory if memory else None, PAPER.get((policy, precision))
            theirs = f"{paper[0]:g} ms, {100 * paper[1]:.0f} %" if paper else NOT_KNOWN
            rows.append(
                {
                    "policy": policy,
                    "precision": precision,
                    "runtime": found[0].runtime,
                    "p50": percentile(latency, "p50", partner),
                    "p99": percentile(latency, "p99", partner),
                    "speed-up over fp32": ratio_cell(partner, latency),
                    "speed-up over Keras fp32": ratio_cell(keras, latency),
                    "MB resident": megabytes(held.resident if held else None),
                    "MB added by loading": megabytes(held.artifact_share if held else None),
                    "KB artifact": kilobytes(found[0].artifact.bytes),
                    f"% success, {preset}": rate(success),
                    "points to fp32": gained(paired(success, fp32) if precision != FP32 else None),
                    **{f"% success, {each}": rate(flown_there[each]) for each in presets[1:]},
                    **({f"paper's, {PAPER_DEVICE}": theirs} if in_paper else {}),
                    "measured": joined(circumstances(latency, memory, success)),
                }
            )
        rows.append({})
    if not used:
        raise StoreError("no measurement of a policy is stored yet.\n  next: make demo")
    blind = {each: selection.best_success(BLIND, None, each) for each in presets}
    if any(blind.values()):
        used += blind.values()
        said = {f"% success, {each}": rate(report) for each, report in blind.items()}
        said |= {"policy": BLIND, "measured": joined(circumstances(*blind.values()))}
        rows.append(dict.fromkeys(next(filter(None, rows)), NOT_KNOWN) | said)
    unique = list({report.id: report for report in used if report}.values())
    device = [report for report in unique if report.policy != BLIND and report.artifact is not None]
    timed = [report for report in device if report.latency is not None]
    notes = (
        *machine_notes(device),
        *filled(
            NOTES,
            threads=some(report.threads for report in device if report.threads),
            runs=some(report.latency.runs for report in timed if report.latency),
            episodes=flown(unique),
            preset=joined(presets),
            device=PAPER_DEVICE if in_paper else None,
        ),
        *withheld_notes(device, "p50", "p99"),
        *said_of(timed),
        dynamics_note(preset),
    )
    table = Table.of(name, TITLES[name], rows, notes, left=2)
    return table.said_once("runtime", "measured", but=BLIND), unique


def depth(selection: Selection, preset: str = "hard") -> tuple[Table, list[Report]]:
    """The same of the policies that see depth pictures, with their success on both arenas; raises as it does."""
    return case_study(selection, preset, name=DEPTH, other_preset="shipped")


def finding(selection: Selection, preset: str = "hard") -> str:
    """What int8 costs and gains on the device, in a sentence; "" where fp32 and int8 were not both measured."""
    faster, smaller, most, successes, device = {}, [], [], [], None
    for policy in selection.policies():
        fp32, int8 = (selection.last(Kind.LATENCY, policy=policy, precision=name, path=PATH) for name in (FP32, "int8"))
        success = selection.best_success(policy, "int8", preset)
        ratio, change = speed_up(fp32, int8), paired(success, selection.best_success(policy, FP32, preset))
        if ratio is None or change is None or not (fp32 and int8 and fp32.artifact and int8.artifact):
            continue
        device = int8.device
        faster[ratio] = policy, ratio_cell(fp32, int8)
        smaller.append(fp32.artifact.bytes / int8.artifact.bytes)
        most.append(100 * max(abs(change.low), abs(change.high)))
        successes.append(change.episodes)
    if device is None:
        return ""
    (said,) = filled(
        FINDING,
        machine=machine(device),
        faster=faster[max(faster)][1],
        fastest=faster[max(faster)][0],
        smaller=times(min(smaller)),
        smallest=times(max(smaller)),
        episodes=some(successes),
        preset=preset,
        most=f"{max(most):.1f}",
    )
    return said


def summary(selection: Selection, preset: str = "hard") -> Table:
    """What the README shows of the case study: a row for each policy and precision, and the paper's figures.

    Raises:
        StoreError: nothing is stored.
    """
    whole, used = case_study(selection, preset)
    ours = ("policy", "precision", "p50", "MB resident", "KB artifact", f"% success, {preset}")
    rows = []
    for row in whole.rows:
        if row and row[0] != BLIND:
            cells = dict(zip(whole.headers, row, strict=True))
            theirs = [*cells[f"paper's, {PAPER_DEVICE}"].split(", "), NOT_KNOWN]
            rows.append({name: cells[name] for name in ours} | {"paper's p50": theirs[0], "paper's success": theirs[1]})
    blind = next((report for report in used if report.policy == BLIND), None)
    notes = (
        *machine_notes([report for report in used if report.policy != BLIND and report.artifact is not None]),
        "p50: median time of one decision; the order of precisions depends on the machine, on a network as small as I "
        "first of all. MB resident: the whole process on the device. Success: with 95 % intervals"
        + (f"; flying straight to the goal, as if nothing were in between: {rate(blind)}." if blind else "."),
        dynamics_note(preset),
        f"The paper's: QuaRL's p50 and success on a {PAPER_DEVICE}, of other networks on another task.",
    )
    return Table.of(SUMMARY, "Policies on a device", rows, notes, left=2)
