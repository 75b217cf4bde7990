"""``python -m train.actorq``: train D4PG or DQN with quantized actors, on this machine or on a Ray cluster.

    python -m train.actorq --task dm_control,cartpole_balance --model 512,512 --method d4pg --n-actors 2
        --quantize 8 --quantize-communication 8 --actor-update-period 30 --batch-size 256 --samples-per-insert 16
    python -m train.actorq --task cartpole --method dqn --n-actors 4 --priority-exponent 0.6

On many machines: ``ray start --head --port=6379`` on one, ``ray start --address=HOST:6379`` on the others (the same
project, installed the same way), then the same command with ``--address HOST:6379``.

Exit codes: 0 trained; 1 training diverged, or a process died again and again; 2 wrong usage, or no cluster; 130
interrupted (a bundle of what was learned lies beside the checkpoint; artifacts/NAME stays as it was).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from policy import interruption
from train.__main__ import (
    DIVERGED,
    INTERRUPTED,
    USAGE,
    answered,
    make_request,
    next_step,
    quiet_libraries,
    refuse_no_task,
)
from train.__main__ import parser as train_parser
from train.actorq import METHODS
from train.methods import default_method, refuse_mismatch
from train.suites.names import resolve

if TYPE_CHECKING:
    from train.actorq.settings import Plan
    from train.runs.request import RunRequest
    from train.suites.task import Task

BEGAN = time.monotonic()
EXAMPLES = """\
  python -m train.actorq --task cartpole --method dqn --n-actors 4
  python -m train.actorq --task dm_control,cartpole_balance --method d4pg --model 512,512"""
ELSEWHERE = {
    "priority_exponent": "type --priority-exponent",
    "importance_exponent": "type --importance-exponent",
    "environments": "type --n-actors; each actor has one environment",
    "rollout_steps": "type --insert-every, what an actor sends at once",
    "quantization_bits": "the learner computes in floats",
    "quant_delay": "the learner computes in floats",
}
"""Settings of the algorithms that are not looked at here, and what is."""
NOT_HERE = ("precision", "quantization_method", "quant_delay", "teacher")
"""Options of ``python -m train`` that mean nothing here."""


def parser() -> argparse.ArgumentParser:
    """The options of ``python -m train`` and those of the distribution, by the original's words where it has them."""
    options = train_parser(METHODS)
    options.prog, options.description = "python -m train.actorq", "Train a policy with quantized actors."
    options.epilog = __doc__
    group = options.add_argument_group("actors, replay and parameters")
    group.add_argument("--n-actors", type=int, help="processes that act (default 2)")
    group.add_argument("--quantize", type=int, metavar="BITS", help="bits that actors execute: 8 (default), 16, 32")
    group.add_argument(
        "--quantize-communication", type=int, metavar="BITS", help="bits of weights sent to actors (default --quantize)"
    )
    group.add_argument("--actor-update-period", type=int, metavar="STEPS", help="steps between two pulls (default 30)")
    group.add_argument("--batch-size", type=int, help="transitions of one update (default: the settings file's)")
    group.add_argument(
        "--samples-per-insert", type=float, help="times a transition is learned from (default 16; 0: no limit)"
    )
    group.add_argument("--replay-shards", type=int, help="replay processes (default 1)")
    group.add_argument("--insert-every", type=int, help="transitions an actor sends at once (default 16)")
    group.add_argument("--max-staleness", type=int, metavar="UPDATES", help="most actors may be behind (default 2000)")
    group.add_argument(
        "--publish-every", type=int, metavar="UPDATES", help="updates between versions (default: a round)"
    )
    group.add_argument("--priority-exponent", type=float, help="prioritized replay, e.g. 0.6 (default 0: uniform)")
    group.add_argument("--importance-exponent", type=float, help="of the priorities' correction (default 0.2)")
    group.add_argument(
        "--no-correct-mismatch", dest="correct_mismatch", action="store_false", help="DQN: returns are not cut"
    )
    group.add_argument("--runtime", choices=("litert", "tflite-runtime"), help="executes the artifact (default litert)")
    group.add_argument("--step-delays-s", type=float, nargs="+", metavar="S", help="each actor idles so long a step")
    group.add_argument("--address", help="of a Ray cluster: HOST:PORT or auto (default: Ray is started here)")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = parser().parse_args(argv)
    if arguments.task is None:
        return refuse_no_task(EXAMPLES)
    quiet_libraries()
    if importlib.util.find_spec("ray") is None:
        print("error: Ray, which starts and joins the processes, is not installed. Type: make actorq", file=sys.stderr)
        return USAGE
    # Ray prints a page about each process that dies; the run says it in a line. Read when Ray is imported.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    return answered(lambda: run_training(arguments), arguments.output_path)


