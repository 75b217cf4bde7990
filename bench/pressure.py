"""Measure a policy that exceeds the device's memory: III with 39,427 inputs, fp32 against int8."""

from __future__ import annotations

import base64
import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.command_line import NotNegative, Positive
from quarl.policy.console import heartbeat
from quarl.policy.spec import Precision, RuntimeName

if TYPE_CHECKING:
    from quarl.bench.device_session.access import Device
    from quarl.bench.memory_pressure.cases import Case
    from quarl.device.deploy.connection import Connection
    from quarl.policy.bundle import Bundle

COMMAND = "quarl bench pressure --target pi@virtual --held 300 --roomy pi@roomy"
FOLDER = "quarl-pressure"
RESERVE_BYTES = 300_000_000
STEP_TIMEOUT_S = 1500.0
PROBE = Path(__file__).parent / "memory_pressure" / "probe.py"


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Answering):
    """What to measure.

    Attributes:
        policy: the policy whose graph is enlarged
        target: a device with little memory
        roomy: a device of the same kind with enough memory
        runtime: litert or tflite-runtime
        inputs: inputs of the enlarged policy (default: 39427)
        runs: decisions that are measured
        warmup: decisions before the measurement
        held: megabytes that other programs hold on the device
    """

    policy: str = "III"
    target: Annotated[str, Parameter(metavar="user@host[:port]")]
    roomy: Annotated[str | None, Parameter(metavar="user@host[:port]")] = None
    runtime: Literal["litert", "tflite-runtime"] = "litert"
    inputs: Positive | None = None
    runs: Positive = 5
    warmup: Positive = 2
    held: Annotated[NotNegative, Parameter(metavar="MB")] = 0


@heartbeat()
@cli.verb()
def pressure(options: Options) -> int:
    """Measure a policy that exceeds the device's memory: III with 39,427 inputs, fp32 against int8.

    The 39,427 inputs are our reconstruction, not the paper's figure: a flattened depth image of 154 x 256 pixels and
    three numbers about the goal. Policy III itself, which never swaps, is measured for comparison.

        quarl bench pressure --target pi@virtual [--held 300]
        quarl pi start --name roomy --memory 3072       # the same processor, memory enough
        quarl bench pressure --target pi@virtual --held 300 --roomy pi@roomy --keep

    --roomy separates two causes of the speed-up of int8 over fp32: with enough memory it is due to computing, and the
    rest of the speed-up with little memory is due to memory pressure. --held simulates memory that other programs use,
    such as a desktop; without it, the 657 MB just fit into 1 GiB. The device's kernel counts page faults and pages
    swapped in, for each decision. The weights are written on the device, not sent. Times of an emulated device are
    printed only as ratios; --json prints every time.
    """
    from quarl.bench.device_session import access
    from quarl.bench.memory_pressure.cases import pressure_table, speed_ups

    runtime, precisions = RuntimeName(options.runtime), (Precision.FP32, Precision.INT8)
    bundle = access.bundle_with(options.policy, precisions, runtime)
    cases: list[Case] = []
    for target in dict.fromkeys(filter(None, (options.target, options.roomy))):
        with access.connect(target) as device:
            device.deploy(bundle, precisions, runtime)
            held = options.held if target == options.target else 0
            cases += measure_on(device, bundle, precisions, runtime, held, options)
    settings = {name: getattr(options, name) for name in ("target", "roomy", "runtime", "runs", "warmup", "held")}
    return options.publish(
        "pressure",
        {
            **settings,
            "cases": [asdict(case) for case in cases],
            "speed_ups": speed_ups(cases, options.target, options.roomy),
        },
        tables=lambda document: [pressure_table(document)],
        amounts=lambda document: {
            (case["target"], case["model"], case["precision"]): len(case["measured"]["runs"])
            for case in document["cases"]
        },
        unit="decisions",
    )


