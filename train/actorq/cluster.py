"""The processes of a run, on Ray: the only module that imports it.

Every process is an ordinary class of this package behind a Ray actor. What travels: the plan as JSON; transitions as
arrays; parameters as the bytes of ``train/actorq/wire.py``, put into Ray's object store once a version, so that a
machine with many actors receives them once. A policy is never pickled.

Replay and parameter processes that die are started again by Ray under the same handle, empty; actors and the learner
are replaced by ``train/actorq/run.py``, which knows where they have to go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from train.actorq.actor import Actor
from train.actorq.learner import LearnerLoop
from train.actorq.parameters import ParameterServer
from train.actorq.service import Columns, ReplayService, Reply
from train.actorq.settings import Plan
from train.actorq.wire import Published, Pushed
from train.checkpoint import Checkpoint

STORE_BYTES = 1 << 29
"""Of Ray's shared memory on this machine: a few versions of the largest parameters and some minibatches."""
START_TRIES = 3  # Ray gives its own processes 30 s to start, which a busy machine may exceed
RESTARTS = 3  # of a replay or parameter process
RETRY_FOR_S = 30.0
RETRY_PAUSE_S = 0.2
STOP_WAIT_S = 20.0
REACH_WITHIN_S = 5.0
VARIABLES = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
"""Of every process: one thread of linear algebra each, since the processes share the cores."""


class ClusterError(RuntimeError):
    """Ray could not be started or reached, or the cluster is too small."""


class GoneError(RuntimeError):
    """A process died that cannot be replaced."""


# --- the processes ------------------------------------------------------------------------------------------------


class ReplayProcess:
    """A shard whose callers wait until they may insert or sample."""

    def __init__(self, plan: str, index: int, start_step: int) -> None:
        self._service = ReplayService(Plan.from_json(plan), index, start_step)
        self._changed = asyncio.Condition()
        self._born = time.time()

    async def insert(self, columns: Columns, facts: dict[str, Any]) -> tuple[int, int, bool]:
        """See :meth:`ReplayService.insert`."""
        return tuple(await self._when_ready(lambda: self._service.insert(columns, facts)))

    async def sample(self, updates: int) -> tuple[Columns | None, tuple[int, int, bool]]:
        """See :meth:`ReplayService.sample`."""
        columns, reply = await self._when_ready(lambda: self._service.sample(updates))
        return columns, tuple(reply)

    async def _when_ready(self, ask: Callable[[], Any]) -> Any:
        async with self._changed:
            while (answer := ask()) is None:
                await self._changed.wait()
            self._changed.notify_all()
        return answer

    async def update_priorities(self, rows: Any, errors: Any) -> None:
        """See :meth:`ReplayService.update_priorities`."""
        self._service.update_priorities(rows, errors)

    async def recent(self, count: int) -> Columns:
        """See :meth:`ReplayService.recent`."""
        return self._service.recent(count)

    async def facts(self) -> dict[str, Any]:
        """See :meth:`ReplayService.facts`; and when and where the process began."""
        return {**self._service.facts(), "born": self._born, "pid": os.getpid(), "cpu_s": time.process_time()}

    async def go_on(self, step: int) -> None:
        """See :meth:`ReplayService.go_on`."""
        async with self._changed:
            self._service.go_on(step)
            self._changed.notify_all()

    async def stop(self) -> None:
        """See :meth:`ReplayService.stop`; whoever waits is answered."""
        async with self._changed:
            self._service.stop()
            self._changed.notify_all()


class ParameterProcess:
    """The parameter server; a version is put into the object store once, whoever asks for it how often."""

    def __init__(self, quantize: int, communication: int) -> None:
        self._server = ParameterServer(quantize, communication)
        self._stored: tuple[int, Any] = (0, None)
        self._newest: Pushed | None = None

    def put(self, updates: int, spec: str, weights: bytes, calibration: Any) -> None:
        """See :meth:`ParameterServer.put`."""
        self._newest = Pushed(updates, spec, weights, calibration)
        self._server.put(self._newest)

    def latest(self, known: int) -> tuple[str, list[Any]] | None:
        """Header and reference to the data of the newest version that is ready, or None."""
        published = self._server.latest(known)
        if published is None:
            return None
        version, reference = self._stored
        if version != published.version:
            reference = ray.put(published.data)
            self._stored = (published.version, reference)
        return published.header(), [reference]

    def newest(self) -> tuple[int, str, bytes] | None:
        """Updates, spec and fp32 weights as the learner handed them over last."""
        pushed = self._newest
        return None if pushed is None else (pushed.updates, pushed.spec, pushed.weights)

    def facts(self) -> dict[str, Any]:
        """See :meth:`ParameterServer.facts`."""
        return {**self._server.facts(), "pid": os.getpid(), "cpu_s": time.process_time()}


