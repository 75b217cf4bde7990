"""The tables of what was counted, and of the virtual Pi: counts, memory and success of each artifact and runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.report.document import Counts, Kind, Report, Where
from bench.report.notes import codes, dynamics_note, flown, machine_notes, rate, ratio_cell, versions
from bench.report.selection import Selection, policy_order, precision_order
from bench.report.store import StoreError
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, filled, joined, kilobytes, megabytes, nanoseconds, times

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
read. Reasons and sources: bench/measuring/cost_model.py.
"""
COUNTS_NOTES = """\
Counted in qemu-aarch64 -cpu cortex-a53, one thread; medians of {{ first.runs }} observations after \
{{ first.warmup }} warm-ups, the same in every run; runtimes {{ versions }}; code {{ codes }}.
Misses: lines of 64 bytes that a modelled cache lacked (L1 32 KB + 32 KB, L2 512 KB for this core alone, least \
recently used, no prefetching). Random: of an L2 that replaces by chance. Cold: every cache emptied before the call.
KB weights: as they are multiplied; fp16 is unpacked to fp32 on loading: the core has no fp16 arithmetic.
{{ model }}
"""
NOTES = """\
Instructions and misses of one decision in the runtime (set input, invoke, read the action): counted in qemu-aarch64 \
-cpu cortex-a53, one thread, runtimes {{ versions }}; misses are those of a modelled 512 KB L2 after calls of the same \
kind (where two numbers: if chance decides what is replaced … if what was used longest ago, or the other way round), \
and, cold, after everything was evicted.
{{ model }}
{{ machines }}
MB resident: the agent's whole process while serving. {% if flights %}Success: greedy, {{ episodes }} fresh episodes \
of preset {{ preset }} flown on the virtual Pi, 95 % Wilson intervals. {{ dynamics }}{% else %}Success: not flown in \
today's task yet.{% endif %}

The agent's whole path, from request line to reply line, takes in {{ runtime }} {{ precision }} so many times the \
instructions of the runtime's own call: {{ whole_path }}.
The last column is a ratio of emulated times, within one run and runtime: how long QEMU takes, not how long a Pi takes.
{% if not machines %}
–: not measured on {{ target }} yet.
{% endif %}
"""


def counts_tables(reports: Sequence[Report]) -> list[Table]:
    """One table for the runtime's own call and one for the agent's whole path."""
    counted = {report.id: report.counts for report in reports if report.counts}
    ordered = sorted((report for report in reports if report.counts), key=_order)
    tables = []
    for path, title in PATHS.items():
        rows = []
        for report in ordered:
            counts = counted[report.id]
            warm, cold = counts.paths[f"{path}_warm"], counts.paths[f"{path}_cold"]
            figures: dict[str, int | None] = {name: warm[name] for name in ("instructions", "loads", "stores")}
            figures |= {"L1I misses": warm["l1i_misses"], "L1D misses": warm["l1d_misses"]}
            figures |= {"L2 misses": l2_misses(warm), "L2 misses, random": warm.get("l2_random_misses")}
            figures |= {"L2 misses, cold": l2_misses(cold)}
            rows.append(
                {
                    **_names(report),
                    **{name: NOT_KNOWN if value is None else f"{value:,}" for name, value in figures.items()},
                    "KB weights": kilobytes(counts.weights["bytes"]),
                    **_modelled(counts, path),
                }
            )
        notes = filled(
            COUNTS_NOTES,
            first=counted[ordered[0].id],
            versions=versions(ordered),
            codes=codes(ordered),
            model=model_note(ordered),
        )
        tables.append(Table.of(f"counts-{path}", title, rows, notes, left=3))
    return tables


def _names(report: Report) -> dict[str, str]:
    return {"policy": report.policy, "precision": report.precision or NOT_KNOWN, "runtime": report.runtime}


def _modelled(counts: Counts, path: str) -> dict[str, str]:
    """Where the weights lie, and the model's ``38 µs … 263 µs``; of two rooflines the sparse one first."""
    warm, cold = (
        " … ".join(map(nanoseconds, counts.model["bounds_ns"][f"{path}_{state}"])) for state in ("warm", "cold")
    )
    rooflines = [counts.model["roofline_ns"], counts.model.get("roofline_sparse_ns")]
    return {
        "weights in": counts.weights["level"],
        "modelled bound": warm,
        "modelled bound, cold": cold,
        "roofline": " … ".join(nanoseconds(each) for each in reversed(rooflines) if each is not None),
    }


def model_note(reports: Iterable[Report]) -> str:
    """What the modelled numbers rest on."""
    assumptions = next(report.counts.model["assumptions"] for report in reports if report.counts)
    return filled(MODEL_NOTE, **assumptions)[0]


