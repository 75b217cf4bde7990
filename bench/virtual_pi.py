"""The tables of what was counted, and of the virtual Pi: counts, memory and success of each artifact and runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from quarl.bench.report.document import Kind, Report, Where
from quarl.bench.report.notes import (
    codes,
    facts_of,
    machine_notes,
    rate,
    ratio_cell,
    reports_of,
    require_rows,
    versions,
)
from quarl.bench.report.selection import Selection, policy_order, precision_order
from quarl.bench.report.text import (
    NOT_KNOWN,
    fill_sentences,
    format_fixed,
    kilobytes,
    megabytes,
    nanoseconds,
    percent,
    times,
)
from quarl.bench.tables import Table, tabulate

Row = Mapping[str, Any]
VIRTUAL_PI = "virtual-pi"
TARGET = "pi@virtual"
"""The target whose memory and success are shown."""
WHOLE_PATH_OF = ("litert", "int8")
_RUNTIMES = ("tflite-runtime", "litert", "onnxruntime", "native")
PATHS = {
    "runtime": "One decision in the runtime: set input, invoke, read the action",
    "decide": "One decision of the agent: request line in, reply line out",
}
MODEL_NOTE = """\
MODEL, not measured. Lower bound: {{ ipc_high | int }} instructions a cycle at {{ clock_hz / 1e9 }} GHz, or the L2's \
misses at {{ bandwidth_bytes_per_s / 1e9 }} GB/s where that takes longer. Upper bound: {{ ipc_low }} instructions a \
cycle, and {{ l2_latency_ns | int }} ns for each line from the L2 and {{ dram_latency_ns | int }} ns for each from \
DRAM, nothing overlapping. Each takes the L2's misses under that replacement, least recently used or random, that \
makes it a bound. Roofline: multiply-accumulates at {{ float_macs_per_cycle | int }} (float) or \
{{ integer_macs_per_cycle | int }} (int8) a cycle, or the weights' bytes at {{ bandwidth_bytes_per_s / 1e9 }} GB/s \
where they do not fit into the L2; of the native engine also with the share of weights alone that zeros leave to be \
read. Reasons and sources: bench/cost/cost_model.py.
"""
COUNTS_NOTES = """\
Counted in qemu-aarch64 -cpu cortex-a53, one thread; medians of {{ first.runs }} observations after \
{{ first.warmup }} warm-ups, the same in every run; runtimes {{ versions }}; code {{ codes }}.
Misses: lines of 64 bytes that a modelled cache lacked (L1 32 KB + 32 KB, L2 512 KB for this core alone, least \
recently used, no prefetching). Random: of an L2 that replaces by chance. Cold: every cache emptied before the call.
KB weights: as they are multiplied; fp16 is unpacked to fp32 on loading: the core has no fp16 arithmetic.
{{ model }}
"""
WORDS = """\
Virtual Raspberry Pi 3b
Instructions and misses of one decision in the runtime (set input, invoke, read the action): counted in qemu-aarch64 \
-cpu cortex-a53, one thread, runtimes {{ versions }}; misses are those of a modelled 512 KB L2 after calls of the same \
kind (where two numbers: if chance decides what is replaced … if what was used longest ago, or the other way round), \
and, cold, after everything was evicted.
{{ model }}
{{ machines }}
MB resident: the agent's whole process while serving. {% if flights %}Success: greedy, {{ episodes }} fresh episodes \
of preset {{ preset }} flown on the virtual Pi, 95 % Wilson intervals. {{ dynamics }}{% else %}Success: not flown in \
today's task yet.{% endif %}

