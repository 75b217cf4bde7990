"""How often a policy reaches the goal: fresh episodes, 95 % intervals, paired with fp32, two baselines beside it.

    python bench/success.py --policy I --precision int8 --episodes 1000 --seed 7
    python bench/success.py --policy I,II,III --precision fp32,int8 --episodes 3000 --on device
    python bench/success.py --policy I,II,III --precision int8 --episodes 3000 --late 0,50,100,200,400

--on device: simulator and policy both run on the device. --on loop: the host simulates, the device decides (hardware
in the loop). --on host: both here, with the numpy reference of that precision and no device at all.

--simulator airsim: the episodes are flown in AirSim (or what stands in for it; docs/airsim.md), which simulates beside
the host; the device decides (--on loop), or this process does (--on host).

--late: commands take effect so many milliseconds late, and the old one is held meanwhile; "measured" draws each delay
from the decisions of the device itself, which are timed first. All fly the same episodes: differences are paired.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from quarl.airlearning_envs.simulators.opening import EMBEDDED, add_simulator_arguments, json_object, simulator_options
from quarl.bench import command_line

if TYPE_CHECKING:
    from quarl.bench.device_session.host_flights import Flights
    from quarl.bench.device_session.questions import Served
    from quarl.bench.device_session.session import Session
    from quarl.bench.report.document import Report

MEASURED = "measured"
LONGEST_MS = 10_000
MEASURED_RUNS = 2000  # timed decisions that the delays of --late measured are drawn from


def main(argv: Sequence[str] | None = None) -> int:
    """Fly, store, print."""
    parser = command_line.parser(__doc__, "bench/success.py")
    command_line.add_device_arguments(parser, precisions="fp32,int8")
    parser.add_argument("--episodes", type=command_line.positive, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=command_line.not_negative, default=7, help="default: %(default)s")
    parser.add_argument("--preset", choices=["easy", "medium", "shipped", "hard"], default="hard")
    parser.add_argument("--on", choices=["device", "loop", "host"], default="device", help="default: %(default)s")
    parser.add_argument(
        "--late", type=_delays, default=[], metavar="0,50,100", help='milliseconds, or "measured" (default: not late)'
    )
    parser.add_argument(
        "--settings",
        type=json_object,
        default={},
        metavar="JSON",
        help="settings of the task, e.g. '{\"wind_m_s\": 2}'",
    )
    add_simulator_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.simulator != EMBEDDED and arguments.on == "device":
        parser.error(f"--simulator {arguments.simulator} does not run on the device; add --on loop or --on host")
    if MEASURED in arguments.late and arguments.on != "device":
        parser.error(f"--late {MEASURED} times the device's own decisions; add --on device")
    return command_line.guarded(_run, arguments)


def _delays(text: str) -> list[float | str]:
    """``0,50,measured`` as sorted seconds, then what is measured; 0 is always flown: the differences are to it."""
    words = command_line.words(text)
    delays = command_line.numbers(",".join(word for word in words if word != MEASURED) or "0")
    if delays[-1] >= LONGEST_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is later than {LONGEST_MS - 1:,} milliseconds")
    return [0.0, *(delay / 1000.0 for delay in delays if delay), *[MEASURED] * (MEASURED in words)]


def _run(arguments: argparse.Namespace) -> int:
    from quarl.airlearning_envs.config import preset
    from quarl.bench.device_session import session
    from quarl.bench.device_session.host_flights import baseline_reports
    from quarl.bench.report import store
    from quarl.bench.report.selection import Selection
    from quarl.bench.tables.answers import SUCCESS
    from quarl.bench.tables.flights import latency_flown

    for late in arguments.late or [0.0]:  # refuses what is wrong before anything is deployed
        preset(arguments.preset).with_settings(_flights(arguments, late if late != MEASURED else 0.0).changed)
    if arguments.on == "host":
        where = arguments.results or store.DEFAULT_STORE
        store.prepare(where)
        reports = []
        for report in _on_host(arguments):
            store.add([report], where)
            reports.append(report)
    else:
        with session.opened(arguments) as asking:
            asking.ask_each(lambda served: _flown(served, arguments, asking))
        reports, where = asking.reports, asking.where
    if arguments.late:
        table, _ = latency_flown(Selection(tuple(reports)), arguments.preset)
        return session.answer(arguments, reports, table)
    baselines = baseline_reports(_embedded(_flights(arguments)), arguments.target, reports[0].run)
    store.add(baselines, where)
    reports += baselines
    return session.answer(arguments, reports, SUCCESS.table(reports), differences=_differences(reports))


def _flights(arguments: argparse.Namespace, late: float | dict[str, Any] = 0.0) -> Flights:
    from quarl.bench.device_session.host_flights import Flights

    settings = {**arguments.settings, **({"latency": late} if late else {})}
    options = simulator_options(arguments)
    return Flights(arguments.preset, arguments.episodes, arguments.seed, settings, arguments.simulator, options)


def _embedded(flights: Flights) -> Flights:
    """The same flights in the embedded simulator."""
    return dataclasses.replace(flights, simulator=EMBEDDED, options={})


def _flown(served: Served, arguments: argparse.Namespace, asking: Session) -> Iterator[Report]:
    """Fly once for each delay; yields the reports."""
    from quarl.bench.device_session.questions import ask_success, ask_success_in_loop

    run, specs = asking.run, {bundle.spec.name: bundle.spec for _, bundle in asking.bundles}
    in_loop = functools.partial(ask_success_in_loop, spec=specs[served.loaded["policy"]])
    ask = ask_success if arguments.on == "device" else in_loop
    for late in arguments.late or [0.0]:
        flights = _flights(arguments, _measured(served, run) if late == MEASURED else late)
        with command_line.progress_bar(f"flying {served.name}{_words(late)}") as progress:
            report = ask(served, run, flights, progress)
        yield report
        _refuse_cut_short(report, flights)


def _measured(served: Served, run: str) -> dict[str, Any]:
    """The device's own latency, from a request's line to the reply's line, as the simulator reads a distribution."""
    from quarl.bench.device_session.questions import ask_latency

    (report,) = ask_latency([served], run, MEASURED_RUNS, MEASURED_RUNS // 10, "decide")
    assert report.latency is not None
    return {"kind": "empirical", "values_s": [value / 1e9 for value in report.latency.samples_ns]}


def _words(late: float | str) -> str:
    return "" if not late else f", late as {late}" if late == MEASURED else f", {1000 * float(late):g} ms late"


def _on_host(arguments: argparse.Namespace) -> Iterator[Report]:
    from quarl.bench.device_session.host_flights import host_success
    from quarl.bench.report.document import new_run
    from quarl.policy.locate import working_bundle

    run = new_run()
    for policy in arguments.policy:
        bundle = working_bundle(policy)
        for precision in arguments.precision:
            for late in arguments.late or [0.0]:
                name = f"flying {bundle.spec.name} {precision.value}{_words(late)}"
                flights = _flights(arguments, late)
                with command_line.progress_bar(name) as progress:
                    report = host_success(bundle, precision, flights, run, progress)
                yield report
                _refuse_cut_short(report, flights)


def _refuse_cut_short(report: Report, flights: Flights) -> None:
    """End where a simulator was lost, or Ctrl-C was typed, before all episodes were flown; what was flown is stored."""
    if report.success is not None and report.success.episodes < flights.episodes:
        raise command_line.BenchError(
            f"{report.success.episodes} of {flights.episodes} episodes were flown; they are stored. Why: see above."
        )


def _differences(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """The paired differences to fp32, for a program."""
    from quarl.bench.report.selection import FP32, paired

    fp32 = {r.policy: r for r in reports if r.precision == FP32}
    found = []
    for report in reports:
        change = paired(report, fp32.get(report.policy)) if report.precision not in (None, FP32) else None
        if change is not None:
            found.append({"policy": report.policy, "precision": report.precision, "minus": FP32, **vars(change)})
    return found


if __name__ == "__main__":
    raise SystemExit(main())
