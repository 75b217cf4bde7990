"""``quarl actorq``: train D4PG or DQN with quantized actors, on this machine or on a Ray cluster.

On many machines: ``ray start --head --port=6379`` on one, ``ray start --address=HOST:6379`` on the others (the same
project, installed the same way), then the same command with ``--address HOST:6379``.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from quarl import cli
from quarl.train.__main__ import format_provenance_command, next_step, refuse_without
from quarl.train.actorq import METHODS
from quarl.train.actorq.settings import ActorQSettings
from quarl.train.options import RunOptions, read_method, require_task

if TYPE_CHECKING:
    from quarl.train.actorq.plan import Plan

BEGAN = time.monotonic()
EXAMPLES = """\
  quarl actorq --task cartpole --method dqn --n-actors 4
  quarl actorq --task dm_control,cartpole_balance --method d4pg --model 512,512"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(RunOptions):
    """Train with quantized actors.

    Attributes:
        batch_size: transitions of one update (default: the settings file's)
        address: of a Ray cluster: HOST:PORT or auto (default: Ray is started here)
    """

    method: Annotated[str | None, cli.reads(read_method, "|".join(METHODS))] = None
    actorq: Annotated[ActorQSettings, Parameter(name="*")] = field(default_factory=ActorQSettings)
    batch_size: int | None = None
    address: str | None = None


@cli.verb(left="nothing was written.")
def train(options: Options) -> int:
    """Train D4PG or DQN with quantized actors, on this machine or on a Ray cluster.

        quarl actorq --task cartpole --method dqn --n-actors 4 --priority-exponent 0.6
        quarl actorq --task dm_control,cartpole_balance --method d4pg --model 512,512

    Exit status: 0 trained; 1 training diverged, or a process died repeatedly; 2 wrong usage, or no cluster; 130
    interrupted (a bundle of the policy so far is beside the checkpoint; artifacts/NAME is unchanged).
    """
    require_task(options.task, EXAMPLES)
    refuse_without("ray", "tensorflow", "tensorboard")
    from quarl.train.actorq.address import refuse_unreachable
    from quarl.train.actorq.plan import make_plan, make_runtime_ready, refuse_fruitless
    from quarl.train.runs.resumption import resume_or_begin

    plan = make_plan(options)
    plan = dataclasses.replace(
        plan, request=dataclasses.replace(plan.request, command=format_provenance_command("actorq"))
    )
    refuse_fruitless(plan)
    resume_or_begin(plan.request)  # a checkpoint that is not there or of another run is told before Ray starts
    refuse_unreachable(options.address)
    make_runtime_ready(plan.actorq)
    if not plan.request.quiet:
        actorq = plan.actorq
        print(f"{actorq.n_actors} actors in {actorq.precision.value} and a learner start …", file=sys.stderr)
    return distribute(plan, options.address)


def distribute(plan: Plan, address: str | None) -> int:
    """Start Ray here or join the cluster at ``address``, which answers; train and write the bundle; the exit code.

    Raises:
        ClusterError: Ray does not start, or the cluster is too small.
        GaveUpError, GoneError: a process died again and again, or cannot be replaced.
    """
    from quarl.train.actorq.cluster import ray_session  # Ray is loaded here, not before the address was looked at
    from quarl.train.actorq.history import GaveUpError
    from quarl.train.actorq.processes import GoneError
    from quarl.train.actorq.run import train
    from quarl.train.runs.results import write_result
    from quarl.train.runs.run import Run

    try:
        # Ray first: a run that can begin puts the last one of its name aside.
        with ray_session(plan.actorq, address), Run(plan.request, plan.make_task(), BEGAN) as run:
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
            return cli.EXIT_INTERRUPTED if run.was_interrupted else 0
    except (GaveUpError, GoneError) as error:
        if run.was_interrupted:
            raise KeyboardInterrupt(f"{error}") from None
        raise


main = cli.of("actorq")

if __name__ == "__main__":
    raise SystemExit(main())
