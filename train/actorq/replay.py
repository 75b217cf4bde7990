"""A shard of the replay: its rows, drawn uniformly or by priority, who may insert or sample now, how far the run is.

Rows are complete n-step transitions (``train/actorq/stepping.py``): any of them may be drawn at any time, which is what
tells this replay from ``train/algorithms/common/replay.py``, where a return is put together when it is drawn.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarl.train.actorq.plan import Plan
from quarl.train.actorq.settings import ActorQSettings
from quarl.train.algorithms.common.priorities import SMALLEST_ERROR, SumTree, importance_weights
from quarl.train.suites.task import episode_seed

Columns = dict[str, NDArray[Any]]
WATCHED = ("observation", "greedy", "updates")


class Ratio:
    """Keeps samples near ``samples_per_insert`` × insertions, as Reverb's SampleToInsertRatio does.

    With d = inserted · ratio − sampled, a sample needs d to stay above minimum · ratio − slack and an insertion below
    minimum · ratio + slack; below ``minimum`` rows everybody may insert and nobody sample.
    """

    def __init__(self, samples_per_insert: float, minimum: int, slack: float) -> None:
        """Args:
        samples_per_insert: times that a row is drawn on average; 0 lets everybody go on as they like.
        minimum: rows before the first sample.
        slack: samples by which either side may be ahead; at least what one insertion or one sample moves, or nobody
            could move.
        """
        self._ratio, self._minimum, self._slack = samples_per_insert, minimum, slack
        self.inserted, self.sampled = 0, 0

    @property
    def ahead(self) -> float:
        """Samples that the actors are ahead by, negative where the learner is."""
        return (self.inserted - self._minimum) * self._ratio - self.sampled

    def may_insert(self, rows: int) -> bool:
        """Return whether this many rows may be inserted now."""
        below = self.inserted < self._minimum
        return below or self._ratio == 0 or self.ahead + rows * self._ratio <= self._slack

    def may_sample(self, rows: int) -> bool:
        """Return whether this many rows may be drawn now."""
        if self.inserted < self._minimum:
            return False
        return self._ratio == 0 or self.ahead - rows >= -self._slack


class Shard:
    """A ring of the newest transitions. Columns get their shapes and types from the first that are inserted."""

    def __init__(self, capacity: int, priority_exponent: float, seed: int) -> None:
        """Args: rows kept; α of the priorities, 0 for uniform draws; the seed of the draws."""
        self._capacity, self._exponent = capacity, priority_exponent
        self._generator = np.random.default_rng(seed)
        self._columns: Columns = {}
        self._tree = SumTree(capacity) if priority_exponent > 0 else None
        self._largest = 1.0  # p^α of new rows: what is new is drawn soon
        self._written, self._sampled, self._refused = 0, 0, 0
        self._staleness_sum, self._staleness_rows, self._staleness_largest = 0, 0, 0

    def __len__(self) -> int:
        """Return the number of rows held."""
        return min(self._written, self._capacity)

    def add(self, columns: Columns, newest_updates: int, max_staleness: int) -> int:
        """Remember rows; those that a policy too far behind made are refused.

        Args:
            columns: by name, rows first; ``updates`` says how old the policy was, −1 where none acted.
            newest_updates: of the learner now.
            max_staleness: updates that a policy may be behind.

        Returns:
            The number of rows refused.
        """
        acted = columns["updates"] >= 0
        staleness = np.where(acted, np.maximum(newest_updates - columns["updates"], 0), 0)
        is_kept = staleness <= max_staleness
        refused = int((~is_kept).sum())
        self._refused += refused
        if (accepted := is_kept & acted).any():
            self._staleness_sum += int(staleness[accepted].sum())
            self._staleness_rows += int(accepted.sum())
            self._staleness_largest = max(self._staleness_largest, int(staleness[accepted].max()))
        rows = len(is_kept) - refused
        if not rows:
            return refused
        if not self._columns:
            self._columns = {
                name: np.zeros((self._capacity, *column.shape[1:]), column.dtype) for name, column in columns.items()
            }
        places = np.arange(self._written, self._written + rows) % self._capacity
        for name, column in columns.items():
            self._columns[name][places] = column[is_kept]
        if self._tree is not None:
            self._tree[places] = self._largest
        self._written += rows
        return refused

    def draw(self, batches: int, minibatch: int, importance_exponent: float) -> Columns:
        """Minibatches with replacement, (batches, minibatch, …), with ``rows``: the number of each row's insertion.

        Drawn by priority they bring ``weight`` = (N · P(i))^−β / max (Schaul et al. 2016, section 3.4).
        """
        shape = (batches, minibatch)
        weights: Columns = {}
        if self._tree is None:
            places = self._generator.integers(len(self), size=shape)
        else:
            parts = np.arange(minibatch) + self._generator.random(shape)
            places = self._tree.find(parts * (self._tree.total / minibatch))
            weights["weight"] = importance_weights(self._tree[places] / self._tree.total, importance_exponent)
        newest = self._written - 1
        rows = newest - (newest - places) % self._capacity  # the last insertion that went to this place
        self._sampled += places.size
        drawn = {name: column[places] for name, column in self._columns.items() if name not in ("greedy", "updates")}
        return {**drawn, **weights, "rows": rows}

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Priorities |δ|^α of rows that were drawn; of those overwritten since then nothing is changed."""
        if self._tree is None:
            return
        rows, errors = rows.ravel(), errors.ravel()
        there = (rows >= self._written - len(self)) & (rows < self._written)  # of a ring that started over: none
        values = (np.abs(errors[there]).astype(np.float64) + SMALLEST_ERROR) ** self._exponent
        self._tree[rows[there] % self._capacity] = values
        if len(values):
            self._largest = max(self._largest, float(values.max()))

    def recent(self, count: int) -> Columns:
        """Return the newest rows, at most this many: observation, greedy and updates."""
        places = np.arange(self._written - min(count, len(self)), self._written) % self._capacity
        return {name: self._columns[name][places] for name in WATCHED if name in self._columns}

    def facts(self) -> dict[str, Any]:
        """Figures: rows held, inserted, sampled and refused; bytes; staleness of what was accepted, in updates."""
        return {
            "size": len(self),
            "inserted": self._written,
            "sampled": self._sampled,
            "refused_stale": self._refused,
            "nbytes": sum(column.nbytes for column in self._columns.values()),
            "mean_staleness": self._staleness_sum / self._staleness_rows if self._staleness_rows else None,
            "largest_staleness": self._staleness_largest,
        }


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


