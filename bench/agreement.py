"""Agreement: does one artifact choose one action, in every runtime of this machine, and on a device as here?

    python bench/agreement.py
    python bench/agreement.py --policy III --precision int8 --observations 1000 --json
    python bench/agreement.py --target pi@virtual --runtime litert

Without --target: tflite-runtime, LiteRT and onnxruntime against each other, on observations that each policy sees while
it flies the hard preset. With it: the device against this machine in each runtime, on all golden vectors; exit status 1
when outputs are further apart than the artifact's tolerance, or one step of an integer's scale. --keep stores the
answer in results/agreement.json or results/device-agreement.json, from where bench/table.py makes its table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import answer_command, command_line

if TYPE_CHECKING:
    import numpy as np

    from bench.device_session.questions import Served
    from bench.report.tables import Table
    from convert.executor import ExecutionResult, RuntimeProcess
    from convert.reference import Reference
    from policy.bundle import Bundle
    from policy.spec import Precision, RuntimeName

EPISODES, SEED = 250, 30  # flown for observations
ROWS_AT_ONCE = 64  # in a request; a reply of 512 × 25 numbers in one line would do too, but shows no progress


@dataclass(frozen=True)
class Difference:
    """An observation on which two executions choose different actions; ``gap``: of the outputs of these actions."""

    observation: int
    here: int
    there: int
    gap: float


@dataclass(frozen=True)
class Comparison:
    """Two executions of one policy's artifacts on so many observations.

    Attributes:
        here, there: where it was executed: runtime and version, with the target where that is not this machine.
        largest: |output there − output here|.
        step: one step of the outputs' scale; None for a float artifact.
        allowed: upper bound of ``largest``; None where it has none: two runtimes' formats differ in where they round.
        differences: all of them; actions of a continuous policy are not compared.
    """

    policy: str
    precision: str
    here: str
    there: str
    observations: int
    largest: float
    step: float | None
    allowed: float | None
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        """Whether the outputs are as near as they have to be."""
        return self.allowed is None or self.largest <= self.allowed


def main(argv: Sequence[str] | None = None) -> int:
    """Execute, compare, print."""
    parser = answer_command.parser(__doc__, "bench/agreement.py")
    parser.add_argument("--policy", type=command_line.words, default=["I", "II", "III"], help="default: I,II,III")
    parser.add_argument(
        "--precision", type=command_line.read_precisions, default="fp32,fp16,int8", help="default: fp32,fp16,int8"
    )
    parser.add_argument(
        "--runtime",
        type=command_line.read_runtimes,
        default="tflite-runtime,litert,onnxruntime",
        help="default: all three",
    )
    parser.add_argument("--target", metavar="user@host[:port]", help="a device to compare with (default: none)")
    parser.add_argument("--observations", type=command_line.positive, default=5000, help="default: %(default)s")
    arguments = parser.parse_args(argv)
    return ANSWERS["agreement" if arguments.target is None else "device-agreement"].run(arguments)


def _ask(arguments: argparse.Namespace) -> dict[str, Any]:
    device: dict[str, Any] = {}
    found = list(_runtimes_of_this_machine(arguments) if arguments.target is None else _device(arguments, device))
    return {
        "target": arguments.target,
        "device": device or None,
        "episodes": None if arguments.target else EPISODES,
        "comparisons": [asdict(each) for each in found],
    }


def _runtimes_of_this_machine(arguments: argparse.Namespace) -> Iterator[Comparison]:
    """Each runtime against the first one, on flown observations."""
    from bench.device_session.host_flights import flown_observations
    from convert.executor import runtime_processes
    from policy.locate import working_bundle
    from policy.spec import Precision
    from train.deciding import reference

    bundles = [working_bundle(name) for name in arguments.policy]
    done, total = count(1), len(bundles) * len(arguments.precision)
    with runtime_processes() as runtimes, command_line.progress_bar("executing in every runtime") as progress:
        for bundle in bundles:
            observations = flown_observations(reference(bundle, Precision.FP32), arguments.observations, SEED, EPISODES)
            for precision in arguments.precision:
                made, _ = executed_everywhere(bundle, precision, observations, runtimes, arguments.runtime)
                first, *others = made.items()
                for other in others:
                    here, there = (f"{runtime.value} {execution.version}" for runtime, execution in (first, other))
                    yield compare(bundle.spec.name, precision, here, there, first[1], other[1])
                progress(next(done), total)


def executed_everywhere(
    bundle: Bundle,
    precision: Precision,
    observations: np.ndarray,
    processes: Mapping[RuntimeName, RuntimeProcess],
    wanted: Sequence[RuntimeName] | None = None,
) -> tuple[dict[RuntimeName, ExecutionResult], Reference]:
    """A precision's artifacts, judged on the golden vectors and then executed on the observations, in each runtime."""
    from convert.pipeline import build, judge

    made = {}
    runtimes = [runtime for runtime in wanted or processes if runtime.artifact_format.holds(precision)]
    for artifact_format in dict.fromkeys(runtime.artifact_format for runtime in runtimes):
        made[artifact_format] = build(bundle, precision, artifact_format)
        judge(bundle, made[artifact_format], processes)
    executed = {
        runtime: processes[runtime].execute(bundle.spec, made[runtime.artifact_format].data, observations)
        for runtime in runtimes
    }
    return executed, next(iter(made.values())).reference


