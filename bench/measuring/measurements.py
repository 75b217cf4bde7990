"""What the commands do with a device: which questions in which order, and the short tables they print."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.command_line import say
from bench.measuring.access import Device
from bench.measuring.questions import (
    Contestant,
    Flights,
    Progress,
    Served,
    ask_latency,
    ask_memory,
    fly_on_host,
)
from bench.report.case_study import (
    machine_notes,
    percentile,
    said_of,
    time_cell,
    withheld_notes,
    without_constant_columns,
)
from bench.report.document import BLIND, Kind, Report, Transport
from bench.report.machine import is_this_machine
from bench.report.selection import FP32, Selection, paired, speed_up, turn_ratios
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, circumstances, joined, kilobytes, megabytes, percent, points, times
from policy.spec import Precision, RuntimeName

if TYPE_CHECKING:
    from policy.bundle import Bundle


def new_run() -> str:
    """An id that measurements made side by side share."""
    return uuid.uuid4().hex


def with_fp32(precisions: Sequence[Precision]) -> list[Precision]:
    """These precisions and, first, fp32: the denominator of every speed-up."""
    return list(dict.fromkeys([Precision.FP32, *precisions]))


def measure_latency(
    device: Device,
    bundle: Bundle,
    precisions: Sequence[Precision],
    runtime: RuntimeName,
    runs: int,
    warmup: int,
    path: str,
    frameworks: bool,
    progress: Progress = lambda done, total: None,
) -> list[Report]:
    """Memory and latency of a policy's deployed artifacts in turns, and of Keras where the device is this machine.

    Returns:
        Reports of one run: memory and latency of each precision, then the frameworks' latencies.
    """
    run, policy = new_run(), bundle.spec.name
    with ExitStack() as stack:
        served = stack.enter_context(device.serving_all(policy, precisions, runtime))
        memory = [ask_memory(one, run) for one in served]
        contestants: list[Contestant] = [*served]
        if frameworks and frameworks_apply(served[0], bundle):
            from bench.measuring.baseline import framework_calls

            contestants += stack.enter_context(framework_calls(bundle.path, policy, device.name))
        latency = ask_latency(contestants, run, runs, warmup, path, progress)
    return [*memory, *latency]


def frameworks_apply(served: Served, bundle: Bundle) -> bool:
    """Whether a framework's call on the host says anything about this device; says why when it does not."""
    if not is_this_machine(dict(served.device)):
        say(f"Keras baseline: not applicable, {served.target} is another machine than this one and has no TensorFlow.")
        return False
    if not bundle.spec.is_discrete:
        say("Keras baseline: not applicable to a continuous policy.")
        return False
    return True


def blind_report(flights: Flights, target: str, run: str) -> Report:
    """The fly-to-the-goal baseline on the same episodes; it needs no device."""
    from airlearning_envs.flights import blind_policy
    from device.agent.fingerprint import fingerprint

    return Report(
        kind=Kind.SUCCESS,
        run=run,
        policy=BLIND,
        precision=None,
        runtime="none",
        runtime_version="",
        threads=None,
        artifact=None,
        target=target,
        transport=Transport.LOCAL_PROCESS,
        device=fingerprint(),
        success=fly_on_host(blind_policy, flights),
    )


def latency_table(reports: Sequence[Report]) -> Table:
    """One run's latencies with their denominators."""
    chosen = Selection(tuple(reports))
    rows = []
    for report in (r for r in reports if r.latency is not None):
        latency = report.latency
        assert latency is not None
        partner = chosen.fp32_partner(report) if report.artifact else None
        keras = chosen.baseline(report.run, report.policy, "keras")
        memory = chosen.latest_memory(report.policy, report.precision or "", report.runtime, None)
        rows.append(
            (
                report.policy,
                report.precision or NOT_KNOWN,
                {"keras": "Keras model(x)"}.get(report.runtime, report.runtime),
                *(percentile(report, name, partner) for name in ("p50", "p90", "p99")),
                time_cell(report, latency.mean_ns, partner),
                time_cell(report, latency.cold_first_ns, partner),
                "1 (base)" if partner is report else ratio_cell(partner, report),
                "1 (base)" if keras is report else ratio_cell(keras, report),
                kilobytes(report.artifact.bytes if report.artifact else None),
                megabytes(memory.memory.resident if memory and memory.memory else None),
                joined(circumstances(report)),
            )
        )
    headers = (
        "policy",
        "precision",
        "runtime",
        "p50",
        "p90",
        "p99",
        "mean",
        "cold first",
        "speed-up over fp32, same runtime",
        "speed-up over Keras fp32",
        "KB artifact",
        "MB resident",
        "measured",
    )
    first = next(r.latency for r in reports if r.latency is not None)
    notes = [
        *machine_notes(reports),
        f"{first.runs:,} runs each after {first.warmup} warm-up, batch 1, in {len(first.block_p50_ns)} turns "
        f"(A B A B); path {first.path}. Speed-ups: median of the turns' ratios of p50, in brackets the "
        "least and the greatest.",
        *withheld_notes(reports, ("p50", "p90", "p99")),
    ]
    if not any(r.runtime == "keras" for r in reports):
        notes.append("No Keras baseline: not asked for, or not applicable on this device.")
    notes += said_of(reports)
    return Table("latency", "Latency of one decision", headers, tuple(rows), tuple(notes), left=3)