def measure_on(
    device: Device,
    bundle: Bundle,
    precisions: Sequence[Precision],
    runtime: RuntimeName,
    held: int,
    options: Options,
) -> Iterator[Case]:
    """Yield all models on one device, each in a process of its own.

    Raises:
        BenchError: there is no room on its disk, or a model could not be measured.
    """
    from quarl.bench.memory_pressure.cases import Case
    from quarl.bench.memory_pressure.depth_network import LEGACY_OBSERVATION, enlarge
    from quarl.device.deploy.probe import probe
    from quarl.device.deploy.wheels import select

    connection, usual = device.connection, bundle.spec.observation_size
    with device.serving(bundle.spec.name, precisions[-1], runtime) as served:
        emulated = bool(served.device.get("emulated"))
    wheels = select(probe(connection), [runtime])
    environment = ":".join(f"$HOME/quarl/envs/{wheel.folder}" for wheel in wheels.wheels)
    python = f"{shlex.quote(wheels.python.path)} -s"
    start = f'PYTHONSAFEPATH=1 PYTHONPATH="{environment}" {python} {FOLDER}/pressure_probe.py'
    connection.run(f"mkdir -p {FOLDER}")
    connection.upload(PROBE, f"{FOLDER}/pressure_probe.py")
    try:
        # The small one takes a hundredth of the time.
        for model, size, many in (("legacy", options.inputs or LEGACY_OBSERVATION, 1), ("small", usual, 10)):
            for precision in precisions:
                entry = bundle.artifact(precision, runtime.artifact_format)
                skeleton = enlarge((bundle.path / entry.file).read_bytes(), usual, size)
                command_line.say(f"{device.name}: {model} {precision.value}, {skeleton.size / 1e6:.0f} MB …")
                free = probe(connection).free_disk_bytes
                if free < skeleton.size + RESERVE_BYTES:
                    raise command_line.BenchError(
                        f"{device.name} has {free / 1e6:.0f} MB free on its disk; the model needs "
                        f"{skeleton.size / 1e6:.0f} MB, and {RESERVE_BYTES / 1e6:.0f} MB must stay free.",
                        "Make room on the device: df -h ~; du -sh ~/*",
                    )
                fills = [[fill.offset, fill.size, _text(fill.pattern)] for fill in skeleton.fills]
                path = {"path": f"{FOLDER}/{model}-{precision.value}.tflite"}
                written = {**path, "head": _text(skeleton.head), "size": skeleton.size, "fills": fills}
                ask(connection, f"{start} write", written)
                decisions = {"warmup": options.warmup * many, "runs": options.runs * many}
                with holding(connection, start, held):
                    measured = ask(connection, f"{start} measure", {**path, "runtime": runtime.value, **decisions})
                yield Case(device.name, model, precision.value, skeleton.size, emulated, measured)
                connection.run(f"rm -f {path['path']}")
    finally:
        if connection.alive:
            connection.run(f"rm -rf {FOLDER}", check=False)


@contextlib.contextmanager
def holding(connection: Connection, start: str, megabytes: int) -> Iterator[None]:
    """Another program on the device that works with so much memory meanwhile."""
    if not megabytes:
        yield
        return
    process = connection.start(f"{start} hold {megabytes}")
    try:
        process.read_line(STEP_TIMEOUT_S)
        yield
    finally:
        process.close_input()
        process.wait(60.0)
        process.close()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def ask(connection: Connection, command: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the probe once.

    Raises:
        BenchError: it was killed or failed; says which.
    """
    done = connection.run(command, stdin=json.dumps(request).encode(), timeout=STEP_TIMEOUT_S, check=False)
    if not done.ok:
        how = "was killed: memory and swap did not suffice" if done.exit_status in (-1, 137) else "failed"
        raise command_line.BenchError(
            f"the probe on {connection.name} {how} (status {done.exit_status}). {done.stderr.strip()[-400:]}",
            "On the device, look at `dmesg | tail`, and at `cat /proc/swaps` for its swap.",
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


main = cli.of("bench pressure")

if __name__ == "__main__":
    raise SystemExit(main())