def _device(arguments: argparse.Namespace, device: dict[str, Any]) -> Iterator[Comparison]:
    """The device against this machine in each runtime, on the golden vectors; fills in what the device says it is."""
    from bench.device_session import session
    from convert.executor import runtime_processes

    with ExitStack() as stack:
        asking = stack.enter_context(session.opened(arguments, keeps=False))
        host = stack.enter_context(runtime_processes())
        progress = stack.enter_context(command_line.progress_bar(f"comparing with {arguments.target}"))
        done, total = count(1), len(asking.bundles) * len(asking.precisions)
        for runtime, bundle in asking.deployed():
            for precision in asking.executed_by(runtime):
                entry = bundle.artifact(precision, runtime.artifact_format)
                observations = bundle.golden().observations
                here = host[runtime].execute(bundle.spec, (bundle.path / entry.file).read_bytes(), observations)
                with asking.device.serving(bundle.spec.name, precision, runtime) as served:
                    device.update(served.device)
                    there = executed_there(served, observations)
                where, tolerance = f"{runtime.value} {here.version}", bundle.expected(entry).tolerance
                yield compare(
                    bundle.spec.name, precision, where, f"{where}, {arguments.target}", here, there, tolerance
                )
                progress(next(done), total)


def executed_there(served: Served, observations: np.ndarray) -> ExecutionResult:
    """An artifact executed by the device's agent."""
    import numpy as np

    from convert.executor import ExecutionResult

    outputs, actions = [], []
    for first in range(0, len(observations), ROWS_AT_ONCE):
        rows = observations[first : first + ROWS_AT_ONCE].tolist()
        reply = served.agent.request("act", observations=rows, outputs=True)
        outputs += reply["outputs"]
        actions += reply["actions"]
    return ExecutionResult(str(served.loaded["runtime_version"]), np.asarray(outputs, np.float32), np.asarray(actions))


def compare(
    policy: str,
    precision: Precision,
    here: str,
    there: str,
    ours: ExecutionResult,
    theirs: ExecutionResult,
    tolerance: np.ndarray | None = None,
) -> Comparison:
    """Compare outputs (n, A) and the actions chosen from them; ``tolerance`` (n, A) where they have to be near."""
    import numpy as np

    from bench.tables.agreement import INTEGER_STEPS

    step = output_step(ours.outputs) if precision.is_integer else None
    differences = []
    if ours.actions.ndim == 1:
        for index in np.flatnonzero(ours.actions != theirs.actions):
            chosen = [int(ours.actions[index]), int(theirs.actions[index])]
            gap = max(float(np.ptp(outputs[index][chosen])) for outputs in (ours.outputs, theirs.outputs))
            differences.append(Difference(int(index), chosen[0], chosen[1], gap))
    errors = np.abs(theirs.outputs - ours.outputs)
    largest, allowed = float(errors.max()), None
    if tolerance is not None:  # of the output that comes nearest to what it is allowed
        # A thousandth of a step: the outputs are products of levels and the scale, rounded to float32.
        limits = tolerance if step is None else np.full(errors.shape, (INTEGER_STEPS + 1e-3) * step)
        worst = int((errors / limits).argmax())
        largest, allowed = float(errors.flat[worst]), float(limits.flat[worst])
    found = len(ours.outputs), largest, step, allowed, tuple(differences)
    return Comparison(policy, precision.value, here, there, *found)


def output_step(outputs: np.ndarray) -> float:
    """One step of an integer artifact's outputs: they are levels times the scale, so the smallest distance is one."""
    import numpy as np

    levels = np.unique(outputs.astype(np.float64))
    gaps = np.diff(levels)
    # Equal levels are equal floats: what is nearer than float32 can tell at this size is no step.
    real = gaps[gaps > 1e-6 * max(1.0, float(np.abs(levels).max()))]
    return float(real.min()) if len(real) else 0.0


def amounts(document: Mapping[str, Any]) -> dict[tuple[str, ...], int]:
    """Observations that each pair was compared on."""
    keys = ("policy", "precision", "here", "there")
    return {tuple(each[key] for key in keys): each["observations"] for each in document["comparisons"]}


def _tables(name: str) -> dict[str, Callable[[answer_command.Document], Table]]:
    from bench.tables.agreement import AGREEMENT, DEVICE_AGREEMENT

    return {pivot.name: pivot.table for pivot in (AGREEMENT, DEVICE_AGREEMENT) if pivot.name == name}


def _holds(document: answer_command.Document) -> bool:
    from bench.tables.agreement import comparisons

    return all(row["holds"] for row in comparisons(document))


ANSWERS = {
    name: answer_command.AnswerCommand(
        name=name,
        command="bench/agreement.py",
        ask=_ask,
        tables=partial(_tables, name),
        amounts=amounts,
        unit="observations",
        holds=_holds,
    )
    for name in ("agreement", "device-agreement")
}


if __name__ == "__main__":
    raise SystemExit(main())