def actorq_settings(arguments: argparse.Namespace) -> Any:
    """The settings that were typed, the others at their defaults.

    Raises:
        SettingsError: one is refused, or an option of ``python -m train`` was typed that means nothing here.
    """
    from train.actorq.settings import ActorQSettings
    from train.runs.presets import SettingsError

    for name in NOT_HERE:
        if getattr(arguments, name) != train_parser().get_default(name):
            raise SettingsError(
                f"--{name.replace('_', '-')} means nothing to distributed training: the learner computes in 32 bits "
                "and the actors in --quantize bits. Leave it out, or use python -m train."
            )
    typed = {part.name: getattr(arguments, part.name) for part in dataclasses.fields(ActorQSettings)}
    values = {name: value for name, value in typed.items() if value is not None}
    if "quantize" in values:
        values.setdefault("quantize_communication", values["quantize"])
    if "step_delays_s" in values:
        values["step_delays_s"] = tuple(values["step_delays_s"])
    try:
        return ActorQSettings(**values)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def run_training(arguments: argparse.Namespace) -> int:
    """Train as asked and write the bundle."""
    from device.agent.runtimes import installed_runtimes
    from policy.spec_parts import RuntimeName
    from train.actorq.address import ClusterError, refuse_unreachable
    from train.runs.models import DEFAULT_POLICY
    from train.runs.presets import SettingsError, load_settings
    from train.runs.resumption import taken_up
    from train.suites.errors import TaskError
    from train.suites.make import make_task

    asked = actorq_settings(arguments)
    method = arguments.method or default_method(resolve(arguments.task), arguments.policy)
    if method not in METHODS:
        raise SettingsError(f"--method {method} is not distributed. Type --method {' or --method '.join(METHODS)}.")
    found = load_settings(arguments.task, method, arguments.policy or DEFAULT_POLICY)
    task = make_task(arguments.task, arguments.preset, found.task)
    refuse_mismatch(method, task)
    if task.is_image:
        raise TaskError(
            f"{task.name} shows images; actors send vectors. Train it with python -m train, or take a task of vectors "
            "such as --task cartpole."
        )
    refuse_elsewhere(arguments.set)
    if (runtime := RuntimeName(asked.runtime)) not in installed_runtimes():
        raise SettingsError(f"--runtime {runtime.value} is not installed here. Type make setup, or take another.")
    if arguments.batch_size is not None:
        arguments.set.append(f"minibatch={arguments.batch_size}")
    values = dataclasses.asdict(asked)
    request, settings = make_request(arguments, method, found, task, {}, {"actorq": values})
    plan = make_plan(request, arguments.preset, found.task, dataclasses.asdict(settings), asked)
    interruption.loaded()
    refuse_unbounded(settings, asked)
    refuse_never_learning(settings, request.steps)
    try:
        taken_up(request)  # a checkpoint that is not there or of another run is told before Ray starts
        refuse_unreachable(arguments.address)
        if not request.quiet:
            print(f"{asked.n_actors} actors in {asked.precision.value} and a learner start …", file=sys.stderr)
        return distribute(request, task, plan, found.source, arguments.address)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE


