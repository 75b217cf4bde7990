"""What a replay process does, without the process: who may insert or sample now, and what everybody hears of the run.

An insertion or a sample that may not be made yet gives None; the process (``train/actorq/processes.py``) lets the
caller wait. Every answer carries how far the run is, so that actors and learner need no other channel.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from train.actorq.algorithms import settings_of
from train.actorq.replay import Ratio, Shard
from train.actorq.settings import ActorQSettings, Plan
from train.suites.task import episode_seed

Columns = dict[str, NDArray[Any]]


class Reply(NamedTuple):
    """What every answer of the replay says.

    Attributes:
        step: environment steps that this replay process has received, those before a resumption included.
        updates: of the learner, as it said with its last sample.
        stop: the run is over.
    """

    step: int
    updates: int
    stop: bool


class ReplayService:
    """One shard: its rows, its ratio of samples and insertions, its part of the steps."""

    def __init__(self, plan: Plan, index: int, start_step: int = 0) -> None:
        """Args: the plan, the shard's number, and the steps of all shards that were made before this process began."""
        settings, asked = settings_of(plan), plan.actorq
        self._settings, self._asked = settings, asked
        share = asked.replay_shards
        self._quota, self._start = steps_of(plan.steps, asked, index), steps_of(start_step, asked, index)
        self._step = self._start
        self._shard = Shard(
            max(settings.replay_capacity // share, settings.minibatch),
            asked.priority_exponent,
            episode_seed(plan.seed, f"replay {index} from {start_step}"),
        )
        self._rows_drawn = settings.updates * settings.minibatch
        # Both sides must be able to make a move of their size; twice that lets them work at the same time.
        ratio = asked.samples_per_insert or math.inf
        moves = max(self._rows_drawn, asked.n_actors * (asked.insert_every + settings.n_step) * ratio)
        self._ratio = Ratio(asked.samples_per_insert, max(settings.learning_starts // share, 1), 2 * moves)
        self._updates, self._stop = 0, False
        self._actors: dict[str, dict[str, Any]] = {}
        self._taken: dict[str, int] = {}

    @property
    def reply(self) -> Reply:
        """How far the run is."""
        return Reply(self._step, self._updates, self._stop or self._step >= self._quota)

    def insert(self, columns: Columns, facts: dict[str, Any]) -> Reply | None:
        """Take an actor's rows, or None: not before the learner has learned more.

        Args:
            columns: as ``train/actorq/stepping.py`` makes them.
            facts: what the actor tells of itself; the last are kept. With a ``number``, rows of one that was taken
                before are not taken again: they were sent twice, because the first answer was lost.
        """
        name, number = f"{facts['actor']}.{facts['life']}", facts.get("number")
        self._actors[name] = facts
        rows = len(columns["return"]) if columns else 0
        if self.reply.stop or rows == 0 or (number is not None and number <= self._taken.get(name, 0)):
            return self.reply
        if not self._ratio.may_insert(rows):
            return None
        refused = self._shard.insert(columns, self._updates, self._asked.max_staleness)
        self._ratio.inserted += rows - refused
        self._step += rows
        if number is not None:
            self._taken[name] = number
        return self.reply

    def hear(self, updates: int) -> None:
        """The learner has made so many updates."""
        self._updates = updates

    def sample(self, updates: int | None = None) -> tuple[Columns | None, Reply] | None:
        """Minibatches for one round, or None: not before actors have brought more; without columns: the run is over.

        Args:
            updates: that the learner has made; None: as it said before.
        """
        if updates is not None:
            self.hear(updates)
        settings = self._settings
        owed = self._asked.samples_per_insert > 0  # without a ratio the learner would draw on for ever
        if self._stop or (self.reply.stop and not owed):
            return None, self.reply
        if not self._ratio.may_sample(self._rows_drawn):
            return (None, self.reply) if self.reply.stop else None
        columns = self._shard.sample(settings.updates, settings.minibatch, self._asked.importance_exponent)
        self._ratio.sampled += self._rows_drawn
        return columns, self.reply

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Errors of rows that :meth:`sample` gave."""
        self._shard.update_priorities(rows, errors)

    def recent(self, count: int) -> Columns:
        """The newest rows: observation, greedy and updates."""
        return self._shard.recent(count)

    def go_on(self, step: int) -> None:
        """This process replaces one that had received so many steps; its own since then are added to them."""
        self._step, self._start = step + self._step - self._start, step

    def stop(self) -> None:
        """The run is over, whatever is left to do."""
        self._stop = True

    def facts(self) -> dict[str, Any]:
        """Figures of the shard, and the last that each actor told (by ``actor.life``)."""
        return {**self._shard.facts(), "step": self._step, "updates": self._updates, "actors": dict(self._actors)}


def steps_of(total: int, asked: ActorQSettings, index: int) -> int:
    """A shard's part of so many steps: by the actors that are dealt to it; the parts' sum is exact."""
    dealt = [share_of(asked.n_actors, asked.replay_shards, shard) for shard in range(index + 1)]
    before = sum(dealt[:-1])
    return total * (before + dealt[-1]) // asked.n_actors - total * before // asked.n_actors


def share_of(total: int, parts: int, index: int) -> int:
    """A part of a whole number, the parts as equal as can be and their sum exact."""
    return total // parts + (index < total % parts)
