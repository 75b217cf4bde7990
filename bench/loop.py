"""How punctual is a policy that serves in a robot's loop, idle and under load, and what does its socket cost?

    python bench/loop.py --policy I
    python bench/loop.py --policy I --target pi@raspberrypi --rates 4,50,200 --loads idle,cpu,memory,card --seconds 60

Two questions. Paced by observations: what a round trip takes, beside a bare echo of the same frame between the same two
processes, in turn; the loop's own share, beside the runtime's call; the same with polling before each wait. Paced by
the clock: how late it wakes and how old an observation is when its action leaves, beside what cyclictest finds the
kernel to do in the same seconds. Loads are stress-ng's (on the device: apt-get install stress-ng rt-tests).
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from quarl.bench import answer_command, command_line
from quarl.bench.answer_command import AnswerCommand
from quarl.policy.spec import ContinuousHead, DiscreteHead

if TYPE_CHECKING:
    from quarl.bench.device_session.access import Device
    from quarl.policy.bundle import Bundle
    from quarl.policy.spec import Precision, RuntimeName

PROBE = Path(__file__).parent / "loop_timing" / "probe.py"
FOLDER = "quarl-loop"
STEP_TIMEOUT_S = 600.0
PATIENT = "--rate=0.1"
"""A period of ten seconds: no fallback comes in between two frames, however busy the machine is."""
POLL_US = 1000
"""Polling before each wait: longer than a round trip takes, so that the loop never sleeps between two of them."""
LOADS: Mapping[str, str] = {
    "idle": "",
    "busy": "sh -c 'for i in 1 2 3 4; do while :; do :; done & done; wait'",
    "cpu": "stress-ng --quiet --cpu 0",
    "memory": "stress-ng --quiet --vm 0 --vm-bytes 40% --vm-method write64",
    "card": "stress-ng --quiet --hdd 1 --hdd-bytes 64m --temp-path .",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep."""
    parser = answer_command.parser(__doc__, "bench/loop.py")
    parser.add_argument("--policy", default="I", metavar="I", help="default: %(default)s")
    parser.add_argument("--precision", type=command_line.read_precisions, default="int8", help="one; default: int8")
    parser.add_argument("--runtime", type=command_line.read_runtimes, default="litert,native", help="default: both")
    command_line.add_target(parser)
    parser.add_argument("--rates", type=_rates, default="4,50,200", metavar="HZ,HZ", help="default: 4,50,200")
    parser.add_argument(
        "--loads", type=_loads, default="idle,cpu,memory,card", help=f"of {', '.join(LOADS)}; busy needs no stress-ng"
    )
    parser.add_argument("--seconds", type=command_line.positive, default=20, help="each, default: %(default)s")
    parser.add_argument("--pairs", type=command_line.positive, default=10_000, help="default: %(default)s")
    arguments = parser.parse_args(argv)
    return ANSWERS["loop" if arguments.target == "local" else "device-loop"].run(arguments)


