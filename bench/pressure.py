"""What becomes of a policy that exceeds the memory: III with the paper's 39,427 inputs, fp32 against int8.

The small III, which never swaps, stands beside it.

    python bench/pressure.py --target pi@virtual [--held 300]
    python -m device.virtual_pi start --name roomy --memory 3072       # the same processor, memory enough
    python bench/pressure.py --target pi@virtual --held 300 --roomy pi@roomy

With --roomy the speed-up of int8 over fp32 comes apart: where memory suffices it is that of computing; what it is
more where memory is short is that of memory pressure. --held is memory that other programs work with, a desktop for
example; with nothing beside it, the 657 MB just fit into 1 GiB. Page faults and pages swapped in are counted by the
device's kernel, for each decision. The weights are written on the device, not sent. Times of an emulated device are
printed only as ratios; with --json every time is there.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import command_line

if TYPE_CHECKING:
    from bench.report.tables import Table
    from device.host.connection import Connection
    from policy.bundle import Bundle
    from policy.spec import Precision

FOLDER = "quarl-pressure"
RESERVE_BYTES = 300_000_000
STEP_TIMEOUT_S = 1500.0
PAGE = 4096
SD_BUS_BYTES_PER_S = 25e6
"""A Pi 3's card slot in High Speed mode: 4 bits at 50 MHz (SD Physical Layer Specification)."""
PROBE = Path(__file__).parent / "measuring" / "pressure_probe.py"


@dataclass(frozen=True)
class Case:
    """One model on one device, measured."""

    target: str
    model: str
    """``legacy`` or ``small``."""
    precision: str
    bytes: int
    emulated: bool
    measured: Mapping[str, Any]
    """What the probe said."""

    @property
    def median_ns(self) -> float:
        """Median time of one decision."""
        return statistics.median(run["ns"] for run in self.measured["runs"])

    def per_decision(self, counter: str) -> float:
        """A counter's mean for one decision."""
        return statistics.fmean(run[counter] for run in self.measured["runs"])

    @property
    def swapped(self) -> bool:
        """Whether pages had to come from the disk while deciding: out of swap, or the model's file again."""
        return self.per_decision("pswpin") + self.per_decision("major_faults") >= 1.0


@dataclass(frozen=True)
class SpeedUps:
    """int8 over fp32, apart."""

    small: float | None
    """The small III, which never swaps."""
    computing: float | None
    """The legacy III where memory suffices."""
    total: float | None
    """The legacy III where it may not."""

    @property
    def pressure(self) -> float | None:
        """What memory pressure adds: total = computing × pressure."""
        return self.total / self.computing if self.total and self.computing else None


def main(argv: Sequence[str] | None = None) -> int:
    """Write the models on the device, measure, print."""
    parser = command_line.parser(__doc__, "bench/pressure.py")
    parser.add_argument("--policy", default="III", metavar="III", help="whose graph (default: %(default)s)")
    parser.add_argument("--target", required=True, metavar="user@host[:port]", help="a device with little memory")
    parser.add_argument("--roomy", metavar="user@host[:port]", help="the same kind of device with memory enough")
    parser.add_argument("--runtime", choices=["litert", "tflite-runtime"], default="litert")
    parser.add_argument("--inputs", type=command_line.positive, default=None, metavar="N", help="default: 39427")
    parser.add_argument("--runs", type=command_line.positive, default=5, help="decisions counted (default: 5)")
    parser.add_argument("--warmup", type=command_line.positive, default=2, help="decisions before (default: 2)")
    parser.add_argument("--held", type=command_line.not_negative, default=0, metavar="MB", help="held by others there")
    parser.add_argument("--keep", action="store_true", help="leave the models on the device")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from bench.measuring import access
    from bench.report import tables as rendering
    from policy.spec import Precision, RuntimeName

    runtime = RuntimeName(arguments.runtime)
    precisions = (Precision.FP32, Precision.INT8)
    bundle = access.bundle_with(arguments.policy, precisions, runtime)
    cases: list[Case] = []
    for target in dict.fromkeys(filter(None, (arguments.target, arguments.roomy))):
        held = arguments.held if target == arguments.target else 0
        cases += measure_target(target, held, bundle, precisions, runtime.value, arguments)
    found = speed_ups(cases, arguments.target, arguments.roomy)
    if arguments.json:
        print(json.dumps({"ok": True, "cases": [vars(case) for case in cases], "speed_ups": _as_dict(found)}))
    else:
        rendering.print_table(table(cases, found, arguments), command_line.console())
    return command_line.EXIT_OK


