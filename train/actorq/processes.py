"""What runs inside Ray's actors: each process of a run, and how it reaches the others.

Ordinary classes of this package behind a Ray actor each. What travels between them: the plan as JSON; transitions as
arrays; parameters as the bytes of ``train/actorq/wire.py``, put into Ray's object store once a version, so that a
machine with many actors receives them once. A policy is never pickled.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from train.actorq.actor import Actor
from train.actorq.learner import LearnerLoop
from train.actorq.parameters import ParameterServer
from train.actorq.service import Columns, ReplayService, Reply
from train.actorq.settings import Plan
from train.actorq.wire import Published, Pushed
from train.runs.checkpoint import Checkpoint

RETRY_FOR_S = 30.0
RETRY_PAUSE_S = 0.2


class GoneError(RuntimeError):
    """A process died that cannot be replaced."""


class ReplayProcess:
    """A shard whose callers wait until they may insert or sample."""

    def __init__(self, plan: str, index: int, start_step: int) -> None:
        self._service = ReplayService(Plan.from_json(plan), index, start_step)
        self._changed = asyncio.Condition()
        self._born = time.time()

    async def insert(self, columns: Columns, facts: dict[str, Any]) -> tuple[int, int, bool]:
        """See :meth:`ReplayService.insert`."""
        return tuple(await self._when_ready(lambda: self._service.insert(columns, facts)))

    async def hear(self, updates: int) -> None:
        """See :meth:`ReplayService.hear`."""
        self._service.hear(updates)

    async def sample(self, updates: int) -> tuple[Columns | None, tuple[int, int, bool]]:
        """See :meth:`ReplayService.sample`."""
        self._service.hear(updates)
        columns, reply = await self._when_ready(self._service.sample)
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
        # A server that was started anew numbers its versions on: actors take any they do not have.
        self._server = ParameterServer(quantize, communication, time.time_ns() // 1_000_000)
        self._born = time.time()
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

    def forget(self) -> None:
        """The next learner begins anew: :meth:`newest` is not its policy. Actors act on with what they have."""
        self._newest = None

    def facts(self) -> dict[str, Any]:
        """See :meth:`ParameterServer.facts`."""
        return {**self._server.facts(), "born": self._born, "pid": os.getpid(), "cpu_s": time.process_time()}


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
        for index, shard in enumerate(self._shards):
            if index != self._turn:  # every actor is told by its own shard how far the learner is
                shard.hear.remote(updates)
        while True:
            columns, reply = called(self._shards[self._turn].sample, updates, first=self._asked)
            self._asked, self._last = None, self._turn
            self._replies[self._turn] = onward(self._replies.get(self._turn), Reply(*reply))
            if columns is None:
                self._over.add(self._turn)
            # Of shards that have not answered yet, a new learner takes the mean of the others.
            steps = sum(each.step for each in self._replies.values()) * len(self._shards) // len(self._replies)
            everywhere = Reply(steps, updates, False)
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
        parts = [part for shard in self._shards if (part := called(shard.recent, share))]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


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
        self._number = 0

    def __call__(self, columns: Columns, facts: dict[str, Any]) -> Reply:
        """See :data:`train.actorq.actor.Insert`."""
        if self._asked is not None:
            self._reply = onward(self._reply, Reply(*called(self._shard.insert, *self._rows, first=self._asked)))
        self._number += 1
        self._rows = columns, {**facts, "pid": os.getpid(), "number": self._number}
        self._asked = self._shard.insert.remote(*self._rows)
        return self._reply


def onward(before: Reply | None, reply: Reply) -> Reply:
    """A reply whose steps are no fewer than before: a shard that began anew does not know them yet."""
    return reply if before is None else reply._replace(step=max(reply.step, before.step))


def _pulled(server: Any, known: int) -> Published | None:
    found = called(server.latest, known)
    if found is None:
        return None
    try:
        return Published.from_parts(found[0], ray.get(found[1][0]))
    except RayError:  # its owner died between the answer and the copy: the next look finds another
        return None


def reason(error: RayError) -> str:
    """The line of Ray's report that says why; of a process that could not be built, what its building raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "creation task" in lines[0] else lines[0]


def cause_of(error: RayTaskError) -> Exception:
    """What a process itself raised, without Ray's report around it; a process that another missed is gone."""
    cause = error.cause
    if isinstance(cause, RayError):
        return GoneError(f"a process of the run is gone: {reason(cause)}")
    return cause if isinstance(cause, Exception) else error


def called(method: Any, *arguments: Any, first: Any = None) -> Any:
    """What a process answers; asked again while it is being started anew.

    Args:
        method: of a Ray actor.
        arguments: its.
        first: reference to an answer that is under way already, with the same meaning.

    Raises:
        GoneError: it did not come back.
    """
    until: float | None = None
    reference = first
    while True:
        try:
            return ray.get(method.remote(*arguments) if reference is None else reference)
        except RayTaskError as error:
            raise cause_of(error) from None
        except (ActorUnavailableError, RayActorError) as error:
            until = until or time.monotonic() + RETRY_FOR_S
            if time.monotonic() > until:
                raise GoneError(f"a process of the run is gone: {reason(error)}") from error
            reference = None
            time.sleep(RETRY_PAUSE_S)
