"""How long one decision takes on a device: p50, p90, p99, cold start, with named denominators in the same run."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.command_line import NotNegative, Positive
from quarl.policy.console import heartbeat
from quarl.policy.spec import Precision, RuntimeName

if TYPE_CHECKING:
    from quarl.bench.device_session.questions import Served, TimedInTurns
    from quarl.bench.device_session.session import Session
    from quarl.bench.report.document import Report
    from quarl.bench.tables import Table
    from quarl.policy.bundle import Bundle


WORDS = """\
Latency of one decision
{{ machines }}
{{ first.runs | thousands }} runs each after {{ first.warmup }} warm-up runs, batch 1, in \
{{ first.block_p50_ns | length }} turns (A B A B); path {{ first.path }}. Speed-ups: median of the turns' ratios of \
p50, in brackets the smallest and the largest.
{{ withheld }}
{% if not keras %}
No Keras baseline: not requested, or not applicable on this device.
{% endif %}
{{ own_notes }}
"""
BESIDE = (Precision.FP32, Precision.INT8)
"""Precisions in LiteRT that the native engine is timed beside."""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Timing, command_line.DeviceOptions):
    """What to time.

    Attributes:
        runs: timed runs
        warmup: untimed runs before each turn
        threads: of the runtime (default: 1)
        no_baseline: leave out Keras and tf.function on the host
    """

    runs: Positive = 2000
    warmup: NotNegative = 200
    threads: Positive | None = None
    no_baseline: bool = False


@heartbeat()
@cli.verb()
def latency(options: Options) -> int:
    """Measure the latency of one decision on a device: p50, p90, p99, cold start, with references in the same run.

        quarl bench latency --policy III
        quarl bench latency --policy I,II,III --precision fp32,fp16,int8 --target pi@raspberrypi

    Missing artifacts are converted and deployed first. The fp32 artifact on the device takes turns with the requested
    artifacts; if the device is this machine, so do Keras' model(x) and a tf.function of it. The native engine has no
    fp32: LiteRT's fp32 and int8 take turns with it, if the device has Python.
    """
    from quarl.bench.device_session import session

    precisions = list(dict.fromkeys([Precision.FP32, *options.precision]))  # the denominator of every speed-up
    with session.open_session(options, precisions) as asking:
        for runtime, bundle in asking.deploy_bundles():
            asking.keep(_measure(asking, runtime, bundle, options))
    return session.answer(options, asking.reports, latency_table(asking.reports))


def _measure(asking: Session, runtime: RuntimeName, bundle: Bundle, options: Options) -> list[Report]:
    """Return one run: memory and latency of each precision, all of them served together, then the frameworks'
    latencies."""
    from quarl.bench.device_session import access
    from quarl.bench.device_session.baseline import framework_calls
    from quarl.bench.device_session.questions import ask_latency, ask_memory
    from quarl.bench.report.document import new_run

    run, policy = new_run(), bundle.spec.name
    with ExitStack() as stack:
        pairs = [(precision, runtime) for precision in asking.list_precisions(runtime)]
        if not asking.device.has_python:
            command_line.say(f"LiteRT's fp32 and int8: left out, {asking.device.name} has no Python.")
        elif runtime is RuntimeName.NATIVE:
            # A release has all its precisions in all its runtimes.
            both = list(dict.fromkeys([*BESIDE, *asking.precisions]))
            access.bundle_with(str(bundle.path), both, runtime)
            with_both = access.bundle_with(str(bundle.path), both, RuntimeName.LITERT)
            asking.device.deploy(with_both, both, RuntimeName.LITERT)
            pairs = [*((precision, RuntimeName.LITERT) for precision in BESIDE), *pairs]
        served = [stack.enter_context(asking.device.serving(policy, *pair)) for pair in pairs]
        memory = [ask_memory(one, run) for one in served]
        contestants: list[TimedInTurns] = [*served]
        if not options.no_baseline and _frameworks_apply(served[0], bundle):
            contestants += stack.enter_context(framework_calls(bundle.path, policy, asking.device.name))
        progress = stack.enter_context(command_line.progress_bar(f"timing {policy}"))
        times = ask_latency(contestants, run, options.runs, options.warmup, options.path, progress)
    return [*memory, *times]


def _frameworks_apply(served: Served, bundle: Bundle) -> bool:
    """Return whether a framework's call on the host says anything about this device; says why when it does not."""
    from quarl.bench.report.machine import is_this_machine

    why = "" if bundle.spec.is_plain_choice else f"the policy makes {bundle.spec.head.describe()}"
    if bundle.spec.state_size:
        why = "the policy is recurrent"
    if importlib.util.find_spec("tensorflow") is None:
        why = 'tensorflow is not installed. Type: pip install "quarl[train]"'
    if not is_this_machine(served.device):
        why = f"{served.target} is another machine than this one and has no TensorFlow"
    if why:
        command_line.say(f"Keras baseline: not applicable, {why}.")
    return not why


def latency_table(reports: Sequence[Report]) -> Table:
    """Return a line for each latency, with its denominators in the same run."""
    from quarl.bench.report.document import Kind
    from quarl.bench.report.notes import (
        circumstances,
        machine_notes,
        percentile,
        ratio_cell,
        report_notes,
        time_cell,
        withheld_notes,
    )
    from quarl.bench.report.selection import Selection
    from quarl.bench.report.text import join_distinct, kilobytes, megabytes
    from quarl.bench.tables import tabulate

    chosen = Selection(tuple(reports))
    native = any(report.runtime == "native" for report in reports)
    lines, first = [], None
    for report in reports:
        if (latency := report.latency) is None:
            continue
        first = first or latency
        partner = chosen.fp32_partner(report) if report.artifact else None
        of = {"policy": report.policy, "precision": report.precision, "runtime": report.runtime}
        same_run = {"run": report.run, "policy": report.policy}
        keras = chosen.last(Kind.LATENCY, runtime="keras", **same_run)
        line = {
            "policy": report.policy,
            "precision": report.precision or "",
            "runtime": "Keras model(x)" if report.runtime == "keras" else report.runtime,
            **{name: percentile(report, name, partner) for name in ("p50", "p90", "p99")},
            "mean": time_cell(report, latency.mean_ns, partner),
            "cold first": time_cell(report, latency.cold_first_ns, partner),
            "speed-up over fp32, same runtime": ratio_cell(partner, report),
        }
        if native:
            litert = chosen.last(Kind.LATENCY, runtime="litert", precision="int8", **same_run)
            line["speed-up over int8 in LiteRT"] = ratio_cell(litert, report)
        memory = chosen.last(Kind.MEMORY, **of)
        lines.append(
            {
                **line,
                "speed-up over Keras fp32": ratio_cell(keras, report),
                "KB artifact": kilobytes(report.artifact.bytes if report.artifact else None),
                "MB resident": megabytes(memory.memory.resident if memory and memory.memory else None),
                "measured": join_distinct(circumstances(report)),
            }
        )
    return tabulate(
        "latency",
        WORDS,
        lines,
        left=3,
        first=first,
        machines="\n".join(machine_notes(reports)),
        withheld="\n".join(withheld_notes(reports, "p50", "p90", "p99")),
        keras=any(report.runtime == "keras" for report in reports),
        own_notes="\n".join(report_notes(reports)),
    )


main = cli.of("bench latency")

if __name__ == "__main__":
    raise SystemExit(main())