class ReplayService(Shard):
    """A shard with its ratio of samples and insertions and its part of the steps.

    An insertion or a sample that may not be made yet gives None; the process (``train/actorq/processes.py``) lets the
    caller wait. Every answer carries how far the run is, so that actors and learner need no other channel.
    """

    def __init__(self, plan: Plan, index: int, start_step: int = 0) -> None:
        """Args: the plan, the shard's number, and the steps of all shards that were made before this process began."""
        self._settings, self._actorq = settings, actorq = plan.settings, plan.actorq
        share = actorq.replay_shards
        self._quota, self._start = steps_of(plan.request.steps, actorq, index), steps_of(start_step, actorq, index)
        self._step = self._start
        super().__init__(
            max(settings.replay_capacity // share, settings.minibatch),
            actorq.priority_exponent,
            episode_seed(plan.request.seed, f"replay {index} from {start_step}"),
        )
        self._rows_drawn = settings.updates * settings.minibatch
        # Both sides must be able to make a move of their size; twice that lets them work at the same time.
        ratio = actorq.samples_per_insert or math.inf
        moves = max(self._rows_drawn, actorq.n_actors * (actorq.insert_every + settings.n_step) * ratio)
        self._ratio = Ratio(actorq.samples_per_insert, max(settings.learning_starts // share, 1), 2 * moves)
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
        refused = self.add(columns, self._updates, self._actorq.max_staleness)
        self._ratio.inserted += rows - refused
        self._step += rows
        if number is not None:
            self._taken[name] = number
        return self.reply

    def hear(self, updates: int) -> None:
        """Note how many updates the learner has made."""
        self._updates = updates

    def sample(self, updates: int | None = None) -> tuple[Columns | None, Reply] | None:
        """Minibatches for one round, or None: not before actors have brought more; without columns: the run is over.

        Args:
            updates: that the learner has made; None: as it said before.
        """
        if updates is not None:
            self.hear(updates)
        settings = self._settings
        owed = self._actorq.samples_per_insert > 0  # without a ratio the learner would draw on for ever
        if self._stop or (self.reply.stop and not owed):
            return None, self.reply
        if not self._ratio.may_sample(self._rows_drawn):
            return (None, self.reply) if self.reply.stop else None
        columns = self.draw(settings.updates, settings.minibatch, self._actorq.importance_exponent)
        self._ratio.sampled += self._rows_drawn
        return columns, self.reply

    def go_on(self, step: int) -> None:
        """Take the place of a process that had received this many steps; its own since then are added to them."""
        self._step, self._start = step + self._step - self._start, step

    def stop(self) -> None:
        """End the run, with anything left to do."""
        self._stop = True

    def facts(self) -> dict[str, Any]:
        """Figures of the shard, and the last that each actor reported (by ``actor.life``)."""
        return {**super().facts(), "step": self._step, "updates": self._updates, "actors": dict(self._actors)}


def steps_of(total: int, actorq: ActorQSettings, index: int) -> int:
    """Return a shard's part of this many steps: by the actors that are dealt to it; the parts' sum is exact."""
    per_shard, remainder = divmod(actorq.n_actors, actorq.replay_shards)
    before, after = (
        total * (per_shard * shard + min(shard, remainder)) // actorq.n_actors for shard in (index, index + 1)
    )
    return after - before