def _rates(text: str) -> list[float]:
    try:
        rates = [float(word) for word in command_line.words(text)]
    except ValueError:
        rates = [0.0]
    if not all(0.1 <= rate <= 1000 for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed are decisions a second from 0.1 to 1000, with commas")
    return rates


def _loads(text: str) -> list[str]:
    loads = command_line.words(text)
    if unknown := [load for load in loads if load not in LOADS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}; allowed are {', '.join(LOADS)}")
    return loads


def _ask(arguments: argparse.Namespace) -> dict[str, Any]:
    from quarl.bench.device_session import access
    from quarl.device.deploy.connection import require_reachable

    require_reachable(arguments.target)
    precision = arguments.precision[0]
    found: dict[str, Any] = {"pairs": [], "clock": []}
    with access.connected(arguments.target) as device:
        for runtime in arguments.runtime:
            bundle = access.bundle_with(arguments.policy, [precision], runtime)
            device.deploy(bundle, [precision], runtime)
            with device.serving(bundle.spec.name, precision, runtime) as served:
                found["device"] = served.device
            probe = _Probe(device, bundle, precision, runtime)
            with probe:
                found["pairs"] += _round_trips(probe, arguments)
                if runtime is arguments.runtime[0]:
                    found["clock"] += _at_rates(probe, arguments)
    loads = {name: LOADS[name] for name in arguments.loads}
    wanted = {"target": arguments.target, "loads": loads, "policy": arguments.policy, "precision": precision.value}
    return {**wanted, "runtime": arguments.runtime[0].value, "seconds": arguments.seconds, **found}


def _round_trips(probe: _Probe, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for wait, spin_us in (("sleeps", 0), ("polls", POLL_US)):
        command_line.say(f"{probe.runtime.value}: round trips, {wait} …")
        answer = probe.ask(["--pace=observation", PATIENT, f"--spin-us={spin_us}"], run="pairs", pairs=arguments.pairs)
        yield {"runtime": probe.runtime.value, "wait": wait, **answer}


def _at_rates(probe: _Probe, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for load in arguments.loads:
        for rate in arguments.rates:
            command_line.say(f"{probe.runtime.value}: {rate:g} decisions a second, {load} …")
            answer = probe.ask(
                ["--pace=clock", f"--rate={rate:g}"],
                run="clock",
                seconds=arguments.seconds,
                rate=rate,
                load=shlex.split(LOADS[load]),
                cyclictest=True,
            )
            yield {"load": load, "rate": rate, **answer}


class _Probe:
    """The probe on the device, for as long as it is entered.

    Raises:
        BenchError: it failed; says what it wrote last.
    """

    def __init__(self, device: Device, bundle: Bundle, precision: Precision, runtime: RuntimeName) -> None:
        from quarl.device.deploy.probe import probe
        from quarl.device.deploy.wheels import select

        self.runtime, self._connection, self._name = runtime, device.connection, device.name
        wheels = select(probe(device.connection), [runtime])
        self._values = bundle.golden().observations[:64].tolist()
        release = f"quarl/policies/{bundle.spec.name}/current"
        parts = [f"{release}/lib", *(f"quarl/envs/{wheel.folder}" for wheel in wheels.wheels)]
        path = ":".join(f"$HOME/{part}" for part in parts)
        self._start = f'PYTHONSAFEPATH=1 PYTHONPATH="{path}" {shlex.quote(wheels.python.path)} -s probe.py'
        wanted = [
            f"--precision={precision.value}",
            f"--runtime={runtime.value}",
            f"--fallback={_any(bundle.spec.head)}",
        ]
        self._loop = [f"../{release}/run-agent", "loop", *wanted]

    def __enter__(self) -> _Probe:
        self._connection.run(f"mkdir -p {FOLDER}")
        self._connection.upload(PROBE, f"{FOLDER}/probe.py")
        return self

    def __exit__(self, *error: object) -> None:
        if self._connection.alive:
            self._connection.run(f"rm -rf {FOLDER}", check=False)

    def ask(self, options: Sequence[str], **request: Any) -> dict[str, Any]:
        """Run the probe once over a loop with these options."""
        wanted = {"loop": [*self._loop, *options], "socket": "loop.sock", "values": self._values, **request}
        done = self._connection.run(
            f"cd {FOLDER} && {self._start}", stdin=json.dumps(wanted).encode(), timeout=STEP_TIMEOUT_S, check=False
        )
        if not done.ok:
            raise command_line.BenchError(
                f"the probe on {self._name} ended with status {done.exit_status}. {done.stderr.strip()[-600:]}",
                "If stress-ng or cyclictest is missing there: apt-get install stress-ng rt-tests; or --loads idle.",
            )
        return compact(json.loads(done.stdout.splitlines()[-1]))


def compact(answer: Any) -> Any:
    """An answer whose histograms are lines of text, ``upper edge:count``, so that it is stored in a few kilobytes."""
    if not isinstance(answer, dict):
        return answer
    return {
        key: " ".join(f"{edge}:{count}" for edge, count in value) if key == "buckets" else compact(value)
        for key, value in answer.items()
    }


def _any(head: DiscreteHead | ContinuousHead) -> str:
    """Some action: nothing moves here."""
    return "0" if isinstance(head, DiscreteHead) else ",".join(f"{low:g}" for low in head.low)


def _tables() -> dict[str, Any]:
    from quarl.bench.tables import loop

    return {"round trips": loop.ROUND_TRIPS.table, "punctuality": loop.PUNCTUALITY.table}


ANSWERS = {
    name: AnswerCommand(
        name=name,
        command="bench/loop.py",
        ask=_ask,
        tables=_tables,
        amounts=lambda document: {("seconds",): document["seconds"]},
        unit="seconds at each rate",
    )
    for name in ("loop", "device-loop")
}


if __name__ == "__main__":
    raise SystemExit(main())