class LearnerProcess:
    """The learner; figures and state are given while it runs."""

    def __init__(
        self, plan: str, shards: Sequence[Any], server: Any, state: tuple[dict[str, Any], dict[str, Any]] | None
    ) -> None:
        self._sampler = _Sampler(shards)
        self._loop = LearnerLoop(
            Plan.from_json(plan),
            self._sampler,
            self._sampler.recent,
            lambda pushed: called(server.put, pushed.updates, pushed.spec, pushed.weights, pushed.calibration),
            self._sampler.prioritise,
            None if state is None else Checkpoint(*state),
        )

    def run(self) -> dict[str, Any]:
        """See :meth:`LearnerLoop.run`."""
        return self._loop.run()

    def facts(self) -> dict[str, Any]:
        """See :meth:`LearnerLoop.facts`."""
        return {**self._loop.facts(), "pid": os.getpid()}

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """See :meth:`LearnerLoop.state`."""
        return self._loop.state()


class _Sampler:
    """Minibatches from the shards in turn, the next ones asked for while the last are learned from."""

    def __init__(self, shards: Sequence[Any]) -> None:
        self._shards, self._turn, self._last = list(shards), 0, 0
        self._replies: dict[int, Reply] = {}
        self._over: set[int] = set()
        self._asked: Any = None

    def __call__(self, updates: int) -> tuple[Columns | None, Reply]:
        """See :data:`train.actorq.learner.Sample`."""
        while True:
            columns, reply = called(self._shards[self._turn].sample, updates, first=self._asked)
            self._asked, self._last = None, self._turn
            self._replies[self._turn] = Reply(*reply)
            if columns is None:
                self._over.add(self._turn)
            everywhere = Reply(sum(each.step for each in self._replies.values()), updates, False)
            if len(self._over) == len(self._shards):
                return None, everywhere._replace(stop=True)
            self._turn = next(
                (self._turn + ahead) % len(self._shards)
                for ahead in range(1, len(self._shards) + 1)
                if (self._turn + ahead) % len(self._shards) not in self._over
            )
            if columns is not None:
                self._asked = self._shards[self._turn].sample.remote(updates)
                return columns, everywhere

    def prioritise(self, rows: Any, errors: Any) -> None:
        """Errors of the rows that were given last, to the shard they are from; nobody waits for it."""
        self._shards[self._last].update_priorities.remote(rows, errors)

    def recent(self, count: int) -> Columns:
        """The newest rows of all shards together."""
        import numpy as np

        share = max(count // len(self._shards), 1)
        parts = [part for shard in self._shards if len((part := called(shard.recent, share))["observation"])]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class ActorProcess:
    """One actor."""

    def __init__(self, plan: str, index: int, life: int, shard: Any, server: Any) -> None:
        self._actor = Actor(Plan.from_json(plan), index, life, lambda known: _pulled(server, known), _Inserter(shard))

    def run(self) -> dict[str, Any]:
        """See :meth:`Actor.run`."""
        return self._actor.run()


class _Inserter:
    """Sends rows while the actor goes on; an answer is waited for with the next rows."""

    def __init__(self, shard: Any) -> None:
        self._shard, self._reply = shard, Reply(0, 0, False)
        self._asked: Any = None
        self._rows: tuple[Columns, dict[str, Any]] = ({}, {})

    def __call__(self, columns: Columns, facts: dict[str, Any]) -> Reply:
        """See :data:`train.actorq.actor.Insert`."""
        if self._asked is not None:
            self._reply = Reply(*called(self._shard.insert, *self._rows, first=self._asked))
        self._rows = columns, {**facts, "pid": os.getpid()}
        self._asked = self._shard.insert.remote(*self._rows)
        return self._reply


def _pulled(server: Any, known: int) -> Published | None:
    found = called(server.latest, known)
    return None if found is None else Published.from_parts(found[0], ray.get(found[1][0]))


def called(method: Any, *arguments: Any, first: Any = None) -> Any:
    """What a process answers; asked again while it is being started anew.

    Args:
        method: of a Ray actor.
        arguments: its.
        first: reference to an answer that is under way already, with the same meaning.

    Raises:
        GoneError: it did not come back.
    """
    until = time.monotonic() + RETRY_FOR_S
    reference = first
    while True:
        try:
            return ray.get(method.remote(*arguments) if reference is None else reference)
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except (ActorUnavailableError, RayActorError) as error:
            if time.monotonic() > until:
                raise GoneError(f"a process of the run is gone: {str(error).splitlines()[0]}") from error
            reference = None
            time.sleep(RETRY_PAUSE_S)


# --- the cluster --------------------------------------------------------------------------------------------------


class Cluster:
    """Handles to the processes of one run; made by :func:`connected`."""

    def __init__(self, plan: Plan, is_local: bool, start_step: int) -> None:
        self._plan, self._json, self._is_local = plan, plan.to_json(), is_local
        self._cpus = 0 if is_local else 1  # here the processes share the cores whatever they are
        if not is_local:
            self._refuse_too_small()
        asked = plan.actorq
        again = {"max_restarts": RESTARTS, "num_cpus": 0}
        replay, server = ray.remote(ReplayProcess), ray.remote(ParameterProcess)
        self.shards: list[Any] = [
            replay.options(**again, max_concurrency=1000).remote(self._json, index, start_step)
            for index in range(asked.replay_shards)
        ]
        self.server: Any = server.options(**again, max_concurrency=16).remote(
            asked.quantize, asked.quantize_communication
        )
        self._started: list[Any] = []

    def _refuse_too_small(self) -> None:
        there, wanted = int(ray.cluster_resources().get("CPU", 0)), self._plan.actorq.n_actors + 1
        if there < wanted:
            raise ClusterError(
                f"the cluster has {there} CPUs; {wanted - 1} actors and a learner take {wanted}. "
                f"Type --n-actors {max(there - 1, 1)}, or start more nodes: ray start --address=HOST:PORT."
            )

    def learner(self, state: tuple[dict[str, Any], dict[str, Any]] | None) -> Any:
        """A new learner process, which goes on from a state if there is one."""
        made = ray.remote(LearnerProcess).options(max_concurrency=4, num_cpus=self._cpus)
        return self._kept(made.remote(self._json, self.shards, self.server, state))

    def actor(self, index: int, life: int) -> Any:
        """A new actor process; on a cluster they are spread over its machines."""
        made = ray.remote(ActorProcess).options(num_cpus=self._cpus, scheduling_strategy="SPREAD")
        return self._kept(made.remote(self._json, index, life, self.shards[index % len(self.shards)], self.server))

    def _kept(self, handle: Any) -> Any:
        self._started.append(handle)
        return handle

    def stop(self) -> None:
        """Tell everybody, through the replay, that the run is over."""
        for shard in self.shards:
            shard.stop.remote()

    def end(self) -> None:
        """Kill what is left of the processes."""
        for handle in (*self._started, *self.shards, self.server):
            with contextlib.suppress(RayError, ValueError):
                ray.kill(handle, no_restart=True)


@contextlib.contextmanager
def connected(plan: Plan, address: str | None, start_step: int = 0) -> Iterator[Cluster]:
    """The processes that hold a run's data, on a cluster or on a Ray of this run's own; all are ended on leaving.

    Args:
        plan: of the run.
        address: ``auto``, ``HOST:PORT`` of ``ray start``, or None: Ray is started here.
        start_step: steps made before.

    Raises:
        ClusterError: Ray does not start or answer, or the cluster is too small.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    cluster = None
    try:
        if address is None:
            for name, value in VARIABLES.items():
                os.environ.setdefault(name, value)  # Ray's processes inherit them
            # So many processes Ray starts at a time, and before they are asked for: no more than the run will use.
            asked = plan.actorq
            cores = min(len(os.sched_getaffinity(0)), asked.n_actors + asked.replay_shards + 2)
            _start(**quiet, include_dashboard=False, num_cpus=cores, object_store_memory=STORE_BYTES)
        else:
            _reach(address, **quiet, runtime_env={"env_vars": VARIABLES})
        cluster = Cluster(plan, address is None, start_step)
        yield cluster
    finally:
        if cluster is not None:
            cluster.end()
        ray.shutdown()  # what an interruption left half started too


def _start(**options: Any) -> None:
    for attempt in range(START_TRIES):
        try:
            ray.init(**options, address="local")
            return
        except (RayError, RuntimeError, OSError, TimeoutError) as error:
            ray.shutdown()
            if attempt == START_TRIES - 1:
                first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise ClusterError(
                    f"Ray did not start here ({first}). Look at this machine's load and memory, then try again."
                ) from error


def refuse_unreachable(address: str | None) -> None:
    """Refuse an address at which nothing listens: Ray itself would try for more than ten minutes.

    Raises:
        ClusterError: says how a cluster is started.
    """
    if address is None or address == "auto":  # what "auto" finds, Ray looks up on this machine at once
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ClusterError(f"--address {address} is not HOST:PORT or auto. Type it as ray start --head prints it.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_WITHIN_S):
            pass
    except OSError as error:
        raise _no_cluster(address, error.strerror or str(error)) from error


def _no_cluster(address: str, why: str) -> ClusterError:
    return ClusterError(
        f"no Ray cluster answers at --address {address} ({why}). Start one: ray start --head --port=6379, and on "
        "further machines: ray start --address=HOST:6379. Without --address everything runs here."
    )


def _reach(address: str, **options: Any) -> None:
    try:
        ray.init(address=address, **options)
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        ray.shutdown()
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise _no_cluster(address, first) from error


# --- what the supervisor asks ---------------------------------------------------------------------------------------


def ready(references: Sequence[Any], timeout_s: float) -> list[Any]:
    """Those of the references that have an answer or an error by then."""
    done, _ = ray.wait(list(references), num_returns=len(references), timeout=timeout_s)
    return list(done)


def outcome(reference: Any) -> Any:
    """The answer behind a reference.

    Raises:
        GoneError: the process died.
        Exception: what the process itself raised.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.as_instanceof_cause() from None
    except RayError as error:
        raise GoneError(str(error).strip().splitlines()[0]) from error
