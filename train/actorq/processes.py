"""What runs inside Ray's actors: each process of a run, and how it reaches the others.

Ordinary classes of this package, each in a Ray actor. Transitions travel between them as arrays; parameters as the
bytes of ``train/actorq/wire.py``, put into Ray's object store once a version, so that a machine with many actors
receives them once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from quarl.policy.errors import QuarlError
from quarl.policy.spec import ArtifactFormat
from quarl.train.actorq.actor import Actor
from quarl.train.actorq.learner import LearnerLoop
from quarl.train.actorq.parameters import ParameterServer
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.replay import Columns, ReplayService, Reply
from quarl.train.actorq.wire import Published
from quarl.train.runs.checkpoint import Checkpoint

RETRY_FOR_S = 30.0
RETRY_PAUSE_S = 0.2

Answer = TypeVar("Answer")


class GoneError(QuarlError, RuntimeError):
    """A process died that cannot be replaced."""


class ReplayProcess(ReplayService):
    """A shard whose callers wait until they may insert or sample."""

    def __init__(self, plan: Plan, index: int, start_step: int) -> None:
        super().__init__(plan, index, start_step)
        self._changed = asyncio.Event()
        self._born = time.time()

    async def insert_when_ready(self, columns: Columns, facts: dict[str, Any]) -> Reply:
        """See :meth:`ReplayService.insert`."""
        return await self._when_ready(lambda: self.insert(columns, facts))

    async def sample_when_ready(self, updates: int) -> tuple[Columns | None, Reply]:
        """See :meth:`ReplayService.sample`."""
        self.hear(updates)
        return await self._when_ready(self.sample)

    async def _when_ready(self, ask: Callable[[], Answer | None]) -> Answer:
        while (answer := ask()) is None:
            await self._changed.wait()
        self._wake()
        return answer

    def _wake(self) -> None:
        """Let everyone who waits check again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def facts(self) -> dict[str, Any]:
        """See :meth:`ReplayService.facts`; and when the process began."""
        return {**super().facts(), "born": self._born, "cpu_s": time.process_time()}

    def go_on(self, step: int) -> None:
        """See :meth:`ReplayService.go_on`."""
        super().go_on(step)
        self._wake()

    def stop(self) -> None:
        """See :meth:`ReplayService.stop`; whoever waits is answered."""
        super().stop()
        self._wake()


