"""An actor: steps its environment with the artifact that a device would execute, and sends what it saw.

It pulls newer parameters every ``actor_update_period`` steps, at once when the learner has run too far ahead, and keeps
the time that every part of its life takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from quarl.device.agent.executing import Executor
from quarl.device.agent.runtimes import open_artifact
from quarl.policy.spec import RuntimeName
from quarl.train.actorq.algorithms import make_explorer
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.replay import Columns, Reply, steps_of
from quarl.train.actorq.stepping import Choice, Step, Window
from quarl.train.actorq.wire import Published, unpack_artifact
from quarl.train.suites.episodes import EpisodeStream
from quarl.train.suites.task import episode_seed

PARTS = ("step", "inference", "pull", "deserialize", "load", "insert", "wait", "idle")
"""Where an actor's time goes: the environment; the artifact; asking for and receiving parameters; making the artifact's
bytes of them; opening these in the runtime; sending transitions, and waiting for a learner that is behind; waiting
for the first parameters or for newer ones than it may act with; idling because it was asked to. The rest is Python."""
COUNTED = ("steps", "pulls", "renewals", "late_renewals", "episodes", "returns")
RENEWAL_PAUSE_S = 0.005
LONGEST_RENEWAL_S = 30.0

Pull = Callable[[int], Published | None]
"""Version that is known → a newer one, or None."""
Insert = Callable[[Columns, dict[str, Any]], Reply]
"""Rows and what the actor tells of itself → how far the run is."""


class Actor:
    """See the module's docstring."""

    def __init__(self, plan: Plan, index: int, life: int, pull: Pull, insert: Insert) -> None:
        """Args:
        plan: of the run.
        index: of the actor.
        life: 0, and one more each time it was replaced: its episodes and noise are others then.
        pull, insert: how it reaches the parameters and the replay.
        """
        self._asked = plan.actorq
        settings, task, seed = plan.settings, plan.make_task(), plan.request.seed
        name = f"actor {index} life {life}"
        self._stream = EpisodeStream(task.make(1, episode_seed(seed, name)))
        self._explorer = make_explorer(plan, task, np.random.default_rng(episode_seed(seed, f"noise of {name}")))
        follows = task.is_discrete and self._asked.correct_mismatch and settings.n_step > 1
        self._window = Window(settings.n_step, settings.discount, follows)
        self._discrete = task.is_discrete
        self._runtime, self._delay_s = RuntimeName(self._asked.runtime), self._asked.delay_s(index)
        self._pull, self._insert = pull, insert
        self._executor: Executor | None = None
        self._version, self._since_pull, self._reply = 0, 0, Reply(0, 0, False)
        # Steps of this actor's shard, of which the reply counts.
        self._share = max(steps_of(plan.request.steps, self._asked, index % self._asked.replay_shards), 1)
        self._told: dict[str, Any] = {"actor": index, "life": life, "updates": -1, **dict.fromkeys(COUNTED, 0)}
        self._seconds, self._counts = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0)
        self._began = time.perf_counter()

    def run(self) -> dict[str, Any]:
        """Act until the replay says that the run is over; what the actor tells of itself."""
        period, often = self._asked.actor_update_period, self._asked.insert_every
        self._send()
        self._send()  # gets the answer to the first: one that replaces another explores as the run does
        self._renew()  # and acts with the policy as it is from its first step
        while not self._reply.stop:
            self._act()
            self._since_pull += 1
            if len(self._window) >= often:
                self._send()
            if self._since_pull >= period:
                self._renew()
        return self.facts()

    def facts(self) -> dict[str, Any]:
        """Figures so far: steps, parameters, episodes, and seconds by part."""
        seconds = {**self._seconds, "total": time.perf_counter() - self._began}
        return {**self._told, "seconds": seconds, "counts": dict(self._counts), "cpu_s": time.process_time()}

    def _record_time(self, part: str, since: float) -> float:
        """Count the time since then for the part; returns the time now."""
        now = time.perf_counter()
        self._seconds[part] += now - since
        self._counts[part] += 1
        return now

    def _act(self) -> None:
        """One step of the environment."""
        observation = self._stream.observation
        since = time.perf_counter()
        choice = self._choose(observation)
        since = self._record_time("inference", since)
        transition = self._stream.step(choice.physical)
        self._record_time("step", since)
        self._window.add(
            Step(
                observation[0],
                choice,
                float(transition.reward[0]),
                bool(transition.terminated[0]),
                bool(transition.cut[0]),
                transition.last_observation[0],
                self._told["updates"],
            )
        )
        self._told["steps"] += 1
        if transition.done[0]:
            self._explorer.end_episode()
            stats = self._stream.take_stats()
            self._told["episodes"] += stats.episodes
            self._told["returns"] += stats.total_return
        if self._delay_s:
            since = time.perf_counter()
            time.sleep(self._delay_s)
            self._record_time("idle", since)

    def _choose(self, observation: Any) -> Choice:
        if self._executor is None:
            return self._explorer.start()
        decided = self._executor.decide(np.ascontiguousarray(observation, np.float32))
        outputs = np.asarray(self._executor.outputs() if self._discrete else decided, np.float32)
        return self._explorer.choose(decided if self._discrete else outputs, outputs, self._reply.step / self._share)

    def _send(self) -> None:
        """Send the rows that are ready; renew at once if the learner has run too far ahead."""
        since = time.perf_counter()
        self._reply = self._insert(self._window.take() if len(self._window) else {}, self.facts())
        self._record_time("insert", since)
        if self._reply.stop:
            return  # newer parameters may never come
        if 0 <= self._told["updates"] < self._reply.updates - self._asked.max_staleness:
            self._told["late_renewals"] += 1
            self._renew(self._reply.updates - self._asked.max_staleness)

    def _renew(self, oldest: int = -1) -> None:
        """Look for newer parameters; with ``oldest`` wait for some of at least this many updates."""
        began = time.perf_counter()
        self._since_pull = 0
        while True:
            since = time.perf_counter()
            published = self._pull(self._version)
            self._told["pulls"] += 1
            since = self._record_time("wait" if self._executor is None else "pull", since)
            if published is not None:
                self._open(published, since)
            if self._told["updates"] >= oldest or time.perf_counter() - began > LONGEST_RENEWAL_S:
                return
            since = time.perf_counter()
            time.sleep(RENEWAL_PAUSE_S)
            self._reply = self._insert({}, self.facts())  # the learner may begin again from an earlier checkpoint
            self._record_time("wait", since)
            if self._reply.stop:
                return
            oldest = min(oldest, self._reply.updates - self._asked.max_staleness)

    def _open(self, published: Published, since: float) -> None:
        """Make an executor of published parameters; the one in use is replaced when it can decide."""
        artifact = unpack_artifact(published)
        since = self._record_time("deserialize", since)
        executor = open_artifact(self._runtime, artifact, published.spec)
        executor.decide(
            np.zeros((1, published.spec.observation_size), np.float32)
        )  # the first decision packs the weights
        self._executor = executor
        self._record_time("load", since)
        self._version, self._told["updates"] = published.version, published.updates
        self._told["renewals"] += 1
