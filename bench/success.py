"""How often a policy reaches the goal: fresh episodes, 95 % intervals, paired with fp32, the blind baseline beside it.

    python bench/success.py --policy I --precision int8 --episodes 1000 --seed 7
    python bench/success.py --policy I,II,III --precision fp32,int8 --episodes 3000 --on device

--on device: simulator and policy both run on the device. --on loop: the host simulates, the device decides (hardware
in the loop). --on host: both here, with the numpy reference of that precision and no device at all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import command_line

if TYPE_CHECKING:
    from bench.measuring.questions import Flights
    from bench.report.document import Report


def main(argv: Sequence[str] | None = None) -> int:
    """Fly, store, print."""
    parser = command_line.parser(__doc__, "bench/success.py")
    command_line.add_device_arguments(parser, precisions="fp32,int8")
    parser.add_argument("--episodes", type=command_line.positive, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=command_line.not_negative, default=7, help="default: %(default)s")
    parser.add_argument("--preset", choices=["easy", "medium", "shipped", "hard"], default="hard")
    parser.add_argument("--on", choices=["device", "loop", "host"], default="device", help="default: %(default)s")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="fly with this command latency (default: none)")
    parser.add_argument(
        "--settings", type=_settings, default={}, metavar="JSON", help="settings of the task, e.g. '{\"wind_m_s\": 2}'"
    )
    return command_line.guarded(_run, parser.parse_args(argv))


def _settings(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid JSON: {error}") from None
    if not isinstance(settings, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return settings


def _run(arguments: argparse.Namespace) -> int:
    from airlearning_envs.config import preset
    from bench.measuring import measurements as measuring
    from bench.measuring.questions import Flights
    from bench.report import store
    from bench.report import tables as rendering

    settings = dict(arguments.settings)
    if arguments.latency_ms:
        settings["latency"] = arguments.latency_ms / 1000.0
    preset(arguments.preset).with_settings(settings)  # refuses what is wrong before anything is deployed
    flights = Flights(arguments.preset, arguments.episodes, arguments.seed, settings)
    where = arguments.results or store.DEFAULT_STORE
    store.prepare(where)
    run = measuring.new_run()
    reports = _on_host(arguments, flights, run) if arguments.on == "host" else _on_device(arguments, flights, run)
    reports.append(measuring.blind_report(flights, arguments.target, run))
    store.add(reports, where)
    if arguments.json:
        command_line.print_json(reports, differences=_differences(reports))
    else:
        rendering.print_table(measuring.success_table(reports), command_line.console())
    return command_line.EXIT_OK


def _on_device(arguments: argparse.Namespace, flights: Flights, run: str) -> list[Report]:
    from bench.measuring import access
    from bench.measuring.questions import ask_success, ask_success_in_loop
    from bench.report import store
    from policy.spec import RuntimeName

    ask = ask_success if arguments.on == "device" else ask_success_in_loop
    runtime = RuntimeName(arguments.runtime)
    bundles = [access.bundle_with(policy, arguments.precision, runtime) for policy in arguments.policy]
    reports = []
    with access.connected(arguments.target) as device:
        for bundle in bundles:
            device.deploy(bundle, arguments.precision, runtime)
            for precision in arguments.precision:
                with (
                    device.serving(bundle.spec.name, precision, runtime) as served,
                    command_line.progress_bar(f"flying {served.name}") as progress,
                ):
                    reports.append(ask(served, run, flights, progress))
                store.add(reports[-1:], arguments.results or store.DEFAULT_STORE)
    return reports


def _on_host(arguments: argparse.Namespace, flights: Flights, run: str) -> list[Report]:
    from bench.measuring.host_reference import host_success
    from policy.locate import working_bundle

    reports = []
    for policy in arguments.policy:
        bundle = working_bundle(policy)
        for precision in arguments.precision:
            with command_line.progress_bar(f"flying {bundle.spec.name} {precision.value}") as progress:
                reports.append(host_success(bundle, precision, flights, run, progress))
    return reports


def _differences(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """The paired differences to fp32, for a program."""
    from bench.report.selection import FP32, paired

    fp32 = {r.policy: r for r in reports if r.precision == FP32}
    found = []
    for report in reports:
        change = paired(report, fp32.get(report.policy)) if report.precision not in (None, FP32) else None
        if change is not None:
            found.append({"policy": report.policy, "precision": report.precision, "minus": FP32, **vars(change)})
    return found


if __name__ == "__main__":
    raise SystemExit(main())