The agent's whole path, from request line to reply line, takes in {{ whole_path_of | join(" ") }} a multiple of the \
instructions of the runtime's own call: {{ whole_path | joined }}.
The last column is a ratio of emulated times, within one run and runtime: how long QEMU takes, not how long a Pi takes.
{% if not machines %}
–: not measured on {{ target }} yet.
{% endif %}
"""


def collect_counts(report: Report | None, path: str) -> dict[str, Any]:
    """Return what was counted of a path with warm and with cold caches, and modelled of it, ns; counts: None where
    nothing."""
    counts = report.counts if report else None
    if counts is None:
        return {"counts": None}
    warm, cold = counts.paths[f"{path}_warm"], counts.paths[f"{path}_cold"]
    bounds, rooflines = counts.model["bounds_ns"], (counts.model.get("roofline_sparse_ns"), counts.model["roofline_ns"])
    return {
        "counts": counts,
        "warm": warm,
        "bound": bounds[f"{path}_warm"],
        "cold_bound": bounds[f"{path}_cold"],
        "rooflines": [roofline for roofline in rooflines if roofline is not None],
        "misses": l2_misses(warm),
        "random_misses": warm.get("l2_random_misses"),
        "cold_misses": l2_misses(cold),
    }


def model_note(reports: Iterable[Report]) -> str:
    """Return a note on the assumptions of the modelled numbers."""
    assumptions = next(report.counts.model["assumptions"] for report in reports if report.counts)
    return fill_sentences(MODEL_NOTE, **assumptions)[0]


def l2_misses(found: Mapping[str, int]) -> int:
    """Lines, of instructions and data, that came from DRAM."""
    return found["l2_instruction_misses"] + found["l2_data_misses"]


def names(report: Report) -> dict[str, str]:
    """Return what was executed, and by what."""
    return {"policy": report.policy, "precision": report.precision or NOT_KNOWN, "runtime": report.runtime}


def order(report: Report) -> tuple[tuple[int, str], tuple[int, int], int]:
    """Sort key: by policy, then precision, then runtime."""
    return policy_order(report.policy), precision_order(report.precision), _RUNTIMES.index(report.runtime)


def format_model_cells(row: Row) -> dict[str, str]:
    """Return where the weights are, and the model's bounds of a decision's time."""
    ranges = {"modelled bound": "bound", "modelled bound, cold": "cold_bound", "roofline": "rooflines"}
    if row["counts"] is None:
        return dict.fromkeys(("weights in", *ranges), "")
    spans = {header: " … ".join(map(nanoseconds, row[name])) for header, name in ranges.items()}
    return {"weights in": row["counts"].weights["level"], **spans}


def counts_tables(reports: Sequence[Report]) -> list[Table]:
    """Return one table for the runtime's own call and one for the agent's whole path."""
    ordered = sorted((report for report in reports if report.counts), key=order)
    shared: dict[str, Any] = {"first": ordered[0].counts, "versions": versions(ordered), "codes": codes(ordered)}
    shared["model"] = model_note(ordered)
    return [
        tabulate(
            f"counts-{path}",
            f"{title}\n{COUNTS_NOTES}",
            [{**names(report), **_count_cells(collect_counts(report, path))} for report in ordered],
            left=3,
            **shared,
        )
        for path, title in PATHS.items()
    ]


def _count_cells(row: Row) -> dict[str, str]:
    warm = row["warm"]
    return {
        **{name: f"{warm[name]:,}" for name in ("instructions", "loads", "stores")},
        **{f"{name} misses": f"{warm[f'{name.lower()}_misses']:,}" for name in ("L1I", "L1D")},
        "L2 misses": f"{row['misses']:,}",
        "L2 misses, random": format_fixed(row["random_misses"]),
        "L2 misses, cold": f"{row['cold_misses']:,}",
        "KB weights": kilobytes(row["counts"].weights["bytes"]),
        **format_model_cells(row),
    }


def rows_of(reports: Sequence[Report], preset: str, target: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each policy, precision and runtime: what was counted, and what the device's agent reported.

    There are none where nothing was counted.
    """
    known = Selection(tuple(sorted(reports, key=lambda report: report.time)))
    if not known.of(Kind.COUNTS):
        return
    device = Selection(tuple(r for r in known.reports if r.target == target and r.device.get("emulated")))
    # Of each combination the last word: what was counted, and what was deployed.
    on_device = [r for r in known.reports if r.target == target and r.artifact is not None]
    latest = {tuple(names(r).values()): r for r in (*on_device, *known.of(Kind.COUNTS))}
    for report in sorted(latest.values(), key=order):
        counting = known.last(Kind.COUNTS, **names(report))
        of = {**names(report), "sha256": (counting or report).sha256}
        memory, latency = device.last(Kind.MEMORY, **of), device.last(Kind.LATENCY, path="runtime", **of)
        flights = device.of(Kind.SUCCESS, preset=preset, where=Where.DEVICE, **of)
        success = next((flight for flight in reversed(flights) if flight.success and not flight.success.settings), None)
        partner = device.fp32_partner(latency)
        artifact = (counting or report).artifact
        yield {
            **names(report),
            **collect_counts(counting, "runtime"),
            "reports": [counting, memory, success, latency, partner],
            "preset": preset,
            "target": target,
            "resident": memory.memory.resident if memory and memory.memory else None,
            "bytes": artifact.bytes if artifact else None,
            "success": rate(success),
            "over_fp32": ratio_cell(partner, latency),
        }


def facts(rows: Sequence[Row]) -> Mapping[str, Any]:
    """Return what the notes name: versions, the model, the machines of the target, how much the agent's path adds."""
    used, target = reports_of(rows), rows[0]["target"]
    return {
        **facts_of(rows),
        "versions": versions(report for report in used if report.counts),
        "model": model_note(used),
        "machines": "\n".join(machine_notes([report for report in used if report.target == target])),
        "target": target,
        "flights": any(report.success for report in used),
        "whole_path_of": WHOLE_PATH_OF,
        "whole_path": [
            f"{report.policy} {times(agent_path['instructions'] / own['instructions'])}"
            for report in used
            if report.counts and (report.runtime, report.precision) == WHOLE_PATH_OF
            for agent_path, own in [(report.counts.paths["decide_warm"], report.counts.paths["runtime_warm"])]
        ],
    }


def virtual_pi(reports: Sequence[Report], preset: str = "hard", target: str = TARGET) -> tuple[Table, list[Report]]:
    """Policies × precisions × runtimes: what was counted, and what the virtual Pi's agent reported.

    Returns:
        The table and the measurements that it stands on.

    Raises:
        StoreError: nothing was counted yet.
    """
    missing = "nothing was counted for the virtual Pi yet.\n  next: quarl bench instructions --policy I,II,III"
    rows = require_rows(rows_of(reports, preset, target), missing)
    lines = []
    for row in rows:
        counts: dict[str, str] = dict.fromkeys(("instructions", "L2 misses", "L2 misses, cold"), "")
        if row["counts"] is not None:
            misses = {count for count in (row["misses"], row["random_misses"]) if count is not None}
            counts["instructions"] = f"{row['warm']['instructions']:,}"
            counts["L2 misses"] = " … ".join(f"{count:,}" for count in sorted(misses))
            counts["L2 misses, cold"] = f"{row['cold_misses']:,}"
        lines.append(
            {
                **{name: row[name] for name in ("policy", "precision", "runtime")},
                **counts,
                **format_model_cells(row),
                "MB resident": megabytes(row["resident"]),
                "KB artifact": kilobytes(row["bytes"]),
                f"% success, {preset}": percent(row["success"]),
                "fp32's time over this one's, emulated": row["over_fp32"],
            }
        )
    rules, titled = ("policy", "precision"), ("runtime",)
    table = tabulate(VIRTUAL_PI, WORDS, lines, left=3, rules=rules, titled=titled, rows=rows, **facts(rows))
    return table, reports_of(rows)
