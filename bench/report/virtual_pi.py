"""The tables of what was counted, and of the virtual Pi: counts, memory and success of each artifact and runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from bench.report.case_study import NothingStoredError, machine_notes, without_constant_columns
from bench.report.document import Counts, Kind, Report, Where
from bench.report.selection import Selection, policy_order, precision_order, speed_up
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, joined, kilobytes, megabytes, nanoseconds, percent, times

VIRTUAL_PI = "virtual-pi"
TARGET = "pi@virtual"
"""The target whose memory and success are shown."""
MODEL_NOTE = (
    "MODEL, not measured. Lower bound: two instructions a cycle at 1.2 GHz, or the L2's misses at 2.44 GB/s where that "
    "takes longer. Upper bound: half an instruction a cycle, and 29 ns for each line from the L2 and 173 ns for each "
    "from DRAM, nothing overlapping. Each takes the L2's misses under that replacement, least recently used or random, "
    "that makes it a bound. Roofline: multiply-accumulates at 2 (float) or 4 (int8) a cycle, or the weights' "
    "bytes at 2.44 GB/s where they do not fit into the L2. Reasons and sources: bench/measuring/cost_model.py."
)
_RUNTIMES = ("tflite-runtime", "litert", "onnxruntime")


def counts_tables(reports: Iterable[Report]) -> list[Table]:
    """One table for the runtime's own call and one for the agent's whole path."""
    ordered = sorted((r for r in reports if r.counts), key=_order)
    if not ordered:
        raise NothingStoredError("nothing was counted yet.\n  next: python bench/instructions.py --policy I")
    titles = {
        "runtime": "One decision in the runtime: set input, invoke, read the action",
        "decide": "One decision of the agent: request line in, reply line out",
    }
    headers = (
        "policy",
        "precision",
        "runtime",
        "instructions",
        "loads",
        "stores",
        "L1I misses",
        "L1D misses",
        "L2 misses",
        "L2 misses, random",
        "L2 misses, cold",
        "KB weights",
        "weights in",
        "modelled bound",
        "modelled bound, cold",
        "roofline",
    )
    tables = []
    for path, title in titles.items():
        rows = [_counts_row(report, counts, path) for report in ordered if (counts := report.counts)]
        first = ordered[0].counts
        assert first is not None
        notes = (
            f"Counted in qemu-aarch64 -cpu cortex-a53, one thread; medians of {first.runs} observations after "
            f"{first.warmup} warm-ups, the same in every run; runtimes {_versions(ordered)}; code "
            f"{joined(report.code_version for report in ordered)}.",
            "Misses: lines of 64 bytes that a modelled cache lacked (L1 32 KB + 32 KB, L2 512 KB for this core alone, "
            "least recently used, no prefetching). Random: of an L2 that replaces by chance. Cold: every cache emptied "
            "before the call.",
            "KB weights: as they are multiplied; fp16 is unpacked to fp32 on loading: the core has no fp16 arithmetic.",
            MODEL_NOTE,
        )
        tables.append(Table(f"counts-{path}", title, headers, tuple(rows), notes, left=3))
    return tables


def _counts_row(report: Report, counts: Counts, path: str) -> tuple[str, ...]:
    warm, cold = counts.paths[f"{path}_warm"], counts.paths[f"{path}_cold"]
    return (
        report.policy,
        report.precision or NOT_KNOWN,
        report.runtime,
        *(f"{warm[name]:,}" for name in ("instructions", "loads", "stores", "l1i_misses", "l1d_misses")),
        f"{l2_misses(warm):,}",
        f"{warm['l2_random_misses']:,}" if "l2_random_misses" in warm else NOT_KNOWN,
        f"{l2_misses(cold):,}",
        kilobytes(counts.weights["bytes"]),
        counts.weights["level"],
        bound(counts, f"{path}_warm"),
        bound(counts, f"{path}_cold"),
        nanoseconds(counts.model["roofline_ns"]),
    )


def l2_misses(counted: Mapping[str, int]) -> int:
    """Lines, of instructions and data, that came from DRAM."""
    return counted["l2_instruction_misses"] + counted["l2_data_misses"]


def l2_range(counted: Mapping[str, int]) -> str:
    """``3,980 … 10,180``: with the replacement that suits best, and worst."""
    fewest, most = sorted((l2_misses(counted), counted.get("l2_random_misses", l2_misses(counted))))
    return f"{fewest:,}" if fewest == most else f"{fewest:,} … {most:,}"


def bound(counts: Counts, path: str) -> str:
    """``38 µs … 263 µs``."""
    lower, upper = counts.model["bounds_ns"][path]
    return f"{nanoseconds(lower)} … {nanoseconds(upper)}"


def virtual_pi(reports: Sequence[Report], preset: str = "hard", target: str = TARGET) -> tuple[Table, list[Report]]:
    """Policies × precisions × runtimes: what was counted, and what the virtual Pi's agent reported.

    Returns:
        The table and the measurements that it stands on.
    """
    known = sorted(reports, key=lambda report: report.time)
    device = Selection(tuple(r for r in known if r.target == target and r.device.get("emulated")))
    # Of each combination the last word: what was counted, and what was deployed.
    keys = {(r.policy, r.precision, r.runtime): r for r in (*device.reports, *known) if _belongs(r, target)}
    rows: list[tuple[str, ...]] = []
    used: list[Report] = []
    for report in sorted(keys.values(), key=_order):
        if rows and rows[-1] and rows[-1][:2] != (report.policy, report.precision):
            rows.append(())
        cells, found = _row(report, known, device, preset)
        rows.append(cells)
        used += found
    if not any(report.counts for report in used):
        raise NothingStoredError(
            "nothing was counted for the virtual Pi yet.\n  next: python bench/instructions.py --policy I,II,III"
        )
    headers = (
        "policy",
        "precision",
        "runtime",
        "instructions",
        "L2 misses",
        "L2 misses, cold",
        "weights in",
        "modelled bound",
        "modelled bound, cold",
        "roofline",
        "MB resident",
        "KB artifact",
        f"% success, {preset}",
        "fp32's time over this one's, emulated",
    )
    unique = list({report.id: report for report in used}.values())
    table = Table(VIRTUAL_PI, "Virtual Raspberry Pi 3b", headers, tuple(rows), _notes(unique, preset, target), left=3)
    return without_constant_columns(table, ("runtime",)), unique


def _belongs(report: Report, target: str) -> bool:
    on_device = report.kind in (Kind.MEMORY, Kind.SUCCESS, Kind.LATENCY) and report.target == target
    return report.artifact is not None and (report.counts is not None or on_device)


def _row(
    report: Report, known: Sequence[Report], device: Selection, preset: str
) -> tuple[tuple[str, ...], list[Report]]:
    policy, precision, runtime = report.policy, report.precision or "", report.runtime

    def latest(test: Callable[[Report], bool], among: Iterable[Report]) -> Report | None:
        same = [r for r in among if (r.policy, r.precision, r.runtime) == (policy, precision, runtime) and test(r)]
        return same[-1] if same else None

    counted = latest(lambda r: r.counts is not None, known)
    artifact = (counted or report).artifact
    assert artifact is not None

    def of_artifact(test: Callable[[Report], bool]) -> Report | None:
        return latest(
            lambda r: r.artifact is not None and r.artifact.sha256 == artifact.sha256 and test(r), device.reports
        )

    memory = of_artifact(lambda r: r.memory is not None)
    success = of_artifact(lambda r: r.success is not None and r.success.preset == preset and _flown_as_is(r))
    latency = of_artifact(lambda r: r.latency is not None and r.latency.path == "runtime")
    partner = device.fp32_partner(latency) if latency else None
    counts = counted.counts if counted else None
    cells = (
        policy,
        precision,
        runtime,
        f"{counts.paths['runtime_warm']['instructions']:,}" if counts else NOT_KNOWN,
        l2_range(counts.paths["runtime_warm"]) if counts else NOT_KNOWN,
        f"{l2_misses(counts.paths['runtime_cold']):,}" if counts else NOT_KNOWN,
        counts.weights["level"] if counts else NOT_KNOWN,
        bound(counts, "runtime_warm") if counts else NOT_KNOWN,
        bound(counts, "runtime_cold") if counts else NOT_KNOWN,
        nanoseconds(counts.model["roofline_ns"]) if counts else NOT_KNOWN,
        megabytes(memory.memory.resident if memory and memory.memory else None),
        kilobytes(artifact.bytes),
        percent(success.success.rate, success.success.low, success.success.high)
        if success and success.success
        else NOT_KNOWN,
        "1 (base)" if latency is not None and partner is latency else times(speed_up(partner, latency)),
    )
    return cells, [r for r in (counted, memory, success, latency, partner) if r is not None]


def _flown_as_is(report: Report) -> bool:
    """Whether it was flown on the device itself with nothing changed from the preset."""
    return report.success is not None and report.success.where is Where.DEVICE and not report.success.settings


def _notes(reports: Sequence[Report], preset: str, target: str) -> tuple[str, ...]:
    counted = [report for report in reports if report.counts]
    flown = sorted({report.success.episodes for report in reports if report.success})
    episodes = f"{flown[0]:,}" if len(flown) == 1 else f"{flown[0]:,} to {flown[-1]:,}" if flown else NOT_KNOWN
    on_device = [report for report in reports if report.target == target]
    return (
        "Instructions and misses of one decision in the runtime (set input, invoke, read the action): counted in "
        f"qemu-aarch64 -cpu cortex-a53, one thread, runtimes {_versions(counted)}; misses are those of a modelled "
        "512 KB L2 after calls of the same kind (where two numbers: if chance decides what is replaced … if what was "
        "used longest ago, or the other way round), and, cold, after everything was evicted.",
        MODEL_NOTE,
        *machine_notes(on_device),
        f"MB resident: the agent's whole process while serving. Success: greedy, {episodes} fresh episodes of preset "
        f"{preset} flown on the virtual Pi, 95 % Wilson intervals.",
        "The last column is a ratio of emulated times, within one run and runtime: how long QEMU takes, not how long a "
        "Pi takes.",
        *([] if on_device else [f"{NOT_KNOWN}: not measured on {target} yet."]),
    )


def _versions(reports: Sequence[Report]) -> str:
    return joined(f"{report.runtime} {report.runtime_version}" for report in reports)


def _order(report: Report) -> tuple[tuple[int, str], int, int]:
    return policy_order(report.policy), precision_order(report.precision), _RUNTIMES.index(report.runtime)
