"""Latency flown: how often each policy succeeds when its commands take effect 0, 50, 100, 200, 400 ms late.

    python bench/latency_flown.py
    python bench/latency_flown.py --policy I --latency-ms 0,20,40 --episodes 1000

While a command is on its way the old one is held. Simulator and policy both run on the device; all latencies fly the
same episodes, so that the differences are paired. --measured adds a flight with the latency that the device itself has.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import command_line

if TYPE_CHECKING:
    from bench.measuring.questions import Served

MEASURED_RUNS = 2000


def main(argv: Sequence[str] | None = None) -> int:
    """Fly, store, print."""
    parser = command_line.parser(__doc__, "bench/latency_flown.py")
    parser.add_argument("--policy", type=command_line.words, default=["I", "II", "III"], help="default: I,II,III")
    parser.add_argument("--precision", type=command_line.read_precisions, default="int8", help="default: int8")
    parser.add_argument(
        "--latency-ms", type=_latencies, default=_latencies("0,50,100,200,400"), help="default: 0,50,100,200,400"
    )
    parser.add_argument(
        "--measured",
        action="store_true",
        help="fly with the device's own decision latency, too: measured first, drawn anew for each decision",
    )
    parser.add_argument("--episodes", type=command_line.positive, default=3000, help="default: %(default)s")
    parser.add_argument("--seed", type=command_line.not_negative, default=7, help="default: %(default)s")
    parser.add_argument("--preset", choices=["easy", "medium", "shipped", "hard"], default="hard")
    command_line.add_runtime_and_target(parser)
    return command_line.guarded(_run, parser.parse_args(argv))


def _latencies(text: str) -> list[float]:
    """``0,50`` in milliseconds as sorted seconds; 0 is always among them: the differences are to it."""
    try:
        values = {float(word) / 1000.0 for word in command_line.words(text)}
    except ValueError:
        values = {-1.0}
    if not all(0 <= value < 10 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of milliseconds between 0 and 9999")
    return sorted(values | {0.0})


def _run(arguments: argparse.Namespace) -> int:
    from bench.measuring import access
    from bench.measuring import measurements as measuring
    from bench.measuring.questions import Flights, ask_success
    from bench.report import case_study, store
    from bench.report import tables as rendering
    from bench.report.selection import Selection
    from policy.spec import RuntimeName

    store.prepare(arguments.results or store.DEFAULT_STORE)
    runtime, run = RuntimeName(arguments.runtime), measuring.new_run()
    bundles = [access.bundle_with(policy, arguments.precision, runtime) for policy in arguments.policy]
    reports = []
    with access.connected(arguments.target) as device:
        for bundle in bundles:
            device.deploy(bundle, arguments.precision, runtime)
            for precision in arguments.precision:
                with device.serving(bundle.spec.name, precision, runtime) as served:
                    for late in [*arguments.latency_ms, *([_measured(served, run)] if arguments.measured else [])]:
                        flights = Flights(
                            arguments.preset, arguments.episodes, arguments.seed, {"latency": late} if late else {}
                        )
                        with command_line.progress_bar(f"flying {served.name}, late by {_words(late)}") as progress:
                            reports.append(ask_success(served, run, flights, progress))
                        store.add(reports[-1:], arguments.results or store.DEFAULT_STORE)
    if arguments.json:
        command_line.print_json(reports)
    else:
        table, _ = case_study.latency_flown(Selection(tuple(reports)), arguments.preset)
        rendering.print_table(table, command_line.console())
    return command_line.EXIT_OK


def _measured(served: Served, run: str) -> dict[str, Any]:
    """The device's own latency, from a request's line to the reply's line, as the simulator reads a distribution."""
    from bench.measuring.questions import ask_latency

    (report,) = ask_latency([served], run, MEASURED_RUNS, MEASURED_RUNS // 10, "decide")
    assert report.latency is not None
    return {"kind": "empirical", "values_s": [value / 1e9 for value in report.latency.samples_ns]}


def _words(late: float | dict[str, Any]) -> str:
    return f"{1000 * late:g} ms" if isinstance(late, float) else "what was measured"


if __name__ == "__main__":
    raise SystemExit(main())