def _as_dict(found: SpeedUps) -> dict[str, float | None]:
    return {**vars(found), "pressure": found.pressure}


def measure_target(
    target: str,
    held: int,
    bundle: Bundle,
    precisions: Sequence[Precision],
    runtime: str,
    arguments: argparse.Namespace,
) -> list[Case]:
    """All models on one device, each in a process of its own.

    Raises:
        BenchError: there is no room on its disk, or a model could not be measured.
    """
    from bench.measuring import access
    from bench.measuring.legacy_model import LEGACY_OBSERVATION, enlarge
    from bench.measuring.questions import Served
    from device.host.probe import probe
    from device.host.wheels import select
    from policy.spec import ArtifactFormat, RuntimeName

    inputs = arguments.inputs or LEGACY_OBSERVATION
    cases: list[Case] = []
    with access.connected(target) as device:
        connection = device.connection
        device.deploy(bundle, precisions, RuntimeName(runtime))
        with device.serving(bundle.spec.name, precisions[-1], RuntimeName(runtime)) as served:
            assert isinstance(served, Served)
            emulated = bool(served.device.get("emulated"))
        wheels = select(probe(connection), [RuntimeName(runtime)])
        environment = ":".join(f"$HOME/quarl/envs/{wheel.folder}" for wheel in wheels.wheels)
        start = f'PYTHONPATH="{environment}" {shlex.quote(wheels.python.path)} {FOLDER}/pressure_probe.py'
        connection.run(f"mkdir -p {FOLDER}")
        connection.upload(PROBE, f"{FOLDER}/pressure_probe.py")
        try:
            for model, size in (("legacy", inputs), ("small", bundle.spec.observation_size)):
                for precision in precisions:
                    entry = bundle.artifact(precision, ArtifactFormat.TFLITE)
                    artifact = (bundle.path / entry.file).read_bytes()
                    skeleton = enlarge(artifact, bundle.spec.observation_size, size)
                    path = f"{FOLDER}/{model}-{precision.value}.tflite"
                    command_line.say(f"{target}: {model} {precision.value}, {skeleton.size / 1e6:.0f} MB …")
                    free = probe(connection).free_disk_bytes
                    if free < skeleton.size + RESERVE_BYTES:
                        raise command_line.BenchError(
                            f"{target} has {free / 1e6:.0f} MB free on its disk; the model takes "
                            f"{skeleton.size / 1e6:.0f} MB and {RESERVE_BYTES / 1e6:.0f} MB are left free.",
                            "Make room there.",
                        )
                    fills = [[fill.offset, fill.size, _text(fill.pattern)] for fill in skeleton.fills]
                    request = {"path": path, "head": _text(skeleton.head), "size": skeleton.size, "fills": fills}
                    ask(connection, f"{start} write", request)
                    many = 10 if model == "small" else 1  # it takes a hundredth of the time
                    request = {
                        "path": path,
                        "runtime": runtime,
                        "warmup": arguments.warmup * many,
                        "runs": arguments.runs * many,
                    }
                    with holding(connection, start, held):
                        said = ask(connection, f"{start} measure", request)
                    cases.append(Case(target, model, precision.value, skeleton.size, emulated, said))
                    if not arguments.keep:
                        connection.run(f"rm -f {path}")
        finally:
            if not arguments.keep and connection.alive:
                connection.run(f"rm -rf {FOLDER}", check=False)
    return cases


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
            "`dmesg | tail` there tells more; `cat /proc/swaps` shows its swap.",
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def speed_ups(cases: Sequence[Case], target: str, roomy: str | None) -> SpeedUps:
    """fp32's median over int8's, for each kind."""

    def ratio(where: str | None, model: str) -> float | None:
        times = {case.precision: case.median_ns for case in cases if (case.target, case.model) == (where, model)}
        return times["fp32"] / times["int8"] if {"fp32", "int8"} <= set(times) else None

    return SpeedUps(ratio(target, "small"), ratio(roomy, "legacy"), ratio(target, "legacy"))


