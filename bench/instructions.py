"""What one decision costs a Cortex-A53, without owning one: instructions, loads, stores, cache misses, modelled time.

    python bench/instructions.py --policy III
    python bench/instructions.py --policy I,II,III --precision int8 --runtime litert --json

The agent and the very wheels of a 64-bit Raspberry Pi run in qemu-aarch64, and a QEMU plugin counts between two marker
instructions: around the runtime's own call (set input, invoke, read the action), and around the agent's whole path
(request line in, reply line out), each with warm caches and with caches that hold nothing of it. One thread; medians
of 11 observations after 10 warm-ups; a second run gives the same counts. The counts are exact, the caches are modelled,
and the time is a MODEL made from them (bench/cost/cost_model.py says how), never a measurement.

Debian packages: qemu-user mmdebstrap gcc libc6-dev binutils.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from quarl.bench import command_line
from quarl.policy.spec import RuntimeName

if TYPE_CHECKING:
    from quarl.bench.qemu_counter.counting import Count
    from quarl.bench.report.document import Report
    from quarl.policy.bundle import Bundle
    from quarl.policy.spec import Precision

TARGET = "qemu-user"
"""The target that these measurements are stored under."""


def main(argv: Sequence[str] | None = None) -> int:
    """Count, store, print."""
    parser = command_line.parser(__doc__, "bench/instructions.py")
    parser.add_argument("--policy", type=command_line.words, default=[], metavar="III", help="one, or several")
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="only compile the plugin and fetch what the guest needs, so that counting needs no network",
    )
    parser.add_argument(
        "--precision",
        type=command_line.read_precisions,
        default=command_line.read_precisions("fp32,fp16,int8"),
        metavar="fp32,fp16,int8",
        help="one, or several with commas (default: %(metavar)s)",
    )
    parser.add_argument(
        "--runtime",
        type=command_line.read_runtimes,
        default=list(RuntimeName),
        metavar="litert",
        help=f"of {', '.join(name.value for name in RuntimeName)} (default: all of them)",
    )
    command_line.add_output_arguments(parser)
    arguments = parser.parse_args(argv)
    if not arguments.policy and not arguments.prepare:
        parser.error("which policy? Type --policy III, or --prepare")
    return command_line.guarded(_prepare if arguments.prepare else _run, arguments)


def _prepare(arguments: argparse.Namespace) -> int:
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
    for runtime in arguments.runtime:
        import_path(runtime)
    command_line.say("Counting is prepared.")
    return command_line.EXIT_OK


def _run(arguments: argparse.Namespace) -> int:
    from quarl.bench.device_session import access, session
    from quarl.bench.qemu_counter.building import require_programs
    from quarl.bench.qemu_counter.counting import count
    from quarl.bench.report import store
    from quarl.bench.report.document import new_run
    from quarl.bench.tables.virtual_pi import counts_tables

    require_programs()
    where = arguments.results or store.DEFAULT_STORE
    store.prepare(where)
    run = new_run()
    wanted = [(policy, runtime) for policy in arguments.policy for runtime in arguments.runtime]
    reports: list[Report] = []
    with command_line.progress_bar("counting") as progress:
        for policy, runtime in wanted:
            precisions = [each for each in arguments.precision if runtime.artifact_format.holds(each)]
            bundle = access.bundle_with(policy, precisions, runtime)
            for precision in precisions:
                progress(len(reports), len(wanted) * len(arguments.precision))
                made = counts_report(bundle, precision, count(bundle.path, precision, runtime), run)
                store.add([made], where)
                reports.append(made)
    return session.answer(arguments, reports, *counts_tables(reports))


def counts_report(bundle: Bundle, precision: Precision, counted: Count, run: str) -> Report:
    """The counts and the model's bounds, as a measurement to be stored."""
    from dataclasses import asdict

    from quarl.bench.cost import cost_model
    from quarl.bench.cost.activity import activities, read_share
    from quarl.bench.device_session.questions import report_on
    from quarl.bench.report.document import Counts, Kind
    from quarl.convert.mixed import bits_of

    is_native = counted.loaded["runtime"] == RuntimeName.NATIVE.value
    weights = cost_model.Weights.of(bundle.spec, precision, bits_of(bundle, precision) if is_native else None)
    sparse = {}
    if is_native and not bundle.spec.network.convolutions:
        read = read_share(activities(bundle, precision))
        sparse = {"roofline_sparse_ns": round(cost_model.roofline_ns(weights, precision, read))}
    bounds = {path: cost_model.bounds(found) for path, found in counted.paths.items()}
    counts = Counts(
        warmup=counted.warmup,
        runs=counted.runs,
        paths={path: asdict(found) for path, found in counted.paths.items()},
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


if __name__ == "__main__":
    raise SystemExit(main())