class ParameterProcess(ParameterServer):
    """The parameter server; a version is put into the object store once, whoever asks for it how often."""

    def __init__(self, quantize: int, communication: int, artifact_format: ArtifactFormat) -> None:
        # A server that was restarted numbers its versions on: actors take any they do not have.
        super().__init__(quantize, communication, time.time_ns() // 1_000_000, artifact_format)
        self._born = time.time()
        self._stored: Published | None = None

    def latest(self, known: int) -> Published | None:
        """See :meth:`ParameterServer.latest`; the data is a reference."""
        published = super().latest(known)
        if published is None:
            return None
        stored = self._stored  # several ask at once: what one of them puts must not become the other's answer
        if stored is None or stored.version != published.version:
            self._stored = stored = replace(published, data=ray.put(published.data))
        return stored

    def facts(self) -> dict[str, Any]:
        """See :meth:`ParameterServer.facts`; and when the process began."""
        return {**super().facts(), "born": self._born, "cpu_s": time.process_time()}


class LearnerProcess(LearnerLoop):
    """The learner; figures and state are given while it runs."""

    def __init__(self, plan: Plan, shards: Sequence[Any], server: Any, checkpoint: Checkpoint | None) -> None:
        sampler = Sampler(shards)
        push = partial(call_process, server.put)
        super().__init__(plan, sampler, sampler.recent, push, sampler.prioritise, checkpoint)


class ActorProcess(Actor):
    """One actor."""

    def __init__(self, plan: Plan, index: int, life: int, shard: Any, server: Any) -> None:
        super().__init__(plan, index, life, Puller(server), Inserter(shard))


class Sampler:
    """Minibatches from the shards in turn, the next ones asked for while the last are learned from."""

    def __init__(self, shards: Sequence[Any]) -> None:
        self._shards, self._last = list(shards), 0
        self._turns = deque(range(len(shards)))  # of those that have not said that the run is over
        self._replies: dict[int, Reply] = {}
        self._asked: Any = None

    def __call__(self, updates: int) -> tuple[Columns | None, Reply]:
        """See :data:`train.actorq.learner.Sample`."""
        for index, shard in enumerate(self._shards):
            if not self._turns or index != self._turns[0]:  # each shard tells its own actors how far the learner is
                shard.hear.remote(updates)
        while self._turns:
            self._last = self._turns[0]
            columns, reply = call_process(self._shards[self._last].sample_when_ready, updates, first=self._asked)
            self._asked = None
            self._replies[self._last] = onward(self._replies.get(self._last, reply), reply)
            if columns is None:
                self._turns.popleft()
                continue
            self._turns.rotate(-1)
            self._asked = self._shards[self._turns[0]].sample_when_ready.remote(updates)
            return columns, Reply(self._steps, updates, False)
        return None, Reply(self._steps, updates, True)

    @property
    def _steps(self) -> int:
        """Steps of all shards; of those that have not answered yet, a new learner takes the mean of the others."""
        return sum(reply.step for reply in self._replies.values()) * len(self._shards) // len(self._replies)

    def prioritise(self, rows: Any, errors: Any) -> None:
        """Errors of the rows that were given last, to the shard they are from; nobody waits for it."""
        self._shards[self._last].update_priorities.remote(rows, errors)

    def recent(self, count: int) -> Columns:
        """Return the newest rows of all shards together."""
        share = max(count // len(self._shards), 1)
        parts = [part for shard in self._shards if (part := call_process(shard.recent, share))]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


class Inserter:
    """Sends rows while the actor goes on; an answer is waited for with the next rows."""

    def __init__(self, shard: Any) -> None:
        self._method, self._reply = shard.insert_when_ready, Reply(0, 0, False)
        self._asked: Any = None
        self._rows: tuple[Columns, dict[str, Any]] = ({}, {})
        self._number = 0

    def __call__(self, columns: Columns, facts: dict[str, Any]) -> Reply:
        """See :data:`train.actorq.actor.Insert`."""
        if self._asked is not None:
            self._reply = onward(self._reply, call_process(self._method, *self._rows, first=self._asked))
        self._number += 1
        self._rows = columns, {**facts, "number": self._number}
        self._asked = self._method.remote(*self._rows)
        return self._reply


def onward(before: Reply, reply: Reply) -> Reply:
    """Return a reply whose steps are no fewer than before: a shard that started over does not know them yet."""
    return reply._replace(step=max(reply.step, before.step))


class Puller:
    """Looks for newer parameters while the actor goes on: the next look takes the answer; only the first waits for it.

    What is taken was the newest a look ago. Waiting for an answer each time would cost an actor whose machine is busy
    more than sending the answer does.
    """

    def __init__(self, server: Any) -> None:
        self._server = server
        self._asked: Any = None

    def __call__(self, known: int) -> Published | None:
        """See :data:`train.actorq.actor.Pull`."""
        published = pull_parameters(self._server, known, self._asked)
        self._asked = self._server.latest.remote(known if published is None else published.version)
        return published


def pull_parameters(server: Any, known: int, reference: Any = None) -> Published | None:
    """See :data:`train.actorq.actor.Pull`; ``reference``: reference to an answer that is under way already."""
    published: Published | None = call_process(server.latest, known, first=reference)
    try:
        return published and published.attach_data(ray.get(published.data))
    except RayError:  # its owner died between the answer and the copy: the next look finds another
        return None


def reason(error: Exception) -> str:
    """Return the line of Ray's report that says why; of a process that could not be built, what its building raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "creation task" in lines[0] else lines[0]


def cause_of(error: RayTaskError) -> Exception:
    """Return what a process itself raised, without Ray's report around it; a process that another missed is gone."""
    cause = error.cause
    if isinstance(cause, RayError):
        return GoneError(f"a process of the run died and cannot be replaced: {reason(cause)}")
    return cause if isinstance(cause, Exception) else error


def call_process(method: Any, *arguments: Any, first: Any = None) -> Any:
    """Call a process and return its answer; it is called again while it is being restarted.

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
                raise GoneError(f"a process of the run died and cannot be replaced: {reason(error)}") from error
            reference = None
            time.sleep(RETRY_PAUSE_S)
