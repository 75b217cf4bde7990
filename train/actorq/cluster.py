"""Ray: starting or reaching it, and the processes of a run on it. With ``processes.py`` all that imports it.

Replay and parameter processes that die are started again by Ray under the same handle, empty; actors and the learner
are replaced by ``train/actorq/run.py``, which knows where they have to go on.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from quarl.train.actorq import VARIABLES
from quarl.train.actorq.address import ClusterError, no_cluster
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.processes import (
    ActorProcess,
    GoneError,
    LearnerProcess,
    ParameterProcess,
    ReplayProcess,
    cause_of,
    reason,
)
from quarl.train.actorq.settings import ActorQSettings
from quarl.train.runs.checkpoint import Checkpoint

STORE_BYTES = 1 << 29
"""Bytes of Ray's shared memory on this machine: a few versions of the largest parameters and some minibatches."""
START_TRIES = 3  # Ray gives its own processes 30 s to start, which a busy machine may exceed
RESTARTS = -1  # of a replay or parameter process: always; the supervisor counts them
STOP_WAIT_S = 20.0
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


class Cluster:
    """The processes that hold a run's data, and those that it starts; a context manager that ends them all."""

    def __init__(self, plan: Plan, is_local: bool, start_step: int) -> None:
        """Args: the plan, whether Ray is here only (:func:`ray_session`), and the steps that were made before."""
        self._plan = plan
        self._cpus = 0 if is_local else 1  # here the processes share the cores whatever they are
        actorq = plan.actorq
        again = {"max_restarts": RESTARTS, "num_cpus": 0}
        waiting = 2 * actorq.n_actors + 16  # calls of all actors and the learner at once, and those of the supervisor
        replay, server = ray.remote(ReplayProcess), ray.remote(ParameterProcess)
        self.shards: list[Any] = [
            replay.options(**again, max_concurrency=waiting).remote(plan, index, start_step)
            for index in range(actorq.replay_shards)
        ]
        self.server: Any = server.options(**again, max_concurrency=16).remote(
            actorq.quantize, actorq.quantize_communication, actorq.artifact_format
        )
        self._started: list[Any] = []

    def learner(self, checkpoint: Checkpoint | None) -> Any:
        """Return a new learner process, which goes on from a checkpoint if there is one."""
        remote_class = ray.remote(LearnerProcess).options(max_concurrency=4, num_cpus=self._cpus)
        return self._register_process(remote_class.remote(self._plan, self.shards, self.server, checkpoint))

    def actor(self, index: int, life: int) -> Any:
        """Return a new actor process; on a cluster they are spread over its machines."""
        remote_class = ray.remote(ActorProcess).options(num_cpus=self._cpus, scheduling_strategy="SPREAD")
        return self._register_process(
            remote_class.remote(self._plan, index, life, self.shards[index % len(self.shards)], self.server)
        )

    def end(self, handle: Any) -> None:
        """End an actor or a learner that is replaced: its process may outlive what it raised, and keep its CPU."""
        self._started.remove(handle)
        with contextlib.suppress(RayError, ValueError):
            ray.kill(handle, no_restart=True)

    def _register_process(self, handle: Any) -> Any:
        self._started.append(handle)
        return handle

    def stop(self) -> None:
        """Tell everybody, through the replay, that the run is over."""
        for shard in self.shards:
            shard.stop.remote()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in (*self._started, *self.shards, self.server):
            with contextlib.suppress(RayError, ValueError):
                ray.kill(handle, no_restart=True)


@contextlib.contextmanager
def ray_session(actorq: ActorQSettings, address: str | None) -> Iterator[None]:
    """Ray for one run: a cluster's, or one of its own, which is ended on leaving.

    Args:
        actorq: how many processes there will be.
        address: ``auto``, ``HOST:PORT`` of ``ray start``, or None: Ray is started here.

    Raises:
        ClusterError: Ray does not start or answer, or the cluster is too small.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        if address is None:
            for name, value in VARIABLES.items():
                os.environ.setdefault(name, value)  # Ray's processes inherit them
            # This many processes Ray starts at a time, and before they are asked for: no more than the run will use.
            cores = min(len(os.sched_getaffinity(0)), actorq.n_actors + actorq.replay_shards + 2)
            _start(**QUIET, include_dashboard=False, num_cpus=cores, object_store_memory=STORE_BYTES)
        else:
            reach(address, runtime_env={"env_vars": VARIABLES})
            _refuse_too_small(actorq)
        yield
    finally:
        ray.shutdown()  # what an interruption left half started too


def _refuse_too_small(actorq: ActorQSettings) -> None:
    free, wanted = int(ray.available_resources().get("CPU", 0)), actorq.n_actors + 1
    if free < wanted:
        raise ClusterError(
            f"the cluster has {free} free CPUs, but {actorq.n_actors} actors and a learner need {wanted}. Type "
            f"--n-actors {max(free - 1, 1)}, or add nodes: ray start --address=HOST:PORT."
        )


def _start(**options: Any) -> None:
    for attempt in range(START_TRIES):
        try:
            ray.init(**options, address="local")
            return
        except Exception as error:  # a node that was too slow to answer is a bare Exception
            ray.shutdown()
            if attempt == START_TRIES - 1:
                raise ClusterError(
                    f"Ray did not start on this machine ({reason(error)}). Check its load and memory, then try again."
                ) from error


def reach(address: str, **options: Any) -> None:
    """Join a cluster.

    Raises:
        ClusterError: none answers.
    """
    try:
        ray.init(address=address, **QUIET, **options)
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        ray.shutdown()
        raise no_cluster(address, reason(error)) from error


# --- what the supervisor asks ---------------------------------------------------------------------------------------


def ready(references: Sequence[Any], timeout_s: float) -> list[Any]:
    """Return the references that have an answer or an error within ``timeout_s``."""
    done, _ = ray.wait(list(references), num_returns=len(references), timeout=timeout_s)
    return list(done)


def outcome(reference: Any) -> Any:
    """Return the answer behind a reference.

    Raises:
        GoneError: the process died.
        Exception: what the process itself raised.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise cause_of(error) from None
    except RayError as error:
        raise GoneError(reason(error)) from error