def l2_misses(counted: Mapping[str, int]) -> int:
    """Lines, of instructions and data, that came from DRAM."""
    return counted["l2_instruction_misses"] + counted["l2_data_misses"]


def l2_range(counted: Mapping[str, int]) -> str:
    """``3,980 … 10,180``: with the replacement that suits best, and worst."""
    ends = sorted((l2_misses(counted), counted.get("l2_random_misses", l2_misses(counted))))
    return " … ".join(f"{end:,}" for end in dict.fromkeys(ends))


def virtual_pi(reports: Sequence[Report], preset: str = "hard", target: str = TARGET) -> tuple[Table, list[Report]]:
    """Policies × precisions × runtimes: what was counted, and what the virtual Pi's agent reported.

    Returns:
        The table and the measurements that it stands on.

    Raises:
        StoreError: nothing was counted yet.
    """
    known = Selection(tuple(sorted(reports, key=lambda report: report.time)))
    device = Selection(tuple(r for r in known.reports if r.target == target and r.device.get("emulated")))
    # Of each combination the last word: what was counted, and what was deployed.
    on_device = [r for r in known.reports if r.target == target and r.artifact is not None]
    keys = {tuple(_names(r).values()): r for r in (*on_device, *known.of(Kind.COUNTS))}
    rows: list[dict[str, str]] = []
    used: list[Report | None] = []
    before: tuple[str, ...] = ()
    for (policy, precision, _), report in sorted(keys.items(), key=lambda item: _order(item[1])):
        if rows and before != (policy, precision):
            rows.append({})
        before = (policy, precision)
        counted = known.last(Kind.COUNTS, **_names(report))
        of = {**_names(report), "sha256": (counted or report).sha256}
        memory, latency = device.last(Kind.MEMORY, **of), device.last(Kind.LATENCY, path="runtime", **of)
        flights = device.of(Kind.SUCCESS, preset=preset, where=Where.DEVICE, **of)
        success = next((each for each in reversed(flights) if each.success and not each.success.settings), None)
        partner = device.fp32_partner(latency)
        used += [counted, memory, success, latency, partner]
        artifact = (counted or report).artifact
        rows.append(
            {
                **_names(report),
                **_counted(counted.counts if counted else None),
                "MB resident": megabytes(memory.memory.resident if memory and memory.memory else None),
                "KB artifact": kilobytes(artifact.bytes if artifact else None),
                f"% success, {preset}": rate(success),
                "fp32's time over this one's, emulated": ratio_cell(partner, latency),
            }
        )
    unique = list({report.id: report for report in used if report}.values())
    if not any(report.counts for report in unique):
        raise StoreError(
            "nothing was counted for the virtual Pi yet.\n  next: python bench/instructions.py --policy I,II,III"
        )
    notes = filled(
        NOTES,
        versions=versions(report for report in unique if report.counts),
        model=model_note(unique),
        machines="\n".join(machine_notes([report for report in unique if report.target == target])),
        episodes=flown(unique),
        preset=preset,
        target=target,
        flights=any(report.success for report in unique),
        dynamics=dynamics_note(preset),
        **dict(zip(("runtime", "precision"), WHOLE_PATH_OF, strict=True)),
        whole_path=joined(
            f"{report.policy} {times(_instructions(report, 'decide') / _instructions(report, 'runtime'))}"
            for report in unique
            if report.counts and (report.runtime, report.precision) == WHOLE_PATH_OF
        ),
    )
    return Table.of(VIRTUAL_PI, "Virtual Raspberry Pi 3b", rows, notes, left=3).said_once("runtime"), unique


def _instructions(report: Report, path: str) -> int:
    assert report.counts is not None
    return report.counts.paths[f"{path}_warm"]["instructions"]


def _counted(counts: Counts | None) -> dict[str, str]:
    """Of the runtime's own call."""
    if counts is None:
        names = ("instructions", "L2 misses", "L2 misses, cold", "weights in", "modelled bound", "modelled bound, cold")
        return dict.fromkeys((*names, "roofline"), NOT_KNOWN)
    warm, cold = counts.paths["runtime_warm"], counts.paths["runtime_cold"]
    misses = {"L2 misses": l2_range(warm), "L2 misses, cold": f"{l2_misses(cold):,}"}
    return {"instructions": f"{warm['instructions']:,}", **misses, **_modelled(counts, "runtime")}


def _order(report: Report) -> tuple[tuple[int, str], int, int]:
    return policy_order(report.policy), precision_order(report.precision), _RUNTIMES.index(report.runtime)
