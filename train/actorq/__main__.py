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
from typing import TYPE_CHECKING

from quarl.policy import interruption
from quarl.train.__main__ import (
    DIVERGED,
    INTERRUPTED,
    USAGE,
    answered,
    next_step,
    quiet_libraries,
    recorded,
    refuse_no_task,
)
from quarl.train.__main__ import parser as train_parser
from quarl.train.actorq import METHODS
from quarl.train.actorq.settings import ActorQSettings, option

if TYPE_CHECKING:
    from quarl.train.actorq.plan import Plan

BEGAN = time.monotonic()
EXAMPLES = """\
  python -m train.actorq --task cartpole --method dqn --n-actors 4
  python -m train.actorq --task dm_control,cartpole_balance --method d4pg --model 512,512"""


def parser() -> argparse.ArgumentParser:
    """The options of ``python -m train`` and those of the distribution, by the original's words where it has them."""
    options = train_parser(METHODS)
    options.prog, options.description = "python -m train.actorq", "Train a policy with quantized actors."
    options.epilog = __doc__
    group = options.add_argument_group("actors, replay and parameters")
    for part in dataclasses.fields(ActorQSettings):
        group.add_argument(option(part.name), default=part.default, **part.metadata)
    options.set_defaults(quantize_communication=None)  # as --quantize
    group.add_argument("--batch-size", type=int, help="transitions of one update (default: the settings file's)")
    group.add_argument("--address", help="of a Ray cluster: HOST:PORT or auto (default: Ray is started here)")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    words = sys.argv[1:] if argv is None else argv
    arguments = parser().parse_args(words)
    if arguments.task is None:
        return refuse_no_task(EXAMPLES)
    quiet_libraries()
    if importlib.util.find_spec("ray") is None:
        where = 'Type: make actorq   (outside a checkout: pip install "quarl[actorq]")'
        print(f"error: Ray, which starts and joins the processes, is not installed. {where}", file=sys.stderr)
        return USAGE
    # Ray prints a page about each process that dies; the run says it in a line. Read when Ray is imported.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    arguments.command = recorded("train.actorq", words)
    return answered(lambda: run_training(arguments), arguments.output_path)


def run_training(arguments: argparse.Namespace) -> int:
    """Train as requested and write the bundle."""
    from quarl.train.actorq.address import ClusterError, refuse_unreachable
    from quarl.train.actorq.plan import make_plan, make_runtime_ready, refuse_fruitless
    from quarl.train.runs.resumption import resume_or_begin

    plan = make_plan(arguments)
    refuse_fruitless(plan)
    try:
        resume_or_begin(plan.request)  # a checkpoint that is not there or of another run is told before Ray starts
        refuse_unreachable(arguments.address)
        make_runtime_ready(plan.actorq)
        if not plan.request.quiet:
            actorq = plan.actorq
            print(f"{actorq.n_actors} actors in {actorq.precision.value} and a learner start …", file=sys.stderr)
        return distribute(plan, arguments.address)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE


def distribute(plan: Plan, address: str | None) -> int:
    """Start Ray here or join the cluster at ``address``, which answers; train and write the bundle; the exit code.

    Raises:
        ClusterError: Ray does not start, or the cluster is too small.
    """
    from quarl.train.actorq.cluster import connected  # Ray is loaded here, not before the address was looked at
    from quarl.train.actorq.history import GaveUpError
    from quarl.train.actorq.processes import GoneError
    from quarl.train.actorq.run import train
    from quarl.train.runs.results import write_result
    from quarl.train.runs.run import Run

    try:
        # Ray first: a run that can begin puts the last one of its name aside.
        with (
            interruption.interruptible(),
            connected(plan.actorq, address),
            Run(plan.request, plan.make_task(), BEGAN) as run,
        ):
            trained = train(run, plan, address is None)
            bundle = write_result(run, trained, plan.source)
            facts = trained.notes["actorq"]
            cpu_s = sum(facts["cpu_s"].values()) + run.cpu_s
            run.progress.say(
                f"{bundle.path}: {trained.steps:,} steps, {trained.notes['updates']:,} updates, {run.outcome}; "
                f"{run.wall_s:.0f} s, {cpu_s:.0f} CPU-s of all processes but Ray's own, "
                f"{facts['parameters'].get('bytes_served', 0) / 1e6:.1f} MB of parameters sent. "
                + next_step(run, bundle),
                always=run.was_interrupted,
            )
            return INTERRUPTED if run.was_interrupted else 0
    except (GaveUpError, GoneError) as error:
        print(f"error: {error}", file=sys.stderr)
        return INTERRUPTED if run.was_interrupted else DIVERGED


if __name__ == "__main__":
    sys.exit(main())
