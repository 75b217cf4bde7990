"""Does the device's processor compute what the host's computes? The same artifact in the same runtime on both.

    python bench/device_agreement.py --target pi@virtual
    python bench/device_agreement.py --target pi@virtual --policy III --precision int8 --runtime litert --json

Asked on all golden vectors. Outputs are compared before the argmax: of an integer artifact in steps of the output's
scale, of a float artifact against its tolerance. Every vector on which another action is chosen is listed.
--keep stores the answer in results/device-agreement.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import command_line

if TYPE_CHECKING:
    import numpy as np

    from bench.measuring.access import Device
    from bench.report.tables import Table
    from convert.executor import RuntimeProcess
    from policy.bundle import Bundle
    from policy.spec import Precision, RuntimeName

ROWS_AT_ONCE = 64  # in a request; a reply of 512 × 25 numbers in one line would do too, but shows no progress
INTEGER_STEPS = 1
"""What an integer artifact's outputs may be apart: one step, where the kernels of two processors round differently."""


@dataclass(frozen=True)
class Difference:
    """A golden vector on which device and host choose different actions."""

    vector: int
    host: int
    device: int
    gap: float
    """Between the host's outputs of these two actions."""


@dataclass(frozen=True)
class Comparison:
    """One artifact in one runtime on both machines."""

    policy: str
    precision: str
    runtime: str
    version: str
    vectors: int
    largest: float
    """Largest |output on the device − output on the host|."""
    step: float | None
    """One step of the outputs' scale; None for a float artifact."""
    allowed: float
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        """Whether the outputs are as near as they have to be."""
        return self.largest <= self.allowed


def main(argv: Sequence[str] | None = None) -> int:
    """Deploy, ask both, compare, print. Exit status 1 when outputs are further apart than allowed."""
    parser = command_line.parser(__doc__, "bench/device_agreement.py")
    parser.add_argument("--policy", type=command_line.words, default=["I", "II", "III"], help="default: I,II,III")
    parser.add_argument(
        "--precision",
        type=command_line.read_precisions,
        default=command_line.read_precisions("fp32,fp16,int8"),
        help="default: fp32,fp16,int8",
    )
    parser.add_argument(
        "--runtime",
        type=command_line.read_runtimes,
        default=command_line.read_runtimes("litert,tflite-runtime,onnxruntime"),
        help="default: all three",
    )
    parser.add_argument("--target", required=True, metavar="user@host[:port]", help="the device")
    parser.add_argument("--keep", action="store_true", help="store the answer in results/device-agreement.json")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from bench.measuring import access
    from bench.report import store
    from bench.report import tables as rendering
    from bench.report.machine import describe_machine
    from convert.executor import runtime_processes
    from policy.files import write_atomically

    bundles = {
        (runtime, name): access.bundle_with(name, arguments.precision, runtime)
        for runtime in arguments.runtime
        for name in arguments.policy
    }
    found: list[Comparison] = []
    total = len(bundles) * len(arguments.precision)
    with (
        access.connected(arguments.target) as device,
        runtime_processes() as host,
        command_line.progress_bar(f"comparing with {arguments.target}") as progress,
    ):
        machine: Mapping[str, Any] = {}
        for (runtime, name), bundle in bundles.items():
            device.deploy(bundle, arguments.precision, runtime)
            for precision in arguments.precision:
                comparison, machine = compare(device, bundle, name, precision, runtime, host[runtime])
                found.append(comparison)
                progress(len(found), total)
    document = {
        "target": arguments.target,
        "device": dict(machine),
        "host": describe_machine().sentence(),
        "comparisons": [asdict(comparison) for comparison in found],
    }
    if arguments.keep:
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        write_atomically(store.RESULTS / "device-agreement.json", text.encode())
    if arguments.json:
        print(json.dumps({"ok": all(c.holds for c in found), **document}, ensure_ascii=False))
    else:
        rendering.print_table(table(found, document), command_line.console())
    return command_line.EXIT_OK if all(c.holds for c in found) else command_line.EXIT_FAILED