def ratio_cell(slow: Report | None, fast: Report) -> str:
    """A speed-up with its spread over the turns: ``2.52× [2.48, 2.57]``."""
    turns = turn_ratios(slow, fast)
    spread = f" [{times(min(turns)).rstrip('×')}, {times(max(turns)).rstrip('×')}]" if len(turns) > 1 else ""
    return times(speed_up(slow, fast)) + spread


def memory_table(reports: Sequence[Report]) -> Table:
    """Resident memory of the agent's process at its stations, and the artifact's size."""
    rows = []
    for report in reports:
        memory = report.memory
        if memory is None or report.artifact is None:
            continue
        rows.append(
            (
                report.policy,
                report.precision or NOT_KNOWN,
                f"{report.runtime} {report.runtime_version}",
                kilobytes(report.artifact.bytes),
                megabytes(memory.baseline),
                megabytes(memory.before_load),
                megabytes(memory.after_load),
                megabytes(memory.running_peak),
                megabytes(memory.artifact_share),
                joined(circumstances(report)),
            )
        )
    headers = (
        "policy",
        "precision",
        "runtime",
        "KB artifact",
        "MB agent alone",
        "MB runtime imported",
        "MB loaded",
        "MB peak serving",
        "MB added by loading",
        "measured",
    )
    notes = (
        *machine_notes(reports),
        "MB resident of the agent's process (10⁶ bytes), a fresh process for each row.",
        *said_of(reports),
    )
    return without_constant_columns(
        Table("memory", "Memory", headers, tuple(rows), notes, left=3), ("runtime", "measured")
    )


def success_table(reports: Sequence[Report]) -> Table:
    """Success of each precision with its interval, its paired difference to fp32, and how the others ended."""
    rows = []
    fp32 = {r.policy: r for r in reports if r.success and r.precision == FP32}
    for report in (r for r in reports if r.success):
        success = report.success
        assert success is not None
        change = paired(report, fp32.get(report.policy)) if report.precision != FP32 else None
        ends = ", ".join(f"{count} {cause}" for cause, count in success.causes.items() if count and cause != "goal")
        rows.append(
            (
                report.policy,
                report.precision or NOT_KNOWN,
                report.runtime,
                percent(success.rate, success.low, success.high),
                points(change.difference, change.low, change.high) if change else NOT_KNOWN,
                _number(success.flight_time_s, 2),
                _number(success.distance_m, 1),
                _number(success.energy_j, 0),
                time_cell(report, success.decide_p50_ns),
                ends.replace("_", " ") or "none",
                joined(circumstances(report)),
            )
        )
    headers = (
        "policy",
        "precision",
        "runtime",
        "% success",
        "points to fp32",
        "flight s",
        "distance m",
        "energy J",
        "decision p50",
        "others ended by",
        "measured",
    )
    first = next(r.success for r in reports if r.success)
    changed = f", settings {dict(first.settings)}" if first.settings else ""
    places = joined(r.success.where.value for r in reports if r.success and r.policy != BLIND)
    notes = (
        *machine_notes([r for r in reports if r.policy != BLIND]),
        f"{first.episodes:,} episodes of preset {first.preset}{changed}, seed {first.seed}, greedy, flown on: "
        f"{places}. In brackets 95 % intervals: Wilson; of the paired difference on the same episodes Newcombe's "
        "method 10. Flight, distance and energy are means of the successful flights. "
        "blind: fly to the goal, simulated on the host.",
    )
    title = f"Success, preset {first.preset}{changed}"
    return without_constant_columns(
        Table("success", title, headers, tuple(rows), notes, left=3), ("runtime", "measured")
    )


def _number(value: float | None, decimals: int) -> str:
    return NOT_KNOWN if value is None else f"{value:.{decimals}f}"
