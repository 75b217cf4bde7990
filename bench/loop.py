"""How punctual is a policy that serves in a robot's loop, idle and under load, and what does its socket cost?"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.policy.console import heartbeat
from quarl.policy.spec import Precision, RuntimeName

if TYPE_CHECKING:
    from quarl.bench.device_session.access import Device
    from quarl.policy.bundle import Bundle

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
    "askers": "askers",  # the probe's own: eight programs that ask the loop for all that they can
}


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(word) for word in command_line.words(text))
    except ValueError:
        rates = (0.0,)
    if not all(0.1 <= rate <= 1000 for rate in rates):
        raise ValueError(f"must be decisions per second from 0.1 to 1000, separated by commas, got {text!r}")
    return rates


def _loads(text: str) -> tuple[str, ...]:
    loads = command_line.words(text)
    if unknown := [load for load in loads if load not in LOADS]:
        raise ValueError(f"loads must be among {', '.join(LOADS)}, got {unknown[0]!r}")
    return loads


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Targeting, command_line.Answering):
    """What to measure.

    Attributes:
        policy: that the loop serves
        precision: one of the policy's artifacts
        runtime: one, or both
        rates: decisions a second
        loads: of idle, busy, cpu, memory, card, askers; busy and askers need no stress-ng
        seconds: at each rate under each load
        pairs: round trips
    """

    policy: str = "I"
    precision: Annotated[command_line.Precisions, Parameter(metavar="int8")] = (Precision.INT8,)
    runtime: command_line.Runtimes = (RuntimeName.LITERT, RuntimeName.NATIVE)
    rates: Annotated[tuple[float, ...], cli.reads(_rates, "HZ,HZ")] = (4.0, 50.0, 200.0)
    loads: Annotated[tuple[str, ...], cli.reads(_loads, "idle,cpu")] = ("idle", "askers", "cpu", "memory", "card")
    seconds: command_line.Positive = 20
    pairs: command_line.Positive = 10_000


def _ask(options: Options) -> dict[str, Any]:
    from quarl.bench.device_session import access
    from quarl.device.deploy.connection import require_reachable

    require_reachable(options.target)
    precision = options.precision[0]
    measurements: dict[str, Any] = {"pairs": [], "clock": []}
    with access.connect(options.target) as device:
        for runtime in options.runtime:
            bundle = access.bundle_with(options.policy, [precision], runtime)
            device.deploy(bundle, [precision], runtime)
            with device.serving(bundle.spec.name, precision, runtime) as served:
                measurements["device"] = served.device
            probe = _Probe(device, bundle, precision, runtime)
            with probe:
                measurements["pairs"] += _round_trips(probe, options)
                if runtime is options.runtime[0]:
                    measurements["clock"] += _at_rates(probe, options)
    loads = {name: LOADS[name] for name in options.loads}
    wanted = {"target": options.target, "loads": loads, "policy": options.policy, "precision": precision.value}
    return {**wanted, "runtime": options.runtime[0].value, "seconds": options.seconds, **measurements}


def _round_trips(probe: _Probe, options: Options) -> Iterator[dict[str, Any]]:
    for wait, spin_us in (("sleeps", 0), ("polls", POLL_US)):
        command_line.say(f"{probe.runtime.value}: round trips, {wait} …")
        answer = probe.ask(["--pace=observation", PATIENT, f"--spin-us={spin_us}"], run="pairs", pairs=options.pairs)
        yield {"runtime": probe.runtime.value, "wait": wait, **answer}


def _at_rates(probe: _Probe, options: Options) -> Iterator[dict[str, Any]]:
    for load in options.loads:
        for rate in options.rates:
            command_line.say(f"{probe.runtime.value}: {rate:g} decisions a second, {load} …")
            answer = probe.ask(
                ["--pace=clock", f"--rate={rate:g}"],
                run="clock",
                seconds=options.seconds,
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
        parts = [f"{release}/lib/quarl.zip", *(f"quarl/envs/{wheel.folder}" for wheel in wheels.wheels)]
        path = ":".join(f"$HOME/{part}" for part in parts)
        self._start = f'PYTHONSAFEPATH=1 PYTHONPATH="{path}" {shlex.quote(wheels.python.path)} -s probe.py'
        wanted = [
            f"--precision={precision.value}",
            f"--runtime={runtime.value}",
            bundle.spec.fallback_example.replace(" ", "="),
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
                f"the probe on {self._name} exited with status {done.exit_status}. {done.stderr.strip()[-600:]}",
                "If stress-ng or cyclictest is missing on the device, install it there: apt-get install stress-ng "
                "rt-tests; or add --loads idle.",
            )
        return compact(json.loads(done.stdout.splitlines()[-1]))


def compact(answer: Any) -> Any:
    """Return an answer whose histograms are lines of text, ``upper edge:count``, so that it is stored in a few
    kilobytes."""
    if not isinstance(answer, dict):
        return answer
    return {
        key: " ".join(f"{edge}:{count}" for edge, count in value) if key == "buckets" else compact(value)
        for key, value in answer.items()
    }


@heartbeat()
@cli.verb()
def loop(options: Options) -> int:
    """Measure how punctual a policy is in a robot's loop, idle and under load, and the cost of its socket.

        quarl bench loop --policy I
        quarl bench loop --policy I --target pi@raspberrypi --rates 4,50,200 --loads idle,cpu,memory,card --seconds 60

    Paced by observations: the time of a round trip, in turn with a bare echo of the same frame between the same two
    processes; the loop's own share and that of the runtime's call; the same with polling before each wait. Paced by the
    clock: how late the loop wakes, how old an observation is when its action is sent, and the kernel's latency that
    cyclictest measures in the same seconds. Loads are stress-ng's (on the device: apt-get install stress-ng rt-tests).
    """
    from quarl.bench.loop_timing.tables import punctuality_table, round_trip_table

    return options.publish(
        "loop" if options.target == "local" else "device-loop",
        _ask(options),
        tables=lambda document: [round_trip_table(document), punctuality_table(document)],
        amounts=lambda document: {("seconds",): document["seconds"]},
        unit="seconds at each rate",
    )


main = cli.of("bench loop")

if __name__ == "__main__":
    raise SystemExit(main())