def table(cases: Sequence[Case], found: SpeedUps, arguments: argparse.Namespace) -> Table:
    """The cases, with times as ratios to the small int8 where the device is emulated."""
    from bench.report.tables import Table
    from bench.report.text import megabytes, nanoseconds, times

    rows = []
    for case in cases:
        base = next((c for c in cases if (c.target, c.model, c.precision) == (case.target, "small", "int8")), None)
        took = nanoseconds(case.median_ns)
        if case.emulated:
            took = times(case.median_ns / base.median_ns) if base else "–"
        after = case.measured["after_runs"]
        rows.append(
            (
                case.target,
                case.model,
                case.precision,
                f"{case.measured['inputs']:,}",
                megabytes(case.bytes),
                took,
                f"{case.per_decision('major_faults'):,.0f}",
                f"{case.per_decision('pswpin'):,.0f}",
                f"{case.per_decision('pgpgin') / 1024:,.1f}",
                megabytes(after.get("VmRSS")),
                megabytes(after.get("VmSwap")),
                f"{case.measured['load']['pswpout'] * PAGE / 1e6:,.0f}",
            )
        )
    headers = (
        "device",
        "model",
        "precision",
        "inputs",
        "MB file",
        "decision",
        "major faults",
        "pages swapped in",
        "MiB read",
        "MB resident",
        "MB in swap",
        "MB swapped out by loading",
    )
    machines = {case.target: case.measured["machine"] for case in cases}
    notes = [
        f"{name}: {said['MemTotal'] / 1e6:,.0f} MB of memory, {said.get('SwapTotal', 0) / 1e6:,.0f} MB of swap on disk."
        for name, said in machines.items()
    ]
    notes.append(
        f"{arguments.runtime}, one thread, {arguments.runs} decisions after {arguments.warmup}; faults, pages and MiB "
        "are means for one decision, counted by the device's kernel (pages and MiB: of the whole system)."
    )
    if any(case.emulated for case in cases):
        notes.append("EMULATED: decision is the median as a multiple of the same device's small int8, no time.")
    read = max((case.per_decision("pgpgin") * 1024 for case in cases), default=0.0)
    if read > 1e6:
        notes.append(
            f"{read / 1e6:,.0f} MB read for one decision take a real Pi 3b {read / SD_BUS_BYTES_PER_S:,.1f} s at the "
            "least: its card slot carries 25 MB/s (modelled; an emulated card is as fast as this machine's memory)."
        )
    if arguments.held:
        notes.append(f"On {arguments.target} another program works with {arguments.held} MB meanwhile.")
    small, total = found.small, found.total
    notes.append(
        f"int8 over fp32: small III {_times(small)} (computing alone, never swaps); legacy III {_times(total)} on "
        f"{arguments.target}"
        + (
            f", {_times(found.computing)} on {arguments.roomy}: computing {_times(found.computing)} × memory "
            f"pressure {_times(found.pressure)}. The paper reports 18.85×."
            if arguments.roomy
            else "; --roomy takes computing and memory pressure apart. The paper reports 18.85×."
        )
    )
    return Table("memory-pressure", "Memory pressure", headers, tuple(rows), tuple(notes), left=3)


def _times(value: float | None) -> str:
    from bench.report.text import times

    return times(value)


if __name__ == "__main__":
    raise SystemExit(main())
