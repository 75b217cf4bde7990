"""The end of `make demo`: ask a device about policies I, II and III in fp32 and int8, then print the table.

    python bench/demo.py
    python bench/demo.py --target pi@raspberrypi --episodes 3000

One SSH connection; for each policy the artifacts are made if missing, deployed if not there, and asked for memory,
latency (Keras and TFLite fp32 beside int8, in turns) and success. Ends with the case study's table and two pictures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import command_line

if TYPE_CHECKING:
    from bench.measuring.access import Device
    from bench.measuring.questions import Flights
    from bench.report.document import Report
    from policy.bundle import Bundle
    from policy.spec import RuntimeName


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the case study, store it, print it."""
    parser = command_line.parser(__doc__, "bench/demo.py")
    parser.add_argument(
        "--policy", type=command_line.words, default=None, help="default: those of I, II, III there are"
    )
    parser.add_argument(
        "--precision", type=command_line.read_precisions, default="fp32,int8", help="default: fp32,int8"
    )
    parser.add_argument("--runs", type=command_line.positive, default=2000, help="timed runs (default: %(default)s)")
    parser.add_argument("--episodes", type=command_line.positive, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=command_line.not_negative, default=7, help="default: %(default)s")
    parser.add_argument("--preset", choices=["easy", "medium", "shipped", "hard"], default="hard")
    parser.add_argument("--no-baseline", action="store_true", help="leave out Keras and tf.function on the host")
    command_line.add_runtime_and_target(parser)
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from bench.measuring import access
    from bench.measuring import measurements as measuring
    from bench.measuring.questions import Flights
    from bench.report import case_study, plots, store
    from bench.report import tables as rendering
    from bench.report.selection import Selection
    from policy.spec import RuntimeName

    runtime = RuntimeName(arguments.runtime)
    flights = Flights(arguments.preset, arguments.episodes, arguments.seed)
    names = arguments.policy or policies_there_are()
    where = arguments.results or store.DEFAULT_STORE
    store.prepare(where)
    precisions = measuring.with_fp32(arguments.precision)
    bundles = [access.bundle_with(name, precisions, runtime) for name in names]
    reports: list[Report] = []
    with access.connected(arguments.target) as device:
        for bundle in bundles:
            made = _measure(arguments, device, bundle, runtime, flights)
            store.add(made, where)
            reports += made
    reports.append(measuring.blind_report(flights, arguments.target, measuring.new_run()))
    store.add(reports[-1:], where)
    selection = Selection(tuple(reports))
    table, _ = case_study.case_study(selection, arguments.preset)
    files = plots.save_figures(selection, where.parent, arguments.preset)
    if arguments.json:
        command_line.print_json(reports, figures=[str(file) for file in files])
    else:
        rendering.print_table(table, command_line.console())
        print(f"Stored in {where}; pictures: {', '.join(str(f) for f in files if f.suffix == '.png')}")
    return command_line.EXIT_OK


def _measure(
    arguments: argparse.Namespace, device: Device, bundle: Bundle, runtime: RuntimeName, flights: Flights
) -> list[Report]:
    """Memory, latency and success of one policy."""
    from bench.measuring import measurements as measuring
    from bench.measuring.questions import ask_success

    name, precisions = bundle.spec.name, measuring.with_fp32(arguments.precision)
    device.deploy(bundle, precisions, runtime)
    with command_line.progress_bar(f"Policy {name}: timing fp32, int8, Keras") as progress:
        reports = measuring.measure_latency(
            device, bundle, precisions, runtime, arguments.runs, 200, "runtime", not arguments.no_baseline, progress
        )
    for precision in precisions:
        with (
            device.serving(name, precision, runtime) as served,
            command_line.progress_bar(f"Policy {name}: flying {precision.value} on the device") as progress,
        ):
            reports.append(ask_success(served, reports[0].run, flights, progress))
    return reports


def policies_there_are() -> list[str]:
    """Names of the bundles among I, II and III that were trained here or come with the repository.

    Raises:
        BenchError: none.
    """
    from policy.locate import ARTIFACTS, ZOO
    from policy.manifest import MANIFEST_FILE

    found = [n for n in ("I", "II", "III") if any((root / n / MANIFEST_FILE).exists() for root in (ARTIFACTS, ZOO))]
    if not found:
        raise command_line.BenchError("no policy is there yet.", "make train POLICY=I")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