def compare(
    device: Device, bundle: Bundle, name: str, precision: Precision, runtime: RuntimeName, host: RuntimeProcess
) -> tuple[Comparison, Mapping[str, Any]]:
    """Ask both about every golden vector."""
    import numpy as np

    entry = bundle.artifact(precision, runtime.artifact_format)
    observations = bundle.golden().observations
    executed = host.execute(bundle.spec, (bundle.path / entry.file).read_bytes(), observations)
    outputs, actions = [], []
    with device.serving(bundle.spec.name, precision, runtime) as served:
        for first in range(0, len(observations), ROWS_AT_ONCE):
            rows = observations[first : first + ROWS_AT_ONCE].tolist()
            reply = served.agent.request("act", observations=rows, outputs=True)
            outputs += reply["outputs"]
            actions += reply["actions"]
        said = dict(served.device)
    return (
        judge(
            name,
            precision.value,
            runtime.value,
            executed.version,
            executed.outputs,
            np.asarray(outputs, np.float32),
            executed.actions,
            np.asarray(actions),
            tolerance=entry.tolerance,
        ),
        said,
    )


def judge(
    policy: str,
    precision: str,
    runtime: str,
    version: str,
    host: np.ndarray,
    device: np.ndarray,
    host_actions: np.ndarray,
    device_actions: np.ndarray,
    tolerance: float,
) -> Comparison:
    """Compare outputs (n, A) and the actions chosen from them.

    Args:
        policy, precision, runtime, version: what was executed.
        host: outputs on the host.
        device: outputs on the device.
        host_actions: (n,) or, of a continuous policy, (n, A).
        device_actions: the same of the device.
        tolerance: of a float artifact.
    """
    import numpy as np

    step = output_step(host) if precision.startswith("int") else None
    differences = []
    if host_actions.ndim == 1:
        for index in np.flatnonzero(host_actions != device_actions):
            ours, theirs = int(host_actions[index]), int(device_actions[index])
            gap = float(abs(host[index][ours] - host[index][theirs]))
            differences.append(Difference(int(index), ours, theirs, gap))
    return Comparison(
        policy=policy,
        precision=precision,
        runtime=runtime,
        version=version,
        vectors=len(host),
        largest=float(np.abs(device - host).max()),
        step=step,
        # A thousandth of a step: the outputs are products of levels and the scale, rounded to float32.
        allowed=tolerance if step is None else (INTEGER_STEPS + 1e-3) * step,
        differences=tuple(differences),
    )


def output_step(outputs: np.ndarray) -> float:
    """One step of an integer artifact's outputs: they are levels times the scale, so the smallest distance is one."""
    import numpy as np

    levels = np.unique(outputs.astype(np.float64))
    gaps = np.diff(levels)
    # Equal levels are equal floats: what is nearer than float32 can tell at this size is no step.
    real = gaps[gaps > 1e-6 * max(1.0, float(np.abs(levels).max()))]
    return float(real.min()) if len(real) else 0.0


def table(found: Sequence[Comparison], document: Mapping[str, Any]) -> Table:
    """The comparisons, and every difference as a note."""
    from bench.report.tables import Table
    from bench.report.text import machine

    rows = []
    notes = [
        f"Device: {document['target']}, {machine(document['device'])}. Host: {document['host']}.",
        "Largest difference: of the outputs before the argmax, over all golden vectors; for integers in steps of the "
        f"outputs' scale, where {INTEGER_STEPS} is allowed.",
    ]
    for one in found:
        same = one.vectors - len(one.differences)
        largest = f"{one.largest:.1e}" if one.step is None else f"{one.largest / one.step:.2f} steps"
        allowed = f"{one.allowed:.1e}" if one.step is None else f"{INTEGER_STEPS} step"
        rows.append(
            (
                one.policy,
                one.precision,
                f"{one.runtime} {one.version}",
                f"{same:,} of {one.vectors:,}",
                largest,
                allowed,
                "yes" if one.holds else "NO",
            )
        )
        notes += [
            f"{one.policy} {one.precision} in {one.runtime}, vector {d.vector}: host {d.host}, device {d.device}; on "
            f"the host the outputs of the two are {_gap(d.gap, one.step)} apart."
            for d in one.differences
        ]
    headers = ("policy", "precision", "runtime", "same action", "largest difference", "allowed", "holds")
    return Table("device-agreement", "The same artifact on device and host", headers, tuple(rows), tuple(notes), left=3)


def _gap(gap: float, step: float | None) -> str:
    return f"{gap:.1e}" if step is None else f"{gap / step:.2f} steps"


if __name__ == "__main__":
    raise SystemExit(main())
