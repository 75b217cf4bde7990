"""How long one decision takes on a device: p50, p90, p99, cold start, with named denominators in the same run.

    python bench/latency.py --policy III
    python bench/latency.py --policy I,II,III --precision fp32,fp16,int8 --target pi@raspberrypi

A missing artifact is made first and deployed first. The fp32 artifact on the device and, where the device is this
machine, Keras' model(x) and a tf.function of it take turns with what is asked for; with the native engine, which has no
fp32, LiteRT's fp32 and int8, where the device has a Python to run them.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from quarl.bench import command_line
from quarl.policy.spec import Precision, RuntimeName

if TYPE_CHECKING:
    from quarl.bench.device_session.questions import Served, TimedInTurns
    from quarl.bench.device_session.session import Session
    from quarl.bench.report.document import Report
    from quarl.policy.bundle import Bundle


BESIDE = (Precision.FP32, Precision.INT8)
"""Precisions in LiteRT that the native engine is timed beside."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, store, print."""
    parser = command_line.parser(__doc__, "bench/latency.py")
    command_line.add_device_arguments(parser, precisions="fp32,int8")
    parser.add_argument("--runs", type=command_line.positive, default=2000, help="timed runs (default: %(default)s)")
    parser.add_argument(
        "--warmup", type=command_line.not_negative, default=200, help="untimed runs before each turn (default: 200)"
    )
    command_line.add_path(parser)
    parser.add_argument("--threads", type=command_line.positive, default=None, help="of the runtime (default: 1)")
    parser.add_argument("--no-baseline", action="store_true", help="leave out Keras and tf.function on the host")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from quarl.bench.device_session import session
    from quarl.bench.tables.answers import LATENCY

    precisions = list(dict.fromkeys([Precision.FP32, *arguments.precision]))  # the denominator of every speed-up
    with session.opened(arguments, precisions) as asking:
        for runtime, bundle in asking.deployed():
            asking.keep(_measured(asking, runtime, bundle, arguments))
    return session.answer(arguments, asking.reports, LATENCY.table(asking.reports))


def _measured(asking: Session, runtime: RuntimeName, bundle: Bundle, arguments: argparse.Namespace) -> list[Report]:
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
        if not arguments.no_baseline and _frameworks_apply(served[0], bundle):
            contestants += stack.enter_context(framework_calls(bundle.path, policy, asking.device.name))
        progress = stack.enter_context(command_line.progress_bar(f"timing {policy}"))
        times = ask_latency(contestants, run, arguments.runs, arguments.warmup, arguments.path, progress)
    return [*memory, *times]


def _frameworks_apply(served: Served, bundle: Bundle) -> bool:
    """Whether a framework's call on the host says anything about this device; says why when it does not."""
    from quarl.bench.report.machine import is_this_machine
    from quarl.policy.project_python import install_hint

    why = "" if bundle.spec.is_discrete else "the policy is continuous"
    if bundle.spec.state_size:
        why = "the policy is recurrent"
    if importlib.util.find_spec("tensorflow") is None:
        why = install_hint("tensorflow")
    if not is_this_machine(served.device):
        why = f"{served.target} is another machine than this one and has no TensorFlow"
    if why:
        command_line.say(f"Keras baseline: not applicable, {why}.")
    return not why


if __name__ == "__main__":
    raise SystemExit(main())