def distribute(request: RunRequest, task: Task, plan: Plan, source: str, address: str | None) -> int:
    """Start or join Ray, train and write the bundle; the exit code.

    Args:
        request, task, plan: what is trained, and how.
        source: of the settings, for the provenance.
        address: of a cluster that answers, or None.

    Raises:
        ClusterError: Ray does not start, or the cluster is too small.
    """
    from train.actorq.cluster import connected  # Ray is loaded here, not before the address was looked at
    from train.actorq.history import GaveUpError
    from train.actorq.processes import GoneError
    from train.actorq.run import train
    from train.runs.results import write_result
    from train.runs.run import Run

    try:
        # Ray first: a run that can begin puts the last one of its name aside.
        with connected(plan.actorq, address), Run(request, task, BEGAN) as run:
            trained = train(run, plan, address is None)
            bundle = write_result(run, trained, source)
            told = trained.notes["actorq"]
            cpu_s = sum(told["cpu_s"].values()) + run.cpu_s
            run.progress.say(
                f"{bundle.path}: {trained.steps:,} steps, {trained.notes['updates']:,} updates, {run.outcome}; "
                f"{run.wall_s:.0f} s, {cpu_s:.0f} CPU-s of all processes but Ray's own, "
                f"{told['parameters'].get('bytes_served', 0) / 1e6:.1f} MB of parameters sent. "
                + next_step(run, bundle),
                always=run.was_interrupted,
            )
            return INTERRUPTED if run.was_interrupted else 0
    except (GaveUpError, GoneError) as error:
        print(f"error: {error}", file=sys.stderr)
        return INTERRUPTED if run.was_interrupted else DIVERGED


def refuse_elsewhere(pairs: list[str]) -> None:
    """Refuse ``--set`` of what has an option of its own here, or no meaning.

    Raises:
        SettingsError: says what to type.
    """
    from train.runs.presets import SettingsError, parse_overrides

    for name in parse_overrides(pairs):
        if name in ELSEWHERE:
            raise SettingsError(f"--set {name} means nothing to distributed training: {ELSEWHERE[name]}.")


def make_plan(request: Any, preset: str | None, task_options: Any, algorithm: dict[str, Any], asked: Any) -> Any:
    """The plan of a run that was asked for."""
    from train.actorq.settings import Plan
    from train.runs.results import bundle_name

    return Plan(
        task=request.task,
        method=request.method,
        policy=bundle_name(request),
        network=request.network,
        steps=request.steps,
        seed=request.seed,
        algorithm=algorithm,
        actorq=asked,
        preset=preset,
        task_options=task_options,
    )


def refuse_unbounded(settings: Any, asked: Any) -> None:
    """Refuse a staleness that no actor could keep.

    Raises:
        SettingsError: says what to type.
    """
    from train.runs.presets import SettingsError

    every = asked.publish_every or settings.updates
    smallest = 2 * max(every, settings.updates)  # one round is learned while the version before it is built
    if asked.max_staleness < smallest:
        raise SettingsError(
            f"--max-staleness {asked.max_staleness} cannot be kept: versions are {every} updates apart and a round has "
            f"{settings.updates}. Type --max-staleness {smallest} or more, or smaller rounds: --set updates=4."
        )


def refuse_never_learning(settings: Any, steps: int) -> None:
    """Refuse steps that are over before learning begins.

    Raises:
        SettingsError: says what to type.
    """
    from train.runs.presets import SettingsError

    if steps <= settings.learning_starts:
        raise SettingsError(
            f"--steps {steps} are over before learning begins, after {settings.learning_starts} steps of random "
            f"actions. Type --steps {10 * settings.learning_starts}, or --set learning_starts={steps // 10}."
        )


if __name__ == "__main__":
    sys.exit(main())
