"""How long one decision takes on a device: p50, p90, p99, cold start, with named denominators in the same run."""

from __future__ import annotations

import importlib.util
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
    from quarl.policy.bundle import Bundle


BESIDE = (Precision.FP32, Precision.INT8)
"""Precisions in LiteRT that the native engine is timed beside."""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Timing, command_line.DeviceOptions):
    """What is timed.

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
    """How long one decision takes on a device: p50, p90, p99, cold start, with named denominators in the same run.

        quarl bench latency --policy III
        quarl bench latency --policy I,II,III --precision fp32,fp16,int8 --target pi@raspberrypi

    A missing artifact is made first and deployed first. The fp32 artifact on the device and, where the device is this
    machine, Keras' model(x) and a tf.function of it take turns with what is asked for; with the native engine, which
    has no fp32, LiteRT's fp32 and int8, where the device has a Python to run them.
    """
    from quarl.bench.device_session import session
    from quarl.bench.tables.answers import LATENCY

    precisions = list(dict.fromkeys([Precision.FP32, *options.precision]))  # the denominator of every speed-up
    with session.opened(options, precisions) as asking:
        for runtime, bundle in asking.deployed():
            asking.keep(_measured(asking, runtime, bundle, options))
    return session.answer(options, asking.reports, LATENCY.table(asking.reports))


def _measured(asking: Session, runtime: RuntimeName, bundle: Bundle, options: Options) -> list[Report]:
    """One run: memory and latency of each precision, all of them served together, then the frameworks' latencies."""
    from quarl.bench.device_session import access
    from quarl.bench.device_session.baseline import framework_calls
    from quarl.bench.device_session.questions import ask_latency, ask_memory
    from quarl.bench.report.document import new_run

    run, policy = new_run(), bundle.spec.name
    with ExitStack() as stack:
        pairs = [(each, runtime) for each in asking.executed_by(runtime)]
        if not asking.device.has_python:
            command_line.say(f"LiteRT's fp32 and int8: left out, {asking.device.name} has no Python.")
        elif not runtime.artifact_format.holds(Precision.FP32):
            # A release has all its precisions in all its runtimes that execute them.
            both = list(dict.fromkeys([*BESIDE, *asking.precisions]))
            with_both = access.bundle_with(str(bundle.path), both, RuntimeName.LITERT)
            asking.device.deploy(with_both, both, RuntimeName.LITERT)
            pairs = [*((each, RuntimeName.LITERT) for each in BESIDE), *pairs]
        served = [stack.enter_context(asking.device.serving(policy, *pair)) for pair in pairs]
        memory = [ask_memory(one, run) for one in served]
        contestants: list[TimedInTurns] = [*served]
        if not options.no_baseline and _frameworks_apply(served[0], bundle):
            contestants += stack.enter_context(framework_calls(bundle.path, policy, asking.device.name))
        progress = stack.enter_context(command_line.progress_bar(f"timing {policy}"))
        times = ask_latency(contestants, run, options.runs, options.warmup, options.path, progress)
    return [*memory, *times]


def _frameworks_apply(served: Served, bundle: Bundle) -> bool:
    """Whether a framework's call on the host says anything about this device; says why when it does not."""
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


main = cli.of("bench latency")

if __name__ == "__main__":
    raise SystemExit(main())
