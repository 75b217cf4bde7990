"""What one decision costs a Cortex-A53, without owning one: instructions, loads, stores, cache misses, time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.policy.console import heartbeat
from quarl.policy.spec import Precision, RuntimeName

if TYPE_CHECKING:
    from quarl.bench.qemu_counter.counting import Count
    from quarl.bench.report.document import Report
    from quarl.policy.bundle import Bundle

TARGET = "qemu-user"
"""The target that these measurements are stored under."""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Storing):
    """What to count.

    Attributes:
        policy: one, or several with commas
        prepare: only compile the plugin and download the guest's packages, so that counting needs no network
        precision: one, or several with commas
        runtime: one, or several with commas (default: all of them)
    """

    policy: command_line.Policies = ()
    prepare: bool = False
    precision: command_line.Precisions = (Precision.FP32, Precision.FP16, Precision.INT8)
    runtime: command_line.Runtimes = tuple(RuntimeName)


@heartbeat()
@cli.verb()
def instructions(options: Options) -> int:
    """Count the instructions, loads, stores and cache misses of one decision on a Cortex-A53, and model its time.

        quarl bench instructions --policy III
        quarl bench instructions --policy I,II,III --precision int8 --runtime litert --json

    The agent and the wheels of a 64-bit Raspberry Pi run in qemu-aarch64, and a QEMU plugin counts between two marker
    instructions: around the runtime's own call (set input, invoke, read the action), and around the agent's whole path
    (request line in, reply line out), each with warm and with cold caches. One thread; medians of 11 observations after
    10 warm-ups; a second run gives the same counts. The counts are exact, the caches are modelled, and the time is a
    MODEL computed from both (bench/cost/cost_model.py), never a measurement.

    Debian packages: qemu-user mmdebstrap gcc libc6-dev binutils.
    """
    from quarl.bench.device_session import access, session
    from quarl.bench.qemu_counter.building import require_programs
    from quarl.bench.qemu_counter.counting import count
    from quarl.bench.report import store
    from quarl.bench.report.document import new_run
    from quarl.bench.virtual_pi import counts_tables

    if options.prepare:
        return _prepare(options.runtime)
    if not options.policy:
        raise command_line.UsageError("--policy or --prepare is required.", "Type --policy III, or --prepare.")
    require_programs()
    where = options.results or store.DEFAULT_STORE
    store.prepare(where)
    run = new_run()
    wanted = [(policy, runtime) for policy in options.policy for runtime in options.runtime]
    reports: list[Report] = []
    with command_line.progress_bar("counting") as progress:
        for policy, runtime in wanted:
            bundle = access.bundle_with(policy, options.precision, runtime)
            for precision in options.precision:
                progress(len(reports), len(wanted) * len(options.precision))
                report = counts_report(bundle, precision, count(bundle.path, precision, runtime), run)
                store.add([report], where)
                reports.append(report)
    return session.answer(options, reports, *counts_tables(reports))


def _prepare(runtimes: Sequence[RuntimeName]) -> int:
    from quarl.bench.qemu_counter.building import plugin, require_programs
    from quarl.bench.qemu_counter.environment import import_path
    from quarl.bench.qemu_counter.sysroot import sysroot
    from quarl.bench.qemu_counter.unpacking import STOCK_PYTHONS

    require_programs()
    plugin()
    sysroot()
    for stock in STOCK_PYTHONS:
        try:
            stock.fetch()
        except command_line.BenchError as error:  # counting needs none of them, tests of the agent do
            command_line.say(f"Python {stock.series} for {stock.machine} is not there: {error}")
    for runtime in runtimes:
        import_path(runtime)
    command_line.say("Counting is prepared.")
    return cli.EXIT_OK


def counts_report(bundle: Bundle, precision: Precision, counted: Count, run: str) -> Report:
    """Return the counts and the model's bounds, as a measurement to be stored."""
    from dataclasses import asdict

    from quarl.bench.cost import cost_model
    from quarl.bench.cost.activity import activities, read_share
    from quarl.bench.device_session.questions import report_on
    from quarl.bench.report.document import Counts, Kind
    from quarl.convert.mixed import recipe_of

    is_native = counted.loaded["runtime"] == RuntimeName.NATIVE.value
    packed = recipe_of(bundle, precision).bits if precision.is_integer else precision.bits
    weights = cost_model.Weights.of(bundle.spec, precision, packed if is_native else None)
    sparse = {}
    if is_native and precision.is_integer and not bundle.spec.network.convolutions:
        read = read_share(activities(bundle, precision))
        sparse = {"roofline_sparse_ns": round(cost_model.roofline_ns(weights, precision, read))}
    bounds = {path: cost_model.bounds(path_counts) for path, path_counts in counted.paths.items()}
    counts = Counts(
        warmup=counted.warmup,
        runs=counted.runs,
        paths={path: asdict(path_counts) for path, path_counts in counted.paths.items()},
        weights={"macs": weights.macs, "bytes": weights.bytes, "level": weights.level.value},
        model={
            "bounds_ns": {path: [round(b.lower_ns), round(b.upper_ns)] for path, b in bounds.items()},
            "roofline_ns": round(cost_model.roofline_ns(weights, precision)),
            **sparse,
            "assumptions": cost_model.ASSUMPTIONS,
        },
    )
    device = {**counted.device, "model": "qemu-aarch64 -cpu cortex-a53", "memory_total_bytes": None}
    return report_on(counted.loaded, kind=Kind.COUNTS, run=run, target=TARGET, device=device, counts=counts)


main = cli.of("bench instructions")

if __name__ == "__main__":
    raise SystemExit(main())
