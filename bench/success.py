"""How often a policy reaches the goal: fresh episodes, 95 % intervals, paired with fp32, two baselines beside it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.airlearning_envs.simulators.opening import EMBEDDED, SimulatorOptions, json_object, simulator_options
from quarl.bench import command_line
from quarl.bench.command_line import NotNegative, Positive
from quarl.policy.console import heartbeat

if TYPE_CHECKING:
    from quarl.bench.device_session.host_flights import Flights
    from quarl.bench.device_session.questions import Served
    from quarl.bench.device_session.session import Session
    from quarl.bench.report.document import Report
    from quarl.bench.tables import Table

WORDS = """\
Success, preset {{ first.preset }}{{ changed }}
{{ machines }}
{{ first.episodes | thousands }} episodes of preset {{ first.preset }}{{ changed }}, seed {{ first.seed }}, with \
greedy actions, flown on: {{ places | joined }}. In brackets: 95 % intervals (Wilson; for the paired difference on \
the same episodes, Newcombe's method 10). Flight, distance and energy are means over the successful flights. blind: a \
baseline that ignores obstacles and flies to the goal; random: uniformly random actions; both in the embedded \
simulator on the host.
"""
MEASURED = "measured"
LONGEST_MS = 10_000
MEASURED_RUNS = 2000  # timed decisions that the delays of --late measured are drawn from


def _delays(text: str) -> tuple[float | str, ...]:
    """``0,50,measured`` as sorted seconds, then what is measured; 0 is always flown: the differences are to it."""
    words = command_line.words(text)
    delays = command_line.read_numbers(",".join(word for word in words if word != MEASURED) or "0")
    if delays[-1] >= LONGEST_MS:
        raise ValueError(f"delays must be at most {LONGEST_MS - 1:,} milliseconds, got {text!r}")
    return (0.0, *(delay / 1000.0 for delay in delays if delay), *[MEASURED] * (MEASURED in words))


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(SimulatorOptions, command_line.DeviceOptions):
    """What to fly, and where.

    Attributes:
        episodes: of each artifact
        seed: of the episodes
        preset: of the arena
        on: the device: it simulates, too; loop: the host simulates, the device decides; host: both here, in numpy
        late: milliseconds that commands take effect late, or "measured"
        settings: of the task, such as '{"wind_m_s": 2}'
    """

    episodes: Positive = 1000
    seed: NotNegative = 7
    preset: Literal["easy", "medium", "shipped", "hard"] = "hard"
    on: Literal["device", "loop", "host"] = "device"
    late: Annotated[tuple[float | str, ...], cli.reads(_delays, "0,50,100", allow_leading_hyphen=True)] = ()
    settings: Annotated[dict[str, Any], cli.reads(json_object, "JSON", accepts_keys=False)] = field(
        default_factory=dict
    )


@heartbeat()
@cli.verb()
def success(options: Options) -> int:
    """Measure how often a policy reaches the goal: fresh episodes, 95 % intervals, paired with fp32, two baselines.

        quarl bench success --policy I --precision int8 --episodes 1000 --seed 7
        quarl bench success --policy I,II,III --precision fp32,int8 --episodes 3000 --on device
        quarl bench success --policy I,II,III --precision int8 --episodes 3000 --late 0,50,100,200,400

    --on device: simulator and policy both run on the device. --on loop: the host simulates, the device decides
    (hardware in the loop). --on host: both here, with the numpy reference of that precision and no device at all.

    --simulator airsim: the episodes are flown in AirSim (or its stand-in; docs/airsim.md) in place of
    the embedded simulator; the device decides (--on loop), or this process does (--on host).

    --late: commands take effect N milliseconds late, and the old one is held meanwhile; "measured" draws each delay
    from the device's own decisions, which are timed first. The episodes are the same for all: differences are paired.
    """
    from quarl.airlearning_envs.config import preset
    from quarl.bench.device_session import session
    from quarl.bench.device_session.host_flights import baseline_reports
    from quarl.bench.flights import latency_flown
    from quarl.bench.report import store
    from quarl.bench.report.selection import Selection

    if options.simulator != EMBEDDED and options.on == "device":
        raise command_line.UsageError(
            f"--simulator {options.simulator} cannot run on the device.", "Add --on loop or --on host."
        )
    if MEASURED in options.late and options.on != "device":
        raise command_line.UsageError(
            f"--late {MEASURED} requires --on device: it measures the decisions of the device itself.",
            "Type --on device.",
        )
    for late in options.late or (0.0,):  # refuses what is wrong before anything is deployed
        preset(options.preset).with_settings(_flights(options, late if late != MEASURED else 0.0).settings_dict)
    if options.on == "host":
        where = options.results or store.DEFAULT_STORE
        store.prepare(where)
        reports = []
        for report in _on_host(options):
            store.add([report], where)
            reports.append(report)
    else:
        with session.open_session(options) as asking:
            asking.ask_each(lambda served: _fly(served, options, asking))
        reports, where = asking.reports, asking.where
    if options.late:
        table, _ = latency_flown(Selection(tuple(reports)), options.preset)
        return session.answer(options, reports, table)
    baselines = baseline_reports(_to_embedded(_flights(options)), options.target, reports[0].run)
    store.add(baselines, where)
    reports += baselines
    return session.answer(options, reports, success_table(reports), differences=_differences(reports))


def _flights(options: Options, late: float | str | dict[str, Any] = 0.0) -> Flights:
    from quarl.bench.device_session.host_flights import Flights

    settings = {**options.settings, **({"latency": late} if late else {})}
    simulator_settings = simulator_options(options)
    return Flights(options.preset, options.episodes, options.seed, settings, options.simulator, simulator_settings)


def _to_embedded(flights: Flights) -> Flights:
    """Return the same flights in the embedded simulator."""
    return dataclasses.replace(flights, simulator=EMBEDDED, options={})


def _fly(served: Served, options: Options, asking: Session) -> Iterator[Report]:
    """Fly once for each delay; yields the reports."""
    from quarl.bench.device_session.questions import ask_success, ask_success_in_loop

    run, specs = asking.run, {bundle.spec.name: bundle.spec for _, bundle in asking.bundles}
    in_loop = functools.partial(ask_success_in_loop, spec=specs[served.loaded["policy"]])
    ask = ask_success if options.on == "device" else in_loop
    for late in options.late or (0.0,):
        flights = _flights(options, _measure_latency(served, run) if late == MEASURED else late)
        with command_line.progress_bar(f"flying {served.name}{_words(late)}") as progress:
            report = ask(served, run, flights, progress)
        yield report
        _refuse_cut_short(report, flights)


def _measure_latency(served: Served, run: str) -> dict[str, Any]:
    """Return the device's own latency, from a request's line to the reply's line, as the simulator reads a
    distribution."""
    from quarl.bench.device_session.questions import ask_latency

    (report,) = ask_latency([served], run, MEASURED_RUNS, MEASURED_RUNS // 10, "decide")
    assert report.latency is not None
    return {"kind": "empirical", "values_s": [value / 1e9 for value in report.latency.samples_ns]}


def _words(late: float | str) -> str:
    return "" if not late else f", late as {late}" if late == MEASURED else f", {1000 * float(late):g} ms late"


def _on_host(options: Options) -> Iterator[Report]:
    from quarl.bench.device_session.host_flights import host_success
    from quarl.bench.report.document import new_run
    from quarl.policy.locate import working_bundle

    run = new_run()
    for policy in options.policy:
        bundle = working_bundle(policy)
        for precision in options.precision:
            for late in options.late or (0.0,):
                name = f"flying {bundle.spec.name} {precision.value}{_words(late)}"
                flights = _flights(options, late)
                with command_line.progress_bar(name) as progress:
                    report = host_success(bundle, precision, flights, run, progress)
                yield report
                _refuse_cut_short(report, flights)


def _refuse_cut_short(report: Report, flights: Flights) -> None:
    """End where a simulator was lost, or Ctrl-C was typed, before all episodes were flown; what was flown is stored."""
    if report.success is not None and report.success.episodes < flights.episodes:
        raise command_line.BenchError(
            f"only {report.success.episodes} of {flights.episodes} episodes were flown, for the reason above; they "
            "are stored."
        )


def _differences(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Return the paired differences to fp32, for a program."""
    from quarl.bench.report.selection import FP32, pair_successes

    fp32 = {r.policy: r for r in reports if r.precision == FP32}
    differences = []
    for report in reports:
        change = pair_successes(report, fp32.get(report.policy)) if report.precision not in (None, FP32) else None
        if change is not None:
            differences.append({"policy": report.policy, "precision": report.precision, "minus": FP32, **vars(change)})
    return differences


def success_table(reports: Sequence[Report]) -> Table:
    """Return a line for each policy and precision that flew, with its paired difference to fp32."""
    from quarl.bench.report.document import BASELINES
    from quarl.bench.report.notes import circumstances, machine_notes, rate, success_gain, time_cell
    from quarl.bench.report.selection import FP32
    from quarl.bench.report.text import format_fixed, join_distinct, percent
    from quarl.bench.tables import tabulate

    results = [(report, report.success) for report in reports if report.success is not None]
    fp32 = {report.policy: report for report, _ in results if report.precision == FP32}
    lines = []
    for report, success in results:
        change = success_gain(report, fp32.get(report.policy)) if report.precision != FP32 else None
        causes = {cause: count for cause, count in success.causes.items() if count and cause != "goal"}
        lines.append(
            {
                "policy": report.policy,
                "precision": report.precision or "",
                "runtime": report.runtime,
                "% success": percent(rate(report)),
                "points to fp32": percent(change, "+"),
                "flight s": format_fixed(success.flight_time_s, 2),
                "distance m": format_fixed(success.distance_m, 1),
                "energy J": "" if success.energy_j is None else f"{success.energy_j:.0f}",
                "decision p50": time_cell(report, success.decide_p50_ns),
                "others ended by": ", ".join(f"{n} {cause.replace('_', ' ')}" for cause, n in causes.items()) or "none",
                "measured": join_distinct(circumstances(report)),
            }
        )
    mine = [(report, success) for report, success in results if report.policy not in BASELINES]
    first = results[0][1]
    return tabulate(
        "success",
        WORDS,
        lines,
        left=3,
        titled=("runtime", "measured"),
        first=first,
        changed=f", settings {dict(first.settings)}" if first.settings else "",
        machines="\n".join(machine_notes([report for report, _ in mine])),
        places=[
            flight_success.where.value + (f" ({flight_success.simulator})" if flight_success.simulator else "")
            for _, flight_success in mine
        ],
    )


main = cli.of("bench success")

if __name__ == "__main__":
    raise SystemExit(main())
